/* BARRIER: every rank writes, then meets, ROUNDS times. A round is QUIET of the rank's rings, then an immediate to and
 * from every peer; immediates overtake each other, a later round may come before an earlier one's. */
#include "promises.pml"

#ifndef RANKS
#define RANKS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

PROMISE(barrier_orders_data);
PROMISE(nobody_leaves_before_all_entered);

#define PAIR(from, to) ((from) * RANKS + (to))
#define MESSAGE(from, to, round) (PAIR(from, to) * ROUNDS + (round) - 1)

byte entered[RANKS];
bit data_air[RANKS * RANKS], data_here[RANKS * RANKS * ROUNDS]; /* a rank's one write before each round, to its next */
bit immediate_air[RANKS * RANKS * ROUNDS];
byte heard[RANKS * RANKS]; /* proxy/engine/barrier.h heard_ */
byte published[RANKS];

#define NEXT_RANK(me) (((me) + 1) % RANKS)

/* proxy/engine/barrier.cpp arrived: a later round stands for the earlier ones */
inline hear(from, to, round) {
  immediate_air[MESSAGE(from, to, round)] = 0;
#ifdef BUG_HEARD_GOES_BACK
  heard[PAIR(to, from)] = round
#else
  if
  :: round > heard[PAIR(to, from)] -> heard[PAIR(to, from)] = round
  :: else
  fi
#endif
}

proctype Link(byte from; byte to) {
end:
  do
  :: atomic { data_air[PAIR(from, to)] -> data_air[PAIR(from, to)] = 0; data_here[MESSAGE(from, to, entered[from])] = 1 }
  :: atomic { immediate_air[MESSAGE(from, to, 1)] -> hear(from, to, 1) }
#if ROUNDS > 1
  :: atomic { immediate_air[MESSAGE(from, to, 2)] -> hear(from, to, 2) }
#endif
  od
}

#ifdef BUG_HEARD_THIS_ROUND_ONLY
#define HEARD(other) (heard[PAIR(me, other)] == entered[me])
#else
#define HEARD(other) (heard[PAIR(me, other)] >= entered[me])
#endif

proctype Rank(byte me) {
  byte other;
  do
  :: entered[me] < ROUNDS ->
    atomic { entered[me]++; data_air[PAIR(me, NEXT_RANK(me))] = 1 }
#ifndef BUG_NO_QUIET_FIRST
    (!data_air[PAIR(me, NEXT_RANK(me))]); /* kernels/collective/barrier.h await_sent, then take_barrier */
#endif
    /* proxy/engine/barrier.cpp progress: tells each peer, then waits for each */
    other = 0;
    do
    :: atomic { other < RANKS -> if :: other != me -> immediate_air[MESSAGE(me, other, entered[me])] = 1 :: else fi; other++ }
    :: other == RANKS -> break
    od;
    other = 0;
    do
#ifdef BUG_ONE_PEER_IS_ENOUGH
    :: atomic { other < RANKS && other != me && HEARD(other) -> other = RANKS }
#endif
    :: atomic { other < RANKS && (other == me || HEARD(other)) -> other++ }
#ifdef BUG_LEAVES_AT_ONCE
    :: other = RANKS
#endif
    :: other == RANKS -> break
    od;
    atomic {
      published[me] = entered[me];
      for (other : 0 .. RANKS - 1) {
        HOLDS(nobody_leaves_before_all_entered, entered[other] >= published[me]);
        HOLDS(barrier_orders_data, data_here[MESSAGE(other, NEXT_RANK(other), published[me])])
      }
      other = 0
    }
  :: else -> break
  od
}

init {
  byte i, j;
  atomic {
    for (i : 0 .. RANKS - 1) {
      run Rank(i);
      for (j : 0 .. RANKS - 1) {
        if
        :: i != j -> run Link(i, j)
        :: else
        fi
      }
    }
    i = 0; j = 0
  }
}
