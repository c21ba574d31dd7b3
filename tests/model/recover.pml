/* recover(): who is left, and whether they may go on. No link and no clock is here: any rank may give any other up at
 * any time, however alive it is, and any word may be late or lost. That is every cut, every stop, and every namespace.
 * Ranks of HOST see each other's deaths; every other rank is on a host of its own. Nobody allows a minority.
 * Nor is there a quorum or a new life with AGREED_MASKS (agreed_masks.pml). */
#include "promises.pml"

#ifndef RANKS
#define RANKS 3
#endif
#ifndef HOST
#define HOST 5 /* ranks 0 and 2 */
#endif
#ifndef GENERATIONS
#define GENERATIONS 2
#endif
#ifndef TRIES
#define TRIES 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

PROMISE(never_two_groups);
PROMISE(nobody_is_refused_in_a_group_that_goes_on);

#define BIT(rank) (1 << (rank))
#define ALL (BIT(RANKS) - 1)
#define COUNT(ranks) (((ranks) & 1) + ((ranks) >> 1 & 1) + ((ranks) >> 2 & 1) + ((ranks) >> 3 & 1))
#define LOWEST(ranks) ((ranks) & (~(ranks) + 1))
#define SEES(me, other) (((HOST) & BIT(me)) && ((HOST) & BIT(other)))

/* uccl_ep/membership/quorum.py reached */
#define HERE(me) (MEMBERS(me) & ~suspects[me] & COUNTED(me))
#define COUNTED(me) (base[me] & ~dead[me])
#if defined(BUG_NO_QUORUM) || defined(AGREED_MASKS)
#define REACHED(me) 1
#elif defined(BUG_HALF_IS_ENOUGH)
#define REACHED(me) (2 * COUNT(HERE(me)) >= COUNT(COUNTED(me)))
#else
#define REACHED(me) (2 * COUNT(HERE(me)) > COUNT(COUNTED(me)) || \
                     (2 * COUNT(HERE(me)) == COUNT(COUNTED(me)) && (LOWEST(COUNTED(me)) & HERE(me))))
#endif

mtype = { on, proposing, confirming, decided, refused, excluded };

byte alive;
mtype phase[RANKS];
byte generation[RANKS], try[RANKS];
byte decision[RANKS * (GENERATIONS + 1)]; /* members, by generation; 0: none yet */
byte started[RANKS];                      /* generations whose members have all given this rank their first part */
byte suspects[RANKS], dead[RANKS];        /* uccl_ep/membership/agreement.py */
bit backed[RANKS];
byte proposed[RANKS], confirmed[RANKS];   /* who has said this rank's suspects to it */
bit heard_backed[RANKS];
byte base[RANKS];                         /* uccl_ep/membership/quorum.py */
byte against[RANKS * RANKS];              /* uccl_ep/membership/neighbours.py: generation of a vote, in the memory of who it is against */
byte life[RANKS];                         /* members of the life that this rank works in; 0: none */
byte refused_group[RANKS], refused_generation[RANKS], refused_try[RANKS];

#define DECISION(rank, number) decision[(rank) * (GENERATIONS + 1) + (number)]
#define MEMBERS(rank) DECISION(rank, generation[rank])
#define VOTE(by, whom) against[(by) * RANKS + (whom)]
#define LIVES(rank) (alive & BIT(rank))
#define GROUP(me) (MEMBERS(me) & ~suspects[me])
#define OTHERS(me) (GROUP(me) & ~BIT(me))
#define AGREES(rank) (phase[rank] == proposing || phase[rank] == confirming)

inline propose(me) {
#ifndef BUG_OLD_CONFIRMATIONS_COUNT
  proposed[me] = 0; confirmed[me] = 0;
#endif
  phase[me] = proposing; backed[me] = 0; heard_backed[me] = 0
}

inline begin(me) {
  if
  :: phase[me] == refused -> try[me]++
  :: else -> try[me] = 1
  fi;
  life[me] = 0;
  suspects[me] = ALL & ~MEMBERS(me);
  propose(me)
}

