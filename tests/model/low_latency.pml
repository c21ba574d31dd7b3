/* Low-latency epochs: two buffer sets, partial completion, the words that headers carry about what was read, and the
 * announcement that a rank sends when it has read and sent nothing since. Ranks on nodes of their own.
 *
 * Configured by -D: RANKS (2, 3), SENDS (calls of a rank), WRITES (of a call to each peer), ORDER (phase of the nth call).
 * Each rank makes the same calls in the same order, and receives each when it likes (two outstanding per phase, at most).
 *
 * Bytes land the moment they are sent, immediates are seen at any time after. That is the worst of all networks: what is
 * overwritten too early is overwritten earliest, a flag that is raised too early misses most, and a write is complete
 * (which waits for landing, not for the other engine: shared memory, RDMA) at once. */
#include "promises.pml"

#ifndef RANKS
#define RANKS 2
#endif
#ifndef SENDS
#define SENDS 4
#endif
#ifndef WRITES
#define WRITES 1
#endif
#ifndef ORDER
#define ORDER (call % 2) /* dispatch, combine, dispatch, ... */
#endif
#ifndef EPOCHS
#define EPOCHS 4 /* of a phase, at most */
#endif
#define NONE 255
#ifdef BUG_WINDOW_OF_ONE
#define WINDOW 1
#else
#define WINDOW 4   /* proxy/engine/arrivals.h kEpochWindow */
#endif
#define SPARE 2    /* proxy/wire/immediate.h Phase::kSpare: announcements */
#define PHASES 3
#define LINKS (RANKS * (RANKS - 1))

#define LINK(from, to) ((from) * (RANKS - 1) + ((to) + RANKS - (from)) % RANKS - 1)
#define STREAM(from, to, phase) (LINK(from, to) * PHASES + (phase))
#define AT(s, e) ((s) * EPOCHS + (e) - 1)
#define CELL(s, e) ((s) * WINDOW + (e) % WINDOW)
#define SET(s, e) ((s) * 2 + (e) % 2)
#define KNOWN(reader, here, phase) (LINK(reader, here) * 2 + (phase))

PROMISE(no_early_publish);
PROMISE(no_buffer_overwritten_before_read);
PROMISE(no_header_overwritten_before_read);
PROMISE(no_lost_or_double_count);
PROMISE(no_stale_epoch_counted);
PROMISE(window_is_enough);

/* The network: immediates that the receiving engine has not seen. */
byte writes_open[LINKS * PHASES * EPOCHS];
bit header_open[LINKS * PHASES * EPOCHS];

/* The receiver's control segment, headers in two sets by epoch parity: proxy/wire/control.h ExpectHeader. */
byte header_epoch[LINKS * PHASES * 2], header_dispatch[LINKS * PHASES * 2], header_combine[LINKS * PHASES * 2];

/* The receiver's engine: proxy/engine/arrivals.h Counter; ControlLayout::consumed */
byte published[LINKS * PHASES];
byte counted[LINKS * PHASES * WINDOW], expected[LINKS * PHASES * WINDOW];
byte known[LINKS * 2];

/* Each rank's calls, by phase: uccl_ep/low_latency/launch.py Epochs */
byte sent[RANKS * 2], consumed[RANKS * 2];
bit ghost_came;

/* proxy/engine/arrivals.cpp settle, publish */
inline publish(s) {
#ifdef BUG_PUBLISH_ANY_COMPLETE_EPOCH
  if
  :: epoch > published[s] && counted[CELL(s, epoch)] == expected[CELL(s, epoch)] ->
    counted[CELL(s, epoch)] = 0;
    expected[CELL(s, epoch)] = NONE;
    published[s] = epoch
  :: else
  fi;
#else
  do
  :: counted[CELL(s, published[s] + 1)] == expected[CELL(s, published[s] + 1)] ->
    published[s]++;
    counted[CELL(s, published[s])] = 0;
    expected[CELL(s, published[s])] = NONE
  :: else -> break
  od;
#endif
}

/* proxy/engine/arrivals.cpp place: what is not ahead of the flag is stale; a correct sender's immediate never is */
inline place(s, e) {
  epoch = e;
  HOLDS(no_lost_or_double_count, epoch > published[s]);
  HOLDS(window_is_enough, epoch <= published[s] + WINDOW)
}

