"""Rates are differences over the time between; gauges are as they are; nothing goes below zero."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.uccl_ep.observe.samples import SECOND, sample
from uccl_ep import InvalidArgument
from uccl_ep.observe.rates import as_json, rates
from uccl_ep.observe.sample import Ring


def test_rates_are_per_second() -> None:
    before, after = sample(1, 3), sample(1, 3, 3 * SECOND, rings=(Ring(2, 5), Ring(1, 0)))
    before.peers["write_bytes"][:] = (1000, 0, 50)
    after.peers["write_bytes"][:] = (5000, 0, 50)
    after.peers["bytes_sent"][2] = 10
    after.peers["wait_ns"][0] = SECOND
    after.peers["in_flight"][2] = 7
    after.peers["last_arrival_ns"][2] = 2 * SECOND
    found = rates(before, after)
    assert found.seconds == 2 and found.rank == 1 and found.alive
    assert found.peers["write_bytes"].tolist() == [2000, 0, 0] and found.total("write_bytes") == 2000
    assert found.peers["bytes_sent"].tolist() == [0, 0, 5]
    assert found.peers["wait_ns"].tolist() == [0.5, 0, 0]  # half of the time
    assert found.peers["in_flight"].tolist() == [0, 0, 7]  # as it is
    assert (found.waiting, found.open) == (3, 5)
    assert found.last_arrival_s == 1.0
    plain = json.loads(json.dumps(as_json(found)))
    assert plain["peers"].keys() == {"0", "2"} and plain["peers"]["2"]["in_flight"] == 7


def test_rates_of_workers() -> None:
    before = sample(0, 1, workers={"commands": 10, "naps": 3, "deepest_reorder": 9})
    after = sample(0, 1, 2 * SECOND, workers={"commands": 25, "naps": 2, "deepest_reorder": 9})
    assert rates(before, after).workers == {"commands": 15.0, "naps": 0.0, "deepest_reorder": 9}


def test_rates_of_a_sum_that_was_read_in_between_are_not_below_zero() -> None:
    before, after = sample(0, 2), sample(0, 2, 2 * SECOND)
    before.peers["writes"][1], after.peers["in_flight"][1] = 5, -1
    found = rates(before, after)
    assert found.peers["writes"][1] == 0 and found.peers["in_flight"][1] == 0


def test_rates_without_what_a_gpu_keeps() -> None:
    after = sample(0, 2, 2 * SECOND, kernels=False, own_flags=None, rings=(Ring(None, 4),), alive=False)
    found = rates(sample(0, 2, kernels=False, own_flags=None), after)
    assert "wait_ns" not in found.peers and found.total("wait_ns") == 0
    assert found.waiting is None and found.open == 4 and not found.alive and found.last_arrival_s is None
    assert as_json(found)["rings_waiting"] is None and as_json(found)["peers"] == {}


@pytest.mark.parametrize(("rank", "time_ns"), [(1, 2 * SECOND), (0, SECOND), (0, 1)])
def test_rates_refuse_samples_that_do_not_follow(rank: int, time_ns: int) -> None:
    with pytest.raises(InvalidArgument, match="the earlier first"):
        rates(sample(0, 2), sample(rank, 2, time_ns))


def test_rates_survive_any_order_of_numbers() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        before, after = sample(0, 5), sample(0, 5, SECOND + int(generator.integers(1, 10**10)))
        for name in after.peers:
            before.peers[name][:] = generator.integers(0, 2**62, 5)
            after.peers[name][:] = generator.integers(0, 2**62, 5)
        found = rates(before, after)
        assert all((values >= 0).all() and np.isfinite(values).all() for values in found.peers.values())
