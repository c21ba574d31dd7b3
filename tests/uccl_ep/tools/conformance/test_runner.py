"""Running checks: one outcome for all ranks, who saw what, skips, exceptions, and whose fault a lost peer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import uccl_ep
from uccl_ep import InvalidArgument, PeerLost, PeerTimeout, run_ranks
from uccl_ep.tools.conformance.registry import Check, Skipped
from uccl_ep.tools.conformance.runner import FAILED, PASSED, SKIPPED, Outcome, check_nodes, is_ours, run_checks
from uccl_ep.tools.conformance.world import World


def outcomes_of(*bodies: Callable[[World], None], ranks: int = 3, collective: bool = True) -> list[Outcome]:
    checks = []
    for body in bodies:
        body.__doc__ = "Holds. Part A.5."
        checks.append(Check(body.__name__, "A.5", True, collective, body))
    results = run_ranks(ranks, lambda group: run_checks(World(uccl_ep, group, "cpu", 8, 1), checks))
    assert all([o.detail for o in r] == [o.detail for o in results[0]] for r in results)
    return results[0]


def fine(world: World) -> None: ...


def all_see_it(world: World) -> None:
    world.note("wrong")


def one_sees_it(world: World) -> None:
    world.expect(world.rank != 1, "wrong here")
    world.expect(world.rank == 0, "wrong there")


def one_raises(world: World) -> None:
    if world.rank == 2:
        raise TypeError("an unexpected\n  argument")
    raise PeerLost(rank=world.rank, peer=2) if world.rank else PeerTimeout(rank=0, peer=2)


def peers_only(world: World) -> None:
    if world.rank:
        raise PeerLost(rank=world.rank, peer=0)


def cannot_say(world: World) -> None:
    raise Skipped("no such thing here")


def test_runner_outcomes() -> None:
    passed, every, some, raised, lost, skipped, after = outcomes_of(
        fine, all_see_it, one_sees_it, one_raises, peers_only, cannot_say, fine
    )
    assert (passed.status, passed.detail, passed.broken, passed.summary) == (PASSED, "", False, "Holds.")
    assert (every.status, every.detail, every.broken) == (FAILED, "wrong", True)
    assert some.detail == "rank 1: wrong here; ranks 1, 2: wrong there"
    assert raised.detail == "rank 2: TypeError: an unexpected argument"  # the others' lost peer is its consequence
    assert "PeerLost: rank 0 lost" in lost.detail
    assert (skipped.status, skipped.detail, skipped.broken) == (SKIPPED, "no such thing here", False)
    assert after.status == PASSED and after.seconds >= 0


def test_runner_problems_of_one_check_are_not_the_next_ones() -> None:
    assert [o.status for o in outcomes_of(all_see_it, fine)] == [FAILED, PASSED]


def test_runner_what_is_not_collective_runs_once() -> None:
    ran = []

    def count(world: World) -> None:
        ran.append(world.rank)

    assert outcomes_of(count, collective=False)[0].status == PASSED and ran == [0]


def test_runner_an_optional_check_decides_nothing() -> None:
    check = Check("open", "B", False, True, all_see_it)
    all_see_it.__doc__ = "Holds."
    (results,) = run_ranks(1, lambda group: run_checks(World(uccl_ep, group, "cpu", 8, 1), [check]))
    assert results[0].status == FAILED and not results[0].broken


@pytest.mark.slow
def test_runner_drops_buffers_after_an_exception(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TIMEOUT_S=5)
    seen: dict[int, list[Any]] = {}

    def uses_it(world: World) -> None:
        seen.setdefault(world.rank, []).append(world.buffer("throughput"))

    def breaks(world: World) -> None:
        world.buffer("throughput")
        if world.rank == 0:
            raise RuntimeError("here")
        world.buffer("throughput").barrier()

    outcomes = outcomes_of(uses_it, breaks, uses_it, ranks=2)
    assert [o.status for o in outcomes] == [PASSED, FAILED, PASSED], outcomes
    assert outcomes[1].detail == "rank 0: RuntimeError: here"
    for first, second in seen.values():
        assert first is not second and first.runtime is None and second.runtime is None


def test_runner_tells_as_it_goes() -> None:
    told: list[tuple[str, Any]] = []
    checks = [Check("fine", "A.5", True, True, all_see_it)]
    run_ranks(1, lambda group: run_checks(World(uccl_ep, group, "cpu", 8, 1), checks, lambda e, v: told.append((e, v))))
    assert [event for event, _ in told] == ["begin", "end"] and told[0][1] == "fine" and told[1][1].status == FAILED


def test_runner_nodes_are_ours_only() -> None:
    assert is_ours(uccl_ep) and not is_ours(pytest)
    check_nodes(uccl_ep, 2)
    check_nodes(pytest, 1)
    with pytest.raises(InvalidArgument, match="--nodes must be 1 for pytest.*; got 2."):
        check_nodes(pytest, 2)