inline decide(me, members) {
  DECISION(me, generation[me] + 1) = members; /* which may be an expression of the generation */
  generation[me]++;
#ifdef BUG_WHAT_WAS_AGREED_IS_THE_BASE
  base[me] = MEMBERS(me);
#endif
#ifdef AGREED_MASKS
  for (i : 0 .. RANKS - 1) {
    HOLDS(ranks_that_keep_each_other_mask_alike,
          !(DECISION(i, 1) & BIT(me)) || !(DECISION(me, 1) & BIT(i)) || DECISION(i, 1) == DECISION(me, 1))
  }
  i = 0;
#endif
  phase[me] = decided
}

/* All have confirmed the same suspects. */
inline count(me) {
#ifdef BUG_OWN_KNOWLEDGE_ONLY
  if
  :: backed[me] ->
#else
  if
  :: backed[me] || heard_backed[me] ->
#endif
    for (i : 0 .. RANKS - 1) {
      HOLDS(nobody_is_refused_in_a_group_that_goes_on,
            !(refused_group[i] == GROUP(me) && refused_generation[i] == generation[me] && refused_try[i] == try[me]))
    }
    decide(me, GROUP(me))
  :: else ->
    for (i : 0 .. RANKS - 1) {
      HOLDS(nobody_is_refused_in_a_group_that_goes_on,
            !(GROUP(me) & BIT(i)) || generation[i] <= generation[me] ||
            DECISION(i, generation[me] + 1) != GROUP(me))
    }
    refused_group[me] = GROUP(me); refused_generation[me] = generation[me]; refused_try[me] = try[me];
    phase[me] = refused
  fi;
  i = 0
}

inline vote(me) {
  for (i : 0 .. RANKS - 1) {
    if
    :: SEES(me, i) && (suspects[me] & BIT(i)) && (MEMBERS(me) & BIT(i)) -> VOTE(me, i) = generation[me] + 1
    :: else
    fi
  }
  i = 0;
  backed[me] = (REACHED(me) -> 1 : 0);
  phase[me] = confirming
}

/* uccl_ep/session/session.py: the exchanges of a start. A rank gives its second part when it has the first of all members, which
 * have decided alike; and goes on when it has the second of all. */
#define GAVE(rank) (!(MEMBERS(me) & BIT(rank)) || DECISION(rank, generation[me]) == MEMBERS(me))
#define STARTED(rank) (!(MEMBERS(me) & BIT(rank)) || (started[rank] & BIT(generation[me])))
#if RANKS == 4
#define ALL_GAVE (GAVE(0) && GAVE(1) && GAVE(2) && GAVE(3))
#define ALL_STARTED (STARTED(0) && STARTED(1) && STARTED(2) && STARTED(3))
#else
#define ALL_GAVE (GAVE(0) && GAVE(1) && GAVE(2))
#define ALL_STARTED (STARTED(0) && STARTED(1) && STARTED(2))
#endif

inline go_on(me) {
  phase[me] = on;
  life[me] = MEMBERS(me);
  base[me] = MEMBERS(me); /* settle */
  for (i : 0 .. RANKS - 1) {
    if
    :: VOTE(i, me) <= generation[me] -> VOTE(i, me) = 0
    :: else
    fi;
    HOLDS(never_two_groups, !LIVES(i) || !life[i] || (life[i] & BIT(me)) || (life[me] & BIT(i)))
  }
  i = 0
}

/* agreement.py _note */
#define SAID(other) (OTHERS(me) & BIT(other) && AGREES(other) && generation[other] == generation[me] && \
                     try[other] == try[me] && !(suspects[other] & BIT(me)))
#define SAME(other) (suspects[other] == suspects[me])
#define NEWS(other) ((suspects[other] & ~suspects[me]) || (dead[other] & ~dead[me]) || \
                     (SAME(other) && (!(proposed[me] & BIT(other)) || \
                                      (phase[other] == confirming && !(confirmed[me] & BIT(other))))))
inline hear(me, other) {
  dead[me] = dead[me] | (dead[other] & ~BIT(me));
  if
  :: suspects[other] & ~suspects[me] -> suspects[me] = suspects[me] | suspects[other]; propose(me)
  :: else
  fi;
  if
  :: SAME(other) ->
    proposed[me] = proposed[me] | BIT(other);
    if
    :: phase[other] == confirming ->
      confirmed[me] = confirmed[me] | BIT(other);
      heard_backed[me] = heard_backed[me] | backed[other]
    :: else
    fi
  :: else
  fi
}

