"""The story that records tell: who was lost and when, who waited for whom, what each rank was doing, in words."""

from __future__ import annotations

import pytest

from tests.uccl_ep.recorder.records import (
    SECOND,
    WALL,
    announcement,
    bereaved,
    event,
    fault,
    record,
    timed_out,
    worker,
)
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import CONNECTION, ENDED, GOODBYE, LEFT_OUT
from uccl_ep.recorder.journal import KILLED
from uccl_ep.recorder.record import Call
from uccl_ep.tools.explain.story import read_story, tell


def text(*records: object) -> str:
    return "\n".join(tell(read_story(records)))  # type: ignore[arg-type]


def test_recorder_story_of_a_lost_rank() -> None:
    peers = [{"last_arrival_ns": 0}] * 2 + [{"last_arrival_ns": 98 * SECOND}, {"last_arrival_ns": 0}]
    records = [bereaved(0, 2, 99.5), bereaved(1, 2, 99.25, peers=peers), bereaved(3, 2, 99.75)]
    story = read_story(records)
    assert story.root_cause == 2 and story.missing == [2] and not story.waits
    (loss,) = story.lost
    assert (loss.rank, loss.by, loss.at_s, loss.last_heard_s) == (2, [1, 0, 3], 0.0, -1.25)
    assert loss.at == story.zero == WALL - 0.75
    told = tell(story)
    assert told[0] == "Rank 2 was lost."
    assert told[1] == (
        "Rank 2 (host alpha) was gone at T+0.000 s, noticed by ranks 1, 0 and 3; its last message came at T-1.250 s."
    )
    assert "Rank 0 (host alpha) was in combine number 3, begun at T+0.000 s, and raised PeerLost at T+0.750 s." in told
    assert any(
        line.startswith("No record: rank 2. The journal of a rank that is killed lies in /dev/shm") for line in told
    )
    assert told[-1].endswith("UTC.")


def test_recorder_story_of_ranks_that_were_all_killed() -> None:
    """As under torchrun: rank 2 first, then the others before they raised anything. Only journals are left."""
    first, later = event(90 * SECOND, EventKind.PARTED, 2, ENDED), event(91 * SECOND, EventKind.PARTED, 1, CONNECTION)
    killed = {"reason": KILLED, "calls": [Call("combine", 6, 89 * SECOND)]}
    records = [record(0, workers=[worker(first, later)], **killed), record(2, **killed), record(3, **killed)]
    story = read_story(records)
    assert story.root_cause == 2 and [loss.rank for loss in story.lost] == [2]
    told = "\n".join(tell(story))
    assert "Rank 2 (host alpha) was in combine number 6, begun at T-1.000 s, when it ended without raising" in told


def test_recorder_story_of_a_rank_that_waits() -> None:
    late = record(2, calls=[Call("combine", 6, 90 * SECOND, 91 * SECOND)])
    story = read_story([timed_out(0, 2), timed_out(1, 2, 99.75), late])
    assert story.root_cause == 2 and not story.lost and story.missing == [3]
    assert [(w.rank, w.peer, w.since_s) for w in story.waits] == [(0, 2, -2.0), (1, 2, -1.75)]
    told = "\n".join(tell(story))
    assert "No record: rank 3. It may have been killed" in told
    assert "No record: ranks 2 and 3. They may have been killed" in text(timed_out(0, 1), timed_out(1, 0))
    assert "Rank 2 held the others up: ranks 0 and 1 waited for it in vain." in told
    assert "Rank 0 waited for rank 2 in dispatch (receive) from T-2.000 s on" in told
    assert "Rank 2 (host alpha) was in no call; the last one, combine number 6, began at T-9.500 s." in told
    assert "low_latency_dispatch number 7 of 16x256" in told


def test_recorder_story_follows_chains() -> None:
    """Rank 0 waits for 1, which waits for 2: neither is at the end."""
    assert read_story([timed_out(0, 1), timed_out(1, 2), timed_out(3, 1)]).root_cause == 2
    assert read_story([timed_out(0, 1), timed_out(1, 0), timed_out(2, 0)]).root_cause == 0  # a ring: whom most blame


