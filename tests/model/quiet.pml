/* One ring's commands through its poster: taken in ticket order within the peers' room, delivered and completed in any
 * order; `done` is the leading run; a QUIET returns, and source bytes are used again, when `done` has passed them. */
#include "promises.pml"

#ifdef LONG
#define COMMANDS 7
#define EACH EACH_OF_7
#else
#define COMMANDS 6
#define EACH EACH_OF_6
#endif
#ifndef QUIETS
#define QUIETS(t) ((t) % 3 == 2) /* which tickets are QUIET */
#endif
#ifndef ROOM
#define ROOM 1 /* EngineSettings::max_in_flight */
#endif
#define PEER(t) ((t) % 2)

PROMISE(quiet_only_after_completion);
PROMISE(no_source_overwritten_before_it_was_sent);
PROMISE(in_flight_stays_within_its_limit);

byte pushed, taken, done;
bit on_its_way[COMMANDS], arrived[COMMANDS], complete[COMMANDS];
byte in_flight[2];

/* proxy/engine/poster.cpp take_write, finish; ledger.h has_room */
proctype Poster() {
  do
  :: atomic {
      taken < pushed && QUIETS(taken) -> complete[taken] = 1; taken++
    }
  :: atomic {
#ifdef BUG_ROOM_OFF_BY_ONE
      taken < pushed && !QUIETS(taken) && in_flight[PEER(taken)] <= ROOM ->
#else
      taken < pushed && !QUIETS(taken) && in_flight[PEER(taken)] < ROOM ->
#endif
      in_flight[PEER(taken)]++;
      HOLDS(in_flight_stays_within_its_limit, in_flight[PEER(taken)] <= ROOM);
      on_its_way[taken] = 1;
#ifdef BUG_COMPLETE_WHEN_POSTED
      complete[taken] = 1;
      in_flight[PEER(taken)]--;
#endif
      taken++
    }
  /* proxy/engine/poster.cpp settle, publish_done */
#ifdef BUG_DONE_IS_THE_NEWEST_COMPLETE
  :: atomic { done < taken && complete[taken - 1] -> done = taken }
#endif
  :: atomic { done < taken && complete[done] -> done++ }
  :: done == COMMANDS -> break
  od
}

/* proxy/transport: a write completes when it and its immediate have reached the receiver */
#ifdef BUG_ROOM_IS_NOT_GIVEN_BACK
#define GIVE_BACK(t)
#else
#define GIVE_BACK(t) in_flight[PEER(t)]--
#endif
#define DELIVER(t) \
  :: atomic { on_its_way[t] -> on_its_way[t] = 0; arrived[t] = 1 } \
  :: atomic { arrived[t] && !complete[t] -> complete[t] = 1; GIVE_BACK(t) }
proctype Network() {
end:
  do
  EACH(DELIVER)
  od
}

/* A kernel: kernels/device/ring_push.h push, wait_done */
proctype Kernel() {
  byte t, before;
  do
  :: pushed < COMMANDS -> pushed++
  :: atomic {
      t < COMMANDS && QUIETS(t) && pushed > t &&
#ifdef BUG_QUIET_RETURNS_WHEN_TAKEN
      taken > t ->
#else
      done > t ->
#endif
      before = 0;
      do
      :: before < t ->
        HOLDS(quiet_only_after_completion, QUIETS(before) || arrived[before]);
        before++
      :: else -> break
      od;
      before = 0;
      t++
    }
  :: atomic { /* the bytes that this command sent are written again */
      t < COMMANDS && !QUIETS(t) && done > t ->
      HOLDS(no_source_overwritten_before_it_was_sent, arrived[t]);
      t++
    }
  :: t < COMMANDS && !QUIETS(t) -> t++ /* or they are not, so nothing waits for it but a QUIET */
  :: t == COMMANDS && pushed == COMMANDS -> break
  od
}

init {
  atomic { run Poster(); run Network(); run Kernel() }
}
