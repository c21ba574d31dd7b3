/* The command ring: tickets, lap parity in both words of a slot, torn reads, cached and real tail. Several producers, one
 * consumer. Bugs to plant: see models.py. */
#include "promises.pml"

#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef PUSHES
#define PUSHES 3 /* commands of each producer */
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#define TICKETS (PRODUCERS * PUSHES)

PROMISE(no_slot_overwritten_before_read);
PROMISE(no_torn_command);
PROMISE(no_lost_or_double_command);

byte head, tail, cached; /* proxy/ring/layout.h RingHeader */
byte lo[SLOTS], hi[SLOTS];           /* the words: which ticket's command they hold, plus 1; 0 = never written */
bit lo_parity[SLOTS], hi_parity[SLOTS];
byte next; /* proxy/ring/consumer.h next_: commands below it were taken */
byte taken[TICKETS]; /* oracle: how often each command was taken */
byte finished;

/* proxy/wire/command.h lap_parity: lap 0 is written with 1, memory starts as 0 */
#ifdef BUG_ONE_PARITY
#define LAP(ticket) 1
#else
#define LAP(ticket) (1 - (((ticket) / SLOTS) % 2))
#endif

/* kernels/device/ring_push.h push, ring_room, ring_store */
proctype Producer() {
  byte ticket, seen, pushed;
  do
  :: pushed < PUSHES ->
#ifdef BUG_TICKET_IN_TWO_STEPS
    ticket = head;
    head = ticket + 1;
#else
    atomic { ticket = head; head++ } /* fetch_add on `head` */
#endif
    seen = cached; /* relaxed, racy: another producer may set it back */
#ifdef BUG_ROOM_OFF_BY_ONE
#define ROOM(t) (ticket - (t) <= SLOTS)
#else
#define ROOM(t) (ticket - (t) < SLOTS)
#endif
    do
    :: ROOM(seen) -> break
#ifndef BUG_REAL_TAIL_NEVER_READ
    :: !ROOM(seen) && tail != seen -> /* a spin that would see the same tail is left out */
      seen = tail; /* acquire */
#ifdef BUG_CACHED_TAIL_IS_HEAD
      seen = head;
#endif
      cached = seen
#endif
    od;
    /* One 16-byte store on a GPU, two stores on a host: the consumer may see the words in either order. */
    HOLDS(no_slot_overwritten_before_read, ticket < SLOTS || next > ticket - SLOTS);
    if
    :: atomic { hi[ticket % SLOTS] = ticket + 1; hi_parity[ticket % SLOTS] = LAP(ticket) };
       atomic { lo[ticket % SLOTS] = ticket + 1; lo_parity[ticket % SLOTS] = LAP(ticket) }
    :: atomic { lo[ticket % SLOTS] = ticket + 1; lo_parity[ticket % SLOTS] = LAP(ticket) };
       atomic { hi[ticket % SLOTS] = ticket + 1; hi_parity[ticket % SLOTS] = LAP(ticket) }
    fi;
    pushed++
  :: else -> break
  od;
  finished++
}

/* proxy/ring/consumer.h peek, advance, publish_tail; proxy/engine/poster.cpp turn */
proctype Consumer() {
  byte low, high;
  bit torn;
  do
  :: next < TICKETS ->
    /* A turn takes what it finds, then publishes the tail once. Waiting for parity stands for polling. */
    do
    :: atomic { lo_parity[next % SLOTS] == LAP(next) -> low = lo[next % SLOTS] };
       torn = (hi_parity[next % SLOTS] != LAP(next));
       high = hi[next % SLOTS];
#ifdef BUG_PARITY_IN_ONE_WORD
       torn = 0;
#endif
       if
       :: torn -> (hi_parity[next % SLOTS] == LAP(next)) /* peek says "nothing yet"; both words are read again */
       :: else ->
         HOLDS(no_torn_command, low == high);
         d_step {
           if
           :: low > 0 -> taken[low - 1]++
           :: else
           fi
         }
         /* In ticket order, each once. */
         HOLDS(no_lost_or_double_command, low == next + 1 && taken[next] == 1);
         next++;
         break
       fi
    od;
    if
#ifndef BUG_TAIL_NOT_PUBLISHED
    :: tail = next /* release */
#endif
    :: next < TICKETS && next - tail < SLOTS -> skip /* goes on in the same turn: another command may be there */
#ifdef BUG_TAIL_BEFORE_READ
    :: tail = next + 1
#endif
#ifdef BUG_TAIL_NOT_PUBLISHED
    :: else -> skip
#endif
    fi
  :: else -> break
  od;
  finished++
}

init {
  byte i;
  atomic {
    for (i : 1 .. PRODUCERS) { run Producer() }
    run Consumer()
  }
}

ltl progress { <> (finished == PRODUCERS + 1) }