#ifdef BUG_VOTES_ARE_NOT_TOLD
#define HAS_VOTED(other) 0
#else
#define HAS_VOTED(other) VOTE(other, me)
#endif
#ifdef BUG_A_CONNECTIONS_END_IS_PROOF
#define PROVEN(other) 1
#else
#define PROVEN(other) (SEES(me, other) && !LIVES(other) && !HAS_VOTED(other))
#endif

#ifdef BUG_NOBODY_IS_GIVEN_UP
#define GIVES_UP 0
#else
#define GIVES_UP 1
#endif

#if defined(AGREED_MASKS) && !defined(BUG_SUSPECTS_DECIDE)
#define HEEDS(other) !(suspects[me] & BIT(other))
#else
#define HEEDS(other) 1
#endif

#define WITH(other) \
  :: atomic { GIVES_UP && (OTHERS(me) & BIT(other)) -> suspects[me] = suspects[me] | BIT(other); propose(me) } \
  :: atomic { (suspects[me] & base[me] & ~dead[me] & BIT(other)) && PROVEN(other) -> dead[me] = dead[me] | BIT(other) } \
  :: atomic { SAID(other) && NEWS(other) -> hear(me, other) } \
  :: atomic { (MEMBERS(me) & BIT(other)) && AGREES(other) && generation[other] == generation[me] && \
              try[other] > try[me] -> \
    try[me] = try[other]; suspects[me] = ALL & ~MEMBERS(me); propose(me) } \
  :: atomic { (MEMBERS(me) & BIT(other)) && HEEDS(other) && generation[other] > generation[me] -> \
    if \
    :: DECISION(other, generation[me] + 1) & BIT(me) -> decide(me, DECISION(other, generation[me] + 1)) \
    :: else -> phase[me] = excluded \
    fi; \
    goto works }

proctype Rank(byte me) {
  byte i;
works:
end:
  do
#ifndef AGREED_MASKS
  :: atomic {
      LIVES(me) && phase[me] == decided && !(started[me] & BIT(generation[me])) && ALL_GAVE ->
      started[me] = started[me] | BIT(generation[me])
    }
  :: atomic { LIVES(me) && phase[me] == decided && ALL_STARTED -> go_on(me) }
#endif
  :: atomic {
      LIVES(me) && generation[me] < GENERATIONS &&
      (phase[me] == on || phase[me] == decided || (phase[me] == refused && try[me] < TRIES)) ->
      begin(me);
      goto agrees
    }
  od;
agrees:
  do
  :: atomic { !LIVES(me) -> goto works }
  :: atomic {
      LIVES(me) && phase[me] == proposing && (proposed[me] & OTHERS(me)) == OTHERS(me) -> vote(me)
    }
  :: atomic {
      LIVES(me) && phase[me] == confirming && (confirmed[me] & OTHERS(me)) == OTHERS(me) ->
      count(me);
      goto works
    }
  WITH(0)
  WITH(1)
  WITH(2)
#if RANKS == 4
  WITH(3)
#endif
  od
}

proctype Death() {
  byte deaths;
end:
  do
  :: atomic { deaths < DEATHS && LIVES(0) -> alive = alive & ~BIT(0); deaths++ }
  :: atomic { deaths < DEATHS && LIVES(1) -> alive = alive & ~BIT(1); deaths++ }
  :: atomic { deaths < DEATHS && LIVES(2) -> alive = alive & ~BIT(2); deaths++ }
#if RANKS == 4
  :: atomic { deaths < DEATHS && LIVES(3) -> alive = alive & ~BIT(3); deaths++ }
#endif
  od
}

init {
  byte i;
  atomic {
    alive = ALL;
    for (i : 0 .. RANKS - 1) {
      phase[i] = on; life[i] = ALL; base[i] = ALL; DECISION(i, 0) = ALL;
      run Rank(i)
    }
    i = 0;
    run Death()
  }
}