/* proxy/engine/arrivals.cpp arrive */
inline arrive(s, e) {
  writes_open[AT(s, e)]--;
  place(s, e);
#ifdef BUG_COUNT_FOR_THE_OPEN_EPOCH
  epoch = published[s] + 1;
#endif
  counted[CELL(s, epoch)]++;
#ifdef BUG_COUNT_TWICE
  counted[CELL(s, epoch)]++;
#endif
#ifdef BUG_PUBLISH_WITHOUT_ANNOUNCEMENT
  expected[CELL(s, epoch)] = counted[CELL(s, epoch)];
#endif
  HOLDS(no_lost_or_double_count, counted[CELL(s, epoch)] <= expected[CELL(s, epoch)] && counted[CELL(s, epoch)] <= WRITES);
  publish(s);
  epoch = 0
}

/* proxy/engine/arrivals.cpp expect: its header must still be there. A newer announcement of what was read may take the
 * place of an older one: it expects no write, and says all that the older one said. */
#ifdef BUG_ANNOUNCEMENTS_MUST_NOT_PASS
#define HEADER_IS_USABLE(s) (header_epoch[SET(s, epoch)] == epoch)
#else
#define HEADER_IS_USABLE(s) (header_epoch[SET(s, epoch)] == epoch || (phase == SPARE && header_epoch[SET(s, epoch)] > epoch))
#endif
#define RAISE(word, value) word = (value > word -> value : word)
inline expect(s, e) {
  header_open[AT(s, e)] = 0;
  place(s, e);
  HOLDS(no_header_overwritten_before_read, HEADER_IS_USABLE(s));
  expected[CELL(s, epoch)] = (phase == SPARE -> 0 : WRITES);
  RAISE(known[KNOWN(from, to, 0)], header_dispatch[SET(s, epoch)]);
  RAISE(known[KNOWN(from, to, 1)], header_combine[SET(s, epoch)]);
  publish(s);
  epoch = 0
}

/* What the engine may see next of one stream and one epoch. */
#define NEXT(e) \
  :: atomic { phase != SPARE && writes_open[AT(STREAM(from, to, phase), e)] > 0 -> arrive(STREAM(from, to, phase), e) } \
  :: atomic { header_open[AT(STREAM(from, to, phase), e)] -> expect(STREAM(from, to, phase), e) }

proctype Link(byte from; byte to; byte phase) {
  byte epoch;
end:
  do
  NEXT(1)
  NEXT(2)
#if EPOCHS > 2
  NEXT(3)
#endif
#if EPOCHS > 3
  NEXT(4)
#endif
  od
}

/* A write of another life of the buffer reaches the engine of rank 1 once, at any moment: its epoch is not ahead of the
 * flag, so `place` drops it. */
#define GHOST_STREAM STREAM(0, 1, 0)
proctype Ghost() {
  byte epoch;
  atomic {
    epoch = published[GHOST_STREAM];
    if
    :: epoch <= published[GHOST_STREAM] -> /* Outcome::kStale */
#ifdef BUG_STALE_EPOCH_COUNTS
      counted[CELL(GHOST_STREAM, published[GHOST_STREAM] + 1)]++;
#endif
      skip
    fi;
    epoch = published[GHOST_STREAM] + 1;
    HOLDS(no_stale_epoch_counted, epoch > EPOCHS || counted[CELL(GHOST_STREAM, epoch)] <=
          (sent[0] >= epoch -> WRITES - writes_open[AT(GHOST_STREAM, epoch)] : 0));
    ghost_came = 1
  }
}

/* A condition on every peer, and a step towards every peer. */
#define PEER(n) ((me + (n)) % RANKS)
#if RANKS == 2
#define ALL(condition) (condition(PEER(1)))
#define TO_ALL(step) step(PEER(1))
#else
#define ALL(condition) (condition(PEER(1)) && condition(PEER(2)))
#define TO_ALL(step) step(PEER(1)); step(PEER(2))
#endif

