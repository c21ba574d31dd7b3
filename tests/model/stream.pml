/* One throughput stream: chunks in a ring of slots, positions on the wire that count modulo FIELD, a receiver that
 * applies them in order through a window, and absolute credits back through the gate. Everything may be delivered in
 * any order, complete late, and (ANY_AGAIN) be delivered twice. FIELD stands for 2^kSequenceBits of wire/limits.h. */
#include "promises.pml"

#ifdef LONG
#define CHUNKS 7
#define EACH EACH_OF_7
#else
#define CHUNKS 6
#define EACH EACH_OF_6
#endif
#ifndef FIELD
#define FIELD 8
#endif
#define HALF (FIELD / 2) /* wire/limits.h kMaxSequenceInFlight */
#ifndef SLOTS
#define SLOTS (HALF / 2) /* kernels/layout/throughput.h StreamGeometry::kMaxSlots */
#endif

PROMISE(no_slot_overwritten_before_read);
PROMISE(no_early_publish);
PROMISE(no_lost_or_double_count);
PROMISE(window_never_overflows);
PROMISE(credit_never_ahead_of_the_reader);

/* The sender's kernel and poster: kernels/throughput/common.h send_chunk, proxy/engine/poster.cpp in_window */
byte sent, done;                 /* chunks pushed; chunks below `done` are complete */
byte credit;                     /* ControlLayout::credit, as the sender's engine keeps it */
bit chunk_air[CHUNKS], chunk_complete[CHUNKS], chunk_twice[CHUNKS];

/* The receiver: proxy/engine/sequences.h Stream; the ring of slots; its reader */
byte tail;
bit parked[HALF];
byte slot[SLOTS];                /* 1 + the chunk that lies there */
byte head;

/* Credits: proxy/engine/credit_gate.h, one per value of `head` */
bit credit_air[CHUNKS + 1], credit_open[CHUNKS + 1];
byte credits_open, settled, newest;

/* wire/immediate.h widen: the value nearest to `reference` with these low bits, as its distance plus FIELD */
#define DISTANCE(value, reference) ((value + 16 * FIELD - (reference)) % FIELD)
#define IS_AHEAD(value, reference) (DISTANCE(value, reference) < HALF)

/* kernels/throughput/common.h wait_for_slot */
#ifdef BUG_SLOT_OFF_BY_ONE
#define SLOT_IS_FREE (sent - credit <= SLOTS)
#else
#define SLOT_IS_FREE (sent - credit < SLOTS)
#endif
#ifdef BUG_NO_WINDOW
#define IN_WINDOW true
#else
#define IN_WINDOW (sent - done < HALF)
#endif

/* A completion, in any order; `done` is the leading run: proxy/engine/poster.cpp settle */
#define COMPLETE(n) \
  :: atomic { \
      n < sent && !chunk_air[n] && !chunk_complete[n] -> \
      chunk_complete[n] = 1; \
      do \
      :: done < CHUNKS && chunk_complete[done] -> done++ \
      :: else -> break \
      od \
    }
proctype Sender() {
  do
  :: atomic { /* the bytes of a chunk land at once: the worst time for what lies there */
      sent < CHUNKS && SLOT_IS_FREE && IN_WINDOW ->
      HOLDS(no_slot_overwritten_before_read, sent < head + SLOTS);
      slot[sent % SLOTS] = sent + 1;
      chunk_air[sent] = 1;
      sent++
    }
  EACH(COMPLETE)
  :: done == CHUNKS -> break
  od
}

/* proxy/engine/sequences.cpp chunk */
inline apply(n) {
  HOLDS(window_never_overflows, n < tail || n - tail < HALF);
  if
  :: !IS_AHEAD(n % FIELD, tail) -> /* Outcome::kStale */
    HOLDS(no_lost_or_double_count, n < tail)
  :: IS_AHEAD(n % FIELD, tail) && DISTANCE(n % FIELD, tail) > 0 ->
#ifdef BUG_TAIL_PASSES_A_GAP
    tail = n + 1
#else
#ifdef BUG_PARKED_TWICE
    parked[n % HALF] = 1 - parked[n % HALF]
#else
    parked[n % HALF] = 1
#endif
#endif
  :: else ->
    tail++;
#ifdef BUG_NEXT_COUNTS_TWICE
    tail++;
#endif
    do
    :: parked[tail % HALF] -> parked[tail % HALF] = 0; tail++
    :: else -> break
    od
  fi
}

#define DELIVER(n) \
  :: atomic { chunk_air[n] -> chunk_air[n] = 0; apply(n) }
#ifdef ANY_AGAIN /* it stays on its way: it will come again */
#define DELIVER_TWICE(n) \
  :: atomic { chunk_air[n] && !chunk_twice[n] -> chunk_twice[n] = 1; apply(n) }
#else
#define DELIVER_TWICE(n)
#endif
proctype ChunkNetwork() {
end:
  do
  EACH(DELIVER)
  EACH(DELIVER_TWICE)
  od
}

/* A reader of the node, and the host that sends credits: kernels/throughput/dispatch.h, common.h send_credit */
#ifdef BUG_NO_GATE
#define MAY_SEND(position) true
#else
#define MAY_SEND(position) (credits_open == 0 || DISTANCE((position) % FIELD, settled) < HALF)
#endif
proctype Reader() {
  byte told;
  do
  :: atomic {
      head < tail ->
      HOLDS(no_early_publish, slot[head % SLOTS] == head + 1 && (!chunk_air[head] || chunk_twice[head]));
      head++
    }
#ifdef BUG_CREDIT_BEFORE_READ
  :: atomic { head < tail && told <= head ->
      told = head + 1;
      credit_air[told] = 1; credit_open[told] = 1; credits_open++; newest = told % FIELD }
#endif
  :: atomic {
      told < head && MAY_SEND(head) ->
      told = head;
      credit_air[told] = 1; credit_open[told] = 1; credits_open++; newest = told % FIELD
    }
  :: told == CHUNKS -> break
  od
}

/* proxy/engine/sequences.cpp credit; proxy/engine/credit_gate.h completed */
#ifdef BUG_CREDIT_GOES_BACK
#define TAKE_CREDIT(n) credit = (n) + 1
#else
#define TAKE_CREDIT(n) credit = credit + (IS_AHEAD(((n) + 1) % FIELD, credit) -> DISTANCE(((n) + 1) % FIELD, credit) : 0)
#endif
#define DELIVER_CREDIT(n) /* of head n + 1 */ \
  :: atomic { \
      credit_air[(n) + 1] -> \
      credit_air[(n) + 1] = 0; \
      TAKE_CREDIT(n); \
      HOLDS(credit_never_ahead_of_the_reader, credit <= head) \
    } \
  :: atomic { \
      credit_open[(n) + 1] && !credit_air[(n) + 1] -> \
      credit_open[(n) + 1] = 0; \
      credits_open--; \
      settled = (credits_open == 0 -> newest : settled) \
    }
proctype CreditNetwork() {
end:
  do
  EACH(DELIVER_CREDIT)
  od
}

init {
  atomic { run Sender(); run ChunkNetwork(); run Reader(); run CreditNetwork() }
}
