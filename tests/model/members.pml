/* prepare_members() and switch_members(), in uccl_ep/survival/standby.py: while ranks make steps together, each builds
 * the next life or fails to, two agreements follow, and all that live use the same life in every step.
 *
 * An agreement (uccl_ep/membership/agreed_values.py) is here what agreed_masks.pml shows of it: who lives is waited for;
 * what a rank said before it died counts for all or for none; and as long as one that knows lives and answers, nobody
 * decides otherwise. A rank that is cut off counts as dead. That ranks compare what they have prepared comes before, and
 * counts here as a rank that fails to build. Planted bugs: BUG_PASSES_ITS_PLEDGE, BUG_LOWEST_PLEDGE,
 * BUG_OWN_BUILD_DECIDES, BUG_ANSWERS_NO_MORE, BUG_THE_DEAD_ARE_WAITED_FOR. */
#include "promises.pml"

#ifndef RANKS
#define RANKS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef AHEAD
#define AHEAD 1 /* steps */
#endif
#ifndef STEPS
#define STEPS 3
#endif

PROMISE(one_life_in_every_step);
PROMISE(nobody_is_past_the_agreed_step);

#define BIT(rank) (1 << (rank))
#define ALL (BIT(RANKS) - 1)
#define LIVES(rank) (alive & BIT(rank))
#define LIFE(rank, step) life[(rank) * (STEPS + 1) + (step)]

mtype = { building, built, pledged, knows };

byte alive;
byte answers;                    /* whose messengers of the present life are open */
mtype phase[RANKS];
bit failed[RANKS];               /* to build */
byte calls[RANKS];               /* of switch_members: steps that are done */
byte pledge[RANKS];
bit switched[RANKS];
byte life[RANKS * (STEPS + 1)];  /* that a step is made in: 1, 2; 0: not yet made */
byte first;                      /* who knows the outcome of the first agreement */
bit stays[RANKS];                /* which is this */
byte at[RANKS];                  /* and that of the second: the step */

#ifdef BUG_THE_DEAD_ARE_WAITED_FOR
#define WAITED_FOR ALL
#else
#define WAITED_FOR (alive & answers)
#endif
#define HAS_BUILT(rank) (phase[rank] != building)
#define HAS_PLEDGED(rank) (phase[rank] == pledged || phase[rank] == knows)
#define KNOWS(rank) (phase[rank] == knows)
#define OR_GONE(rank, what) (!(WAITED_FOR & BIT(rank)) || what(rank))
#define OR_DEAD(rank, what) (!LIVES(rank) || what)
#define ANSWERS(rank) ((alive & answers & BIT(rank)) && phase[rank] == knows)
#if RANKS == 2
#define ALL_HAVE(what) (OR_GONE(0, what) && OR_GONE(1, what))
#define ALL_KNOW (OR_DEAD(0, KNOWS(0)) && OR_DEAD(1, KNOWS(1)))
#define ONE_ANSWERS (ANSWERS(0) || ANSWERS(1))
#define TOGETHER(step) (OR_DEAD(0, calls[0] >= step) && OR_DEAD(1, calls[1] >= step))
#else
#define ALL_HAVE(what) (OR_GONE(0, what) && OR_GONE(1, what) && OR_GONE(2, what))
#define ALL_KNOW (OR_DEAD(0, KNOWS(0)) && OR_DEAD(1, KNOWS(1)) && OR_DEAD(2, KNOWS(2)))
#define ONE_ANSWERS (ANSWERS(0) || ANSWERS(1) || ANSWERS(2))
#define TOGETHER(step) (OR_DEAD(0, calls[0] >= step) && OR_DEAD(1, calls[1] >= step) && OR_DEAD(2, calls[2] >= step))
#endif

/* Who is left: all that are waited for, and of the others that had come, any. */
inline choose(left, came) {
  left = 0;
  for (i : 0 .. RANKS - 1) {
    if
    :: (WAITED_FOR & BIT(i)) -> left = left | BIT(i)
    :: !(WAITED_FOR & BIT(i)) && (came) -> left = left | BIT(i)
    :: !(WAITED_FOR & BIT(i))
    fi
  }
  i = 0
}

