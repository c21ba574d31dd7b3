"""The models, their configurations, the promises they make, and the bugs that show that each promise can be broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """One configuration of one file; `promises` are the names that it asserts, and `progress`."""

    name: str
    file: str
    defines: tuple[str, ...]
    promises: tuple[str, ...]
    quick: bool = False
    fair: bool = False  # also check the formula `progress` under weak fairness: the model retries


@dataclass(frozen=True)
class Bug:
    """A planted bug: the checker must say that one of `breaks` is broken."""

    define: str
    file: str
    breaks: tuple[str, ...]
    also: tuple[str, ...] = ()  # the configuration in which it shows


RING = ("no_slot_overwritten_before_read", "no_torn_command", "no_lost_or_double_command", "progress")
LOW_LATENCY = (
    "no_early_publish",
    "no_buffer_overwritten_before_read",
    "no_header_overwritten_before_read",
    "no_lost_or_double_count",
    "no_stale_epoch_counted",
    "window_is_enough",
    "progress",
)
STREAM = (
    "no_slot_overwritten_before_read",
    "no_early_publish",
    "no_lost_or_double_count",
    "window_never_overflows",
    "credit_never_ahead_of_the_reader",
    "progress",
)
QUIET = (
    "quiet_only_after_completion",
    "no_source_overwritten_before_it_was_sent",
    "in_flight_stays_within_its_limit",
    "progress",
)
BARRIER = ("barrier_orders_data", "nobody_leaves_before_all_entered", "progress")
RECOVER = ("never_two_groups", "nobody_is_refused_in_a_group_that_goes_on", "progress")
AGREED_MASKS = ("ranks_that_keep_each_other_mask_alike", "progress")
MEMBERS = ("one_life_in_every_step", "nobody_is_past_the_agreed_step", "progress")

# What only dispatches, with two outstanding, is where announcements are needed.
_DISPATCHES = ("ORDER=0", "SENDS=3")

MODELS = (
    Model("ring, 2 producers x 3, 2 slots", "ring.pml", (), RING, quick=True, fair=True),
    Model("ring, 3 producers x 2, 2 slots", "ring.pml", ("PRODUCERS=3", "PUSHES=2"), RING),
    Model("ring, 2 producers x 4, 4 slots", "ring.pml", ("PUSHES=4", "SLOTS=4"), RING),
    Model("epochs, 2 ranks, 3 dispatches", "low_latency.pml", _DISPATCHES, LOW_LATENCY, quick=True),
    Model("epochs, 2 ranks, 4 dispatches", "low_latency.pml", ("ORDER=0", "SENDS=4"), LOW_LATENCY),
    Model("epochs, 2 ranks, 2 writes", "low_latency.pml", (*_DISPATCHES, "WRITES=2", "EPOCHS=3"), LOW_LATENCY),
    Model("epochs, 2 ranks, both phases", "low_latency.pml", ("SENDS=3", "EPOCHS=2"), LOW_LATENCY),
    Model("epochs, 3 ranks, 1 dispatch", "low_latency.pml", ("RANKS=3", "ORDER=0", "SENDS=1", "EPOCHS=2"), LOW_LATENCY),
    Model("stream, 6 chunks", "stream.pml", (), STREAM, quick=True),
    Model("stream, 7 chunks", "stream.pml", ("LONG",), STREAM),
    Model("stream, 6 chunks, some twice", "stream.pml", ("ANY_AGAIN",), STREAM),
    # As many slots as chunks: nothing but the in-flight bound keeps the window from overflowing.
    Model("stream, more slots than window", "stream.pml", ("FIELD=4", "SLOTS=6"), STREAM),
    Model("quiet, 6 commands", "quiet.pml", (), QUIET, quick=True),
    Model("quiet, 7 commands, 2 in flight", "quiet.pml", ("LONG", "ROOM=2"), QUIET),
    Model("barrier, 3 ranks, 2 rounds", "barrier.pml", (), BARRIER),
    Model("barrier, 2 ranks, 2 rounds", "barrier.pml", ("RANKS=2",), BARRIER, quick=True),
    Model("recover, 3 ranks, 1 life", "recover.pml", ("GENERATIONS=1",), RECOVER, quick=True),
    Model("recover, 3 ranks, 2 lives", "recover.pml", (), RECOVER),
    Model("recover, 2 tries", "recover.pml", ("GENERATIONS=1", "TRIES=2"), RECOVER),
    Model("recover, one host, 2 deaths", "recover.pml", ("HOST=7", "DEATHS=2", "GENERATIONS=1"), RECOVER),
    Model("recover, 4 ranks", "recover.pml", ("RANKS=4", "DEATHS=0", "GENERATIONS=1"), RECOVER),
    Model("agreed masks, 3 ranks, 2 deaths", "agreed_masks.pml", ("DEATHS=2",), AGREED_MASKS, quick=True),
    Model("agreed masks, 4 ranks", "agreed_masks.pml", ("RANKS=4", "DEATHS=0"), AGREED_MASKS),
    Model("members, 3 ranks, 2 steps", "members.pml", ("STEPS=2",), MEMBERS, quick=True),
    Model("members, 3 ranks, 3 steps", "members.pml", (), MEMBERS),
    Model("members, 3 ranks, 2 deaths", "members.pml", ("STEPS=2", "DEATHS=2"), MEMBERS),
    Model("members, 2 ranks, pledges 2 ahead", "members.pml", ("RANKS=2", "STEPS=4", "AHEAD=2"), MEMBERS),
)  # fmt: skip

BUGS = (
    Bug("BUG_ONE_PARITY", "ring.pml", ("no_lost_or_double_command",)),
    Bug("BUG_TICKET_IN_TWO_STEPS", "ring.pml", ("no_lost_or_double_command", "progress")),
    Bug("BUG_ROOM_OFF_BY_ONE", "ring.pml", ("no_slot_overwritten_before_read",)),
    Bug("BUG_CACHED_TAIL_IS_HEAD", "ring.pml", ("no_slot_overwritten_before_read",)),
    Bug("BUG_TAIL_BEFORE_READ", "ring.pml", ("no_slot_overwritten_before_read",)),
    Bug("BUG_PARITY_IN_ONE_WORD", "ring.pml", ("no_torn_command",)),
    Bug("BUG_REAL_TAIL_NEVER_READ", "ring.pml", ("progress",)),
    Bug("BUG_TAIL_NOT_PUBLISHED", "ring.pml", ("progress",)),
    Bug("BUG_PUBLISH_WITHOUT_ANNOUNCEMENT", "low_latency.pml", ("no_early_publish", "no_lost_or_double_count"),
        (*_DISPATCHES, "WRITES=2")),
    Bug("BUG_PUBLISH_ANY_COMPLETE_EPOCH", "low_latency.pml", ("no_early_publish",), _DISPATCHES),
    Bug("BUG_COUNT_FOR_THE_OPEN_EPOCH", "low_latency.pml", ("no_early_publish", "no_lost_or_double_count"),
        _DISPATCHES),
    Bug("BUG_COUNT_TWICE", "low_latency.pml", ("no_lost_or_double_count",), _DISPATCHES),
    Bug("BUG_REUSE_ONE_TOO_EARLY", "low_latency.pml", ("no_buffer_overwritten_before_read",), _DISPATCHES),
    Bug("BUG_HEADER_SAYS_SENT", "low_latency.pml", ("no_buffer_overwritten_before_read",), _DISPATCHES),
    Bug("BUG_ONE_SET_OF_HEADERS", "low_latency.pml", ("no_header_overwritten_before_read",), _DISPATCHES),
    Bug("BUG_ANNOUNCEMENTS_MUST_NOT_PASS", "low_latency.pml", ("no_header_overwritten_before_read",),
        ("ORDER=0", "SENDS=4")),
    Bug("BUG_STALE_EPOCH_COUNTS", "low_latency.pml", ("no_stale_epoch_counted",), _DISPATCHES),
    Bug("BUG_WINDOW_OF_ONE", "low_latency.pml", ("window_is_enough",), _DISPATCHES),
    Bug("BUG_NO_ANNOUNCEMENT", "low_latency.pml", ("progress",), _DISPATCHES),
    Bug("BUG_SLOT_OFF_BY_ONE", "stream.pml", ("no_slot_overwritten_before_read",)),
    Bug("BUG_TAIL_PASSES_A_GAP", "stream.pml", ("no_early_publish",)),
    Bug("BUG_PARKED_TWICE", "stream.pml", ("no_lost_or_double_count", "progress"), ("ANY_AGAIN",)),
    Bug("BUG_NEXT_COUNTS_TWICE", "stream.pml", ("no_lost_or_double_count", "no_early_publish")),
    Bug("BUG_NO_WINDOW", "stream.pml", ("window_never_overflows",), ("FIELD=4", "SLOTS=6")),
    Bug("BUG_NO_GATE", "stream.pml", ("credit_never_ahead_of_the_reader",)),
    Bug("BUG_CREDIT_BEFORE_READ", "stream.pml", ("credit_never_ahead_of_the_reader",)),
    Bug("BUG_CREDIT_GOES_BACK", "stream.pml", ("progress",)),
    Bug("BUG_QUIET_RETURNS_WHEN_TAKEN", "quiet.pml", ("quiet_only_after_completion",)),
    Bug("BUG_COMPLETE_WHEN_POSTED", "quiet.pml", ("no_source_overwritten_before_it_was_sent",
        "quiet_only_after_completion")),
    Bug("BUG_DONE_IS_THE_NEWEST_COMPLETE", "quiet.pml", ("no_source_overwritten_before_it_was_sent",
        "quiet_only_after_completion")),
    Bug("BUG_ROOM_OFF_BY_ONE", "quiet.pml", ("in_flight_stays_within_its_limit",)),
    Bug("BUG_ROOM_IS_NOT_GIVEN_BACK", "quiet.pml", ("progress",)),
    Bug("BUG_NO_QUIET_FIRST", "barrier.pml", ("barrier_orders_data",)),
    Bug("BUG_ONE_PEER_IS_ENOUGH", "barrier.pml", ("nobody_leaves_before_all_entered", "barrier_orders_data")),
    Bug("BUG_LEAVES_AT_ONCE", "barrier.pml", ("nobody_leaves_before_all_entered",), ("RANKS=2", "ROUNDS=1")),
    Bug("BUG_HEARD_THIS_ROUND_ONLY", "barrier.pml", ("progress",)),
    Bug("BUG_HEARD_GOES_BACK", "barrier.pml", ("progress",)),
    Bug("BUG_NO_QUORUM", "recover.pml", ("never_two_groups",)),
    Bug("BUG_HALF_IS_ENOUGH", "recover.pml", ("never_two_groups",)),
    Bug("BUG_A_CONNECTIONS_END_IS_PROOF", "recover.pml", ("never_two_groups",)),
    Bug("BUG_VOTES_ARE_NOT_TOLD", "recover.pml", ("never_two_groups",)),
    Bug("BUG_WHAT_WAS_AGREED_IS_THE_BASE", "recover.pml", ("never_two_groups",)),
    Bug("BUG_OWN_KNOWLEDGE_ONLY", "recover.pml", ("nobody_is_refused_in_a_group_that_goes_on",),
        ("RANKS=4", "HOST=12", "GENERATIONS=1")),
    Bug("BUG_NOBODY_IS_GIVEN_UP", "recover.pml", ("progress",)),
    Bug("BUG_SUSPECTS_DECIDE", "agreed_masks.pml", ("ranks_that_keep_each_other_mask_alike",)),
    Bug("BUG_OLD_CONFIRMATIONS_COUNT", "agreed_masks.pml", ("ranks_that_keep_each_other_mask_alike",)),
    Bug("BUG_NOBODY_IS_GIVEN_UP", "agreed_masks.pml", ("progress",)),
    Bug("BUG_PASSES_ITS_PLEDGE", "members.pml", ("one_life_in_every_step",)),
    Bug("BUG_LOWEST_PLEDGE", "members.pml", ("nobody_is_past_the_agreed_step",)),
    Bug("BUG_OWN_BUILD_DECIDES", "members.pml", ("one_life_in_every_step",)),
    Bug("BUG_ANSWERS_NO_MORE", "members.pml", ("one_life_in_every_step",)),
    Bug("BUG_THE_DEAD_ARE_WAITED_FOR", "members.pml", ("progress",)),
)  # fmt: skip
