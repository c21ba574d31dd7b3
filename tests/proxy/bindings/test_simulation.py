"""The simulation's bindings: totals, a stop from outside, seeds in words, refusals. (The command: test_simulate.py.)"""

from __future__ import annotations

import threading

import pytest

from uccl_ep import _simulation

ANY = ("any", 0, 0)  # the seed chooses the network, and how many ranks are on how many nodes


def test_totals_of_a_few_seeds_repeat() -> None:
    first, second = (_simulation.simulate(10, 20, *ANY, _simulation.Stop()) for _ in range(2))
    assert (first.seeds, first.failures) == (20, [])
    assert first.trace == second.trace and first.rows == second.rows > 100
    assert first.finished + first.failed + first.dead > 40
    assert first.writes > 0 and first.steps > 0 and first.virtual_ns > 0 and first.most_ranks <= 64
    assert _simulation.simulate(11, 20, *ANY, _simulation.Stop()).trace != first.trace


def test_stop_ends_between_two_seeds() -> None:
    stop = _simulation.Stop()
    timer = threading.Timer(0.2, stop.set)  # runs while `simulate` does: Python's lock is free
    timer.start()
    totals = _simulation.simulate(0, 1 << 40, "srd", 0, 0, stop)
    timer.join()
    assert 0 < totals.seeds < 100_000


def test_seeds_in_words() -> None:
    text = _simulation.describe(3, "srd", 0, 0)
    assert "ranks on" in text and "profile srd" in text
    assert _simulation.explain(10, *ANY) == ""


def test_unknown_profiles_are_refused() -> None:
    for call in (
        lambda: _simulation.simulate(1, 1, "mesh", 0, 0, _simulation.Stop()),
        lambda: _simulation.describe(1, "mesh", 0, 0),
        lambda: _simulation.explain(1, "mesh", 0, 0),
    ):
        with pytest.raises(ValueError, match="rc, srd"):
            call()


def test_ranks_and_nodes_are_the_callers() -> None:
    assert "24 ranks on 6 node(s) [0 0 0 0 1 1" in _simulation.describe(3, "any", 24, 6)
    totals = _simulation.simulate(3, 5, "any", 24, 6, _simulation.Stop())
    assert totals.failures == [] and totals.finished + totals.failed + totals.dead == 5 * 24
    for ranks, nodes in ((24, 0), (0, 3), (1, 1), (3, 4), (130, 2), (5000, 500)):
        with pytest.raises(ValueError, match=f"{ranks} ranks on {nodes} nodes cannot be"):
            _simulation.describe(1, "any", ranks, nodes)


def test_answers_hold_every_rank() -> None:
    for seed in range(6):
        got = _simulation.answers(seed, 0)
        assert len(got["ranks"]) == len(got["node_of"])
        for one in got["ranks"]:  # type: ignore[attr-defined]
            assert len(one["topk_idx"]) == 8 * one["num_tokens"] * one["topk"]
            assert len(one["x"]) == 2 * one["num_tokens"] * got["hidden"]