/* The change on a thread of its own. */
proctype Change(byte me) {
  byte i, left, most;
  bit one_failed;
  if
  :: atomic { LIVES(me) -> failed[me] = 0; phase[me] = built }
  :: atomic { LIVES(me) -> failed[me] = 1; phase[me] = built }
  :: atomic { !LIVES(me) -> goto over }
  fi;
  /* The first agreement: whoever decides first decides for all, as long as one lives that knows. */
  if
  :: atomic { !LIVES(me) -> goto over }
  :: atomic {
      LIVES(me) && (alive & first) -> 
      skip
    }
  :: atomic {
      LIVES(me) && !(alive & first) && ALL_HAVE(HAS_BUILT) ->
      choose(left, HAS_BUILT(i));
      one_failed = 0;
      for (i : 0 .. RANKS - 1) {
        if
        :: (left & BIT(i)) && failed[i] -> one_failed = 1
        :: else
        fi
      }
      i = 0;
      for (i : 0 .. RANKS - 1) { stays[i] = one_failed }
      i = 0; left = 0; one_failed = 0;
      first = first | BIT(me)
    }
  fi;
  atomic {
    first = first | BIT(me);
#ifdef BUG_OWN_BUILD_DECIDES
    stays[me] = failed[me];
#endif
    pledge[me] = calls[me] + AHEAD;
    phase[me] = pledged
  }
  if
  :: atomic { !LIVES(me) -> goto over }
  :: atomic {
      LIVES(me) && ONE_ANSWERS ->
      for (i : 0 .. RANKS - 1) {
        if
        :: ANSWERS(i) -> at[me] = at[i]
        :: else
        fi
      }
      i = 0;
      phase[me] = knows;
      HOLDS(nobody_is_past_the_agreed_step, calls[me] <= at[me])
    }
  :: atomic {
      LIVES(me) && !ONE_ANSWERS && ALL_HAVE(HAS_PLEDGED) ->
      choose(left, HAS_PLEDGED(i));
      most = pledge[me];
      for (i : 0 .. RANKS - 1) {
        if
#ifdef BUG_LOWEST_PLEDGE
        :: (left & BIT(i)) && pledge[i] < most -> most = pledge[i]
#else
        :: (left & BIT(i)) && pledge[i] > most -> most = pledge[i]
#endif
        :: else
        fi
      }
      i = 0;
      at[me] = most;
      left = 0; most = 0;
      phase[me] = knows;
      HOLDS(nobody_is_past_the_agreed_step, calls[me] <= at[me])
    }
  fi;
over:
  skip
}

#define WAITS (phase[me] == pledged && calls[me] >= pledge[me])

/* The steps, which ranks make together, and a call of switch_members() after each. */
proctype Serve(byte me) {
  byte i;
  do
  :: atomic { !LIVES(me) || calls[me] == STEPS -> break }
#ifdef BUG_PASSES_ITS_PLEDGE
  :: atomic { LIVES(me) && calls[me] < STEPS && TOGETHER(calls[me]) ->
#else
  :: atomic { LIVES(me) && calls[me] < STEPS && TOGETHER(calls[me]) && !WAITS ->
#endif
      if
      :: phase[me] == knows && calls[me] >= at[me] && !stays[me] -> switched[me] = 1
      :: else
      fi;
      LIFE(me, calls[me] + 1) = 1 + switched[me];
      for (i : 0 .. RANKS - 1) {
        HOLDS(one_life_in_every_step,
              !LIVES(i) || !LIFE(i, calls[me] + 1) || LIFE(i, calls[me] + 1) == LIFE(me, calls[me] + 1))
      }
      i = 0;
      calls[me]++
    }
  /* A rank that has switched closes the old life's messenger, when nobody that lives needs it to decide. */
#ifdef BUG_ANSWERS_NO_MORE
  :: atomic { switched[me] && (answers & BIT(me)) -> answers = answers & ~BIT(me) }
#else
  :: atomic { switched[me] && (answers & BIT(me)) && ALL_KNOW -> answers = answers & ~BIT(me) }
#endif
  od
}

proctype Death() {
  byte deaths;
end:
  do
  :: atomic { deaths < DEATHS && LIVES(0) -> alive = alive & ~BIT(0); deaths++ }
  :: atomic { deaths < DEATHS && LIVES(1) -> alive = alive & ~BIT(1); deaths++ }
  :: atomic { deaths < DEATHS && RANKS > 2 && LIVES(2) -> alive = alive & ~BIT(2); deaths++ }
  od
}

init {
  byte i;
  atomic {
    alive = ALL; answers = ALL;
    for (i : 0 .. RANKS - 1) {
      phase[i] = building;
      run Change(i);
      run Serve(i)
    }
    i = 0;
    run Death()
  }
}
