"""What to do fits what happened: who is to be looked at, where, and what for."""

from __future__ import annotations

import pytest

from tests.uccl_ep.recorder.records import SECOND, bereaved, event, record, timed_out, worker
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import GOODBYE
from uccl_ep.recorder.record import Call, Record
from uccl_ep.tools.explain.advice import LIKE_THIS, advise
from uccl_ep.tools.explain.story import read_story

RECOVER = "To go on without lost ranks next time, let survivors call Buffer.recover(), or make the Buffer with"


def steps(*records: Record) -> list[str]:
    return advise(read_story(records))


def test_advice_of_a_rank_that_was_killed() -> None:
    first, last = steps(bereaved(0, 2), bereaved(1, 2), bereaved(3, 2))
    assert first.startswith("Look at the last lines of rank 2 (host alpha)") and "dmesg" in first
    assert last.startswith(RECOVER)


def test_advice_of_a_rank_that_left_too_early() -> None:
    parted = worker(event(99 * SECOND, EventKind.PARTED, 2, GOODBYE), event(99 * SECOND, EventKind.PARTED, 2, 1, 104))
    (first, *_) = steps(bereaved(0, 2, workers=[parted]))
    assert first.startswith("Let all ranks make the same calls: rank 2 (host alpha) had ended its Buffer")


def test_advice_of_an_error_of_the_rank_itself() -> None:
    (first, *_) = steps(bereaved(0, 2), record(2, error="SettingsMismatch: rank 2 differs", reason="a call raised"))
    assert first == "Correct what rank 2 (host alpha) raised, SettingsMismatch: the others only followed."


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ([0, 0], "Find out what rank 2 (host alpha) did outside of our calls"),
        ([5, 4], "Check the network between rank 2 and ranks 0 and 1: a part of the rows had come."),
    ],
)
def test_advice_tells_a_late_rank_from_a_slow_link(progress: list[int], words: str) -> None:
    of_rank_2 = [[[0, 0], [0, 0], progress, [0, 0]] for _ in range(4)]
    late = record(2, calls=[Call("combine", 6, 90 * SECOND, 91 * SECOND)])
    first, second = steps(*(timed_out(rank, 2, progress=of_rank_2) for rank in (0, 1)), late)
    assert first.startswith(words)
    assert second == "Copy the record of rank 3 into this folder, if it wrote one, and explain again: more can be said."


def test_advice_without_a_record_of_who_is_blamed() -> None:
    first, _ = steps(timed_out(0, 2), timed_out(1, 2), record(3))
    assert first.startswith("Find out what held rank 2 up: run the job again and watch it with `uccl-ep top`")


def test_advice_of_a_chain_leaves_out_who_only_followed() -> None:
    """Ranks 1 and 2 are lost to the others; 1 has raised PeerLost itself."""
    told = steps(bereaved(0, 2, 99.0), bereaved(3, 1, 99.5), bereaved(1, 2, 99.1))
    assert "rank 2 (host alpha)" in told[0] and not any("rank 1 (host" in step for step in told)


def test_advice_names_a_few_of_many_losses() -> None:
    many = [bereaved(rank, rank + 10, num_ranks=20, hostnames=["alpha"] * 20) for rank in range(10)]
    assert sum(step.startswith("Look at") for step in steps(*many)) == LIKE_THIS


def test_advice_where_nothing_failed() -> None:
    (only,) = steps(record(0), record(1), record(2), record(3))
    assert only.startswith("Nothing: no rank has failed here.") and "UCCL_EP_TRACE" in only


def test_advice_of_an_error_that_blames_nobody() -> None:
    (first, *_) = steps(record(0, error="TransportError: no route"), record(1))
    assert first.startswith("Read the error of rank 0 (host alpha) in its output: TransportError")