def test_recorder_story_tells_unannounced_from_undelivered() -> None:
    progress = [[[0, 0] for _ in range(4)] for _ in range(4)]
    progress[0][2] = [5, 3]
    waits = timed_out(0, 2, progress=progress)
    sent = worker(
        event(97 * SECOND, EventKind.POPPED, 0, 32 << 32 | announcement(2, 0, 6)),
        event(98 * SECOND, EventKind.POPPED, 0, 32 << 32 | announcement(2, 0, 7), 1),
        event(99 * SECOND, EventKind.POPPED, 1, 32 << 32 | announcement(2, 0, 8), 2),  # to another rank
        event(99 * SECOND, EventKind.POPPED, 0, 32 << 32 | announcement(2, 1, 8), 3),  # of another phase
    )
    (wait,) = read_story([waits, record(2, workers=[sent])]).waits
    assert (wait.expected, wait.seen, wait.announced) == (5, 3, "dispatch 7 at T-1.500 s")
    told = text(waits, record(2, workers=[sent]))
    assert "3 of 5 arrivals were there; rank 2's last announcement to it was of dispatch 7 at T-1.500 s." in told
    assert "was none that its record still has" in text(waits, record(2))
    assert "announcement" not in text(waits)
    same_node = timed_out(0, 2, progress=progress, node_of=[0, 0, 0, 0])
    assert read_story([same_node]).waits[0].seen is None  # between ranks of a node nothing is counted


def test_recorder_story_masks_and_goodbyes() -> None:
    """With enable_shrink a loss is no fault; a goodbye and a mask of a rank that lives are no loss."""
    parted = worker(
        event(97 * SECOND, EventKind.PARTED, 1, LEFT_OUT),
        event(98 * SECOND, EventKind.PARTED, 2, CONNECTION, 104),
        event(99 * SECOND, EventKind.PARTED, 2, ENDED),
        event(99 * SECOND, EventKind.PARTED, 3, GOODBYE),
    )
    story = read_story([record(0, masked=[1, 2], workers=[parted])])
    assert [(loss.rank, loss.at) for loss in story.lost] == [(2, WALL - 2.0)]
    assert "it leaves out ranks 1 and 2." in "\n".join(tell(story))


def test_recorder_story_who_left_for_a_loss_is_not_lost() -> None:
    leaving = worker(
        event(99 * SECOND, EventKind.PARTED, 1, CONNECTION), event(98 * SECOND, EventKind.PARTED, 2, CONNECTION)
    )
    story = read_story([bereaved(0, 2, workers=[leaving], fault=fault(2, 1, 0))])
    assert [loss.rank for loss in story.lost] == [2]


def test_recorder_story_who_left_too_early_had_said_goodbye() -> None:
    left = worker(event(98 * SECOND, EventKind.PARTED, 2, GOODBYE), event(99 * SECOND, EventKind.FAULT, 2, 2))
    story = read_story([bereaved(0, 2, workers=[left])])
    assert [(loss.rank, loss.at, loss.goodbye) for loss in story.lost] == [(2, WALL - 1.0, True)]
    told = "Rank 2 (host alpha) had said goodbye; it was missed at T+0.000 s, by rank 0."
    assert told in tell(story)


def test_recorder_story_without_trouble() -> None:
    story = read_story([record(0), record(1, num_ranks=4)])
    assert story.root_cause is None and story.zero == WALL
    told = tell(story)
    assert told[0] == "No rank has failed in these records."
    assert "Rank 1 (host alpha) had made no call." in told
    assert "No rank can be blamed" in text(record(0, error="TransportError: its proxy process has ended"))
    assert "Ranks 1 and 3 took no part" in text(record(0, absent=[1, 3]), record(2, absent=[1, 3]))


@pytest.mark.parametrize("peer", [0xFFFFFFFF, 0])
def test_recorder_story_waits_for_nobody_in_particular(peer: int) -> None:
    (wait,) = read_story([timed_out(0, peer, blamed=-1 if peer else 0)]).waits
    told = text(timed_out(0, peer, blamed=-1 if peer else 0))
    assert wait.peer == peer and ("waited for somebody" if peer else "waited for its own half") in told


def test_recorder_story_other_hosts_clocks_are_named() -> None:
    far = bereaved(1, 2, host="beta", host_id="boot/2", written_ns=1100 * SECOND, at_s=1099.0)
    story = read_story([bereaved(0, 2, 99.5), far])
    assert story.lost[0].by == [1, 0]  # by wall clocks: 99.0 and 99.5 of the first host's
    assert "Clock of host beta: by the hosts' wall clocks" in "\n".join(tell(story))
    plain = story.plain()
    assert plain["root_cause"] == 2 and plain["story"][0] == "Rank 2 was lost." and len(plain["clocks"]) == 2