/* kernels/low_latency/common.h send_expect; the header lands */
#ifdef BUG_HEADER_SAYS_SENT
#define READ_SO_FAR sent[me * 2]
#else
#define READ_SO_FAR told[0]
#endif
#ifdef BUG_ONE_SET_OF_HEADERS
#undef SET
#define SET(s, e) ((s) * 2)
#endif
inline send_header(s, e) {
  header_open[AT(s, e)] = 1;
  header_epoch[SET(s, e)] = e;
  header_dispatch[SET(s, e)] = READ_SO_FAR;
  header_combine[SET(s, e)] = told[1]
}

/* kernels/low_latency/common.h wait_for_reuse */
#ifdef BUG_REUSE_ONE_TOO_EARLY
#define MAY_REUSE(peer) (known[KNOWN(peer, me, phase)] + 3 >= epoch)
#else
#define MAY_REUSE(peer) (known[KNOWN(peer, me, phase)] + 2 >= epoch)
#endif
/* kernels/low_latency/dispatch_send.h, combine_send.h: the rows land in the set of this epoch's parity */
#define SEND_CALL(peer) \
  HOLDS(no_buffer_overwritten_before_read, consumed[(peer) * 2 + phase] + 2 >= epoch); \
  writes_open[AT(STREAM(me, peer, phase), epoch)] = WRITES; \
  send_header(STREAM(me, peer, phase), epoch)
#define ANNOUNCE(peer) send_header(STREAM(me, peer, SPARE), announced)
/* kernels/low_latency/common.h wait_for_flag, and what must be there when it ends */
#define ARRIVED(peer) (published[STREAM(peer, me, phase)] >= epoch)
#define WHOLE(peer) (sent[(peer) * 2 + phase] >= epoch && writes_open[AT(STREAM(peer, me, phase), epoch)] == 0 && \
  !header_open[AT(STREAM(peer, me, phase), epoch)])
/* uccl_ep/low_latency/launch.py Epochs.overdue, after `sent` was raised for this call */
#define OVERDUE(p) (told[p] < consumed[me * 2 + p] && told[p] + 1 < sent[me * 2 + p])

#define RECEIVE(p) \
  :: atomic { \
      consumed[me * 2 + p] < sent[me * 2 + p] -> \
      phase = p; epoch = consumed[me * 2 + p] + 1; \
      ALL(ARRIVED); \
      HOLDS(no_early_publish, ALL(WHOLE)); \
      consumed[me * 2 + p] = epoch; phase = 0; epoch = 0 \
    }

proctype Rank(byte me) {
  byte call, phase, epoch, announced;
  byte told[2];
  bit due;
  do
  /* uccl_ep/low_latency/launch.py dispatch, combine, _announcement */
  :: atomic {
      call < SENDS && sent[me * 2 + ORDER] - consumed[me * 2 + ORDER] < 2 ->
      phase = ORDER;
      call++;
      sent[me * 2 + phase]++;
      epoch = sent[me * 2 + phase];
      due = (OVERDUE(0) || OVERDUE(1));
      told[0] = consumed[me * 2];
      told[1] = consumed[me * 2 + 1];
#ifndef BUG_NO_ANNOUNCEMENT
      if
      :: due ->
        announced++;
        HOLDS(window_is_enough, announced <= EPOCHS);
        TO_ALL(ANNOUNCE)
      :: else
      fi;
#endif
      due = 0;
      ALL(MAY_REUSE); /* waits; others go on meanwhile */
      TO_ALL(SEND_CALL);
      phase = 0; epoch = 0
    }
  /* kernels/low_latency/dispatch_recv.h, combine_recv.h: a phase that has a call outstanding */
  RECEIVE(0)
  RECEIVE(1)
  :: call == SENDS && consumed[me * 2] == sent[me * 2] && consumed[me * 2 + 1] == sent[me * 2 + 1] -> break
  od
}

init {
  byte i, j, p;
  atomic {
    for (i : 0 .. LINKS * PHASES * WINDOW - 1) { expected[i] = NONE }
    for (i : 0 .. RANKS - 1) {
      run Rank(i);
      for (j : 0 .. RANKS - 1) {
        for (p : 0 .. PHASES - 1) {
          if
          :: i != j -> run Link(i, j, p)
          :: else
          fi
        }
      }
    }
    run Ghost();
    i = 0; j = 0; p = 0
  }
}
