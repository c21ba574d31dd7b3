"""A phase from launch to the last rank: by hand, and what disturbances must do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.uccl_ep.tools.bench.scale.sizes import demand, healthy, plain, traffic
from uccl_ep.tools.bench.scale.phase import Outcome, simulate
from uccl_ep.tools.bench.scale.plans import PHASES, Plan, Shape, low_latency, throughput
from uccl_ep.tools.bench.scale.platforms import PLATFORMS, Platform

NONE = np.zeros((4, 4), np.int64)
FREE = np.zeros(4)
SHAPE = Shape(hidden=512, topk=2)


def plan_of(*writes: tuple[int, int, int, int], **more: object) -> Plan:
    return Plan("side", demand(), traffic(4, *writes), FREE, NONE, **more)  # type: ignore[arg-type]


def amounts(*each: tuple[int, int, int]) -> np.ndarray:
    found = NONE.copy()
    for source, target, num_bytes in each:
        found[source, target] = num_bytes
    return found


def go(plan: Plan, platform: Platform | None = None) -> Outcome:
    platform = platform or plain()
    return simulate(plan, platform, healthy(platform, 4))


def with_gpu(**changes: float) -> Platform:
    return replace(plain(), gpu=replace(plain().gpu, **changes))  # type: ignore[arg-type]


def test_phase_one_flow() -> None:
    outcome = go(plan_of((0, 2, 1, 5000)))
    assert outcome.done_us == pytest.approx([0, 0, 7, 0], abs=1e-3)
    assert outcome.waited_for[2] == 0 and (outcome.messages, outcome.num_bytes) == (1, 5000)
    assert outcome.slowest_us == pytest.approx(7)


def test_phase_two_flows_into_one_port() -> None:
    outcome = go(plan_of((0, 2, 1, 5000), (1, 2, 1, 4000)))
    assert outcome.done_us[2] == pytest.approx(5 + 4 + 2, abs=1.001)  # the second waits, less its head start
    assert outcome.slowest_us > 10


def test_phase_a_slow_rail_doubles_the_wire() -> None:
    conditions = healthy(plain(), 4)
    conditions.nic_share[2] = 0.5
    assert simulate(plan_of((0, 2, 1, 5000)), plain(), conditions).done_us[2] == pytest.approx(12, abs=1e-3)


def test_phase_a_late_rank_is_who_is_waited_for() -> None:
    conditions = healthy(plain(), 4)
    conditions.late_us[0] = 100.0
    outcome = simulate(plan_of((0, 2, 1, 5000), (1, 2, 1, 5000), (1, 3, 1, 10)), plain(), conditions)
    assert outcome.done_us[2] == pytest.approx(107, abs=1e-3) and outcome.waited_for[2] == 0
    assert outcome.done_us[3] < 20 and outcome.waited_for[3] == 1


def test_phase_launch_and_memory() -> None:
    plan = replace(plan_of((0, 2, 1, 5000)), memory_bytes=np.asarray([8000.0, 0, 4000.0, 0]))
    # 4,000 of 8,000 bytes before the message goes, 2,000 of 4,000 after it came, a launch of 6 us.
    assert go(plan, with_gpu(memory_gb_per_s=1.0, start_us=6.0)).done_us[2] == pytest.approx(6 + 4 + 7 + 2)


def test_phase_hosts_hand_on_what_came() -> None:
    plan = plan_of((0, 2, 1, 5000), forward=amounts((0, 2, 10000)), streams=True)
    outcome = go(plan, with_gpu(forward_gb_per_s=2.0))
    assert outcome.done_us[[2, 3]] == pytest.approx([7 + 5, 7 + 5], abs=1e-3)  # both ranks of the node
    assert outcome.waited_for[3] == 0


def test_phase_own_rows_slow_down_what_is_handed_on() -> None:
    plan = plan_of((0, 2, 1, 5000), forward=amounts((0, 2, 10000)), streams=True)
    both = replace(plan, local=amounts((3, 2, 10000)))
    assert go(both, with_gpu(forward_gb_per_s=2.0)).done_us[2] == pytest.approx(7 + 10, abs=1e-3)


def test_phase_readers_need_no_late_host() -> None:
    conditions = healthy(plain(), 4)
    conditions.late_us[2] = 50.0
    plan = plan_of((0, 2, 1, 5000), forward=amounts((0, 2, 10000)), streams=True)
    slow = with_gpu(forward_gb_per_s=2.0)
    by_host = simulate(plan, slow, conditions).done_us
    by_reader = simulate(replace(plan, forwarder=False), slow, conditions).done_us
    assert by_host[3] == pytest.approx(50 + 5, abs=1e-3)
    assert by_reader[3] == pytest.approx(7 + 5, abs=1e-3) and by_reader[2] == pytest.approx(50, abs=1e-3)


def test_phase_readers_fetch_when_a_source_is_complete() -> None:
    plan = plan_of((0, 2, 2, 2500), fetch=amounts((0, 3, 6000)))
    assert go(plan, with_gpu(node_gb_per_s=3.0)).done_us[3] == pytest.approx(5 + 2 + 2, abs=1e-3)


def test_phase_rows_are_collected_before_they_are_sent() -> None:
    plan = plan_of((2, 0, 1, 5000), merge=amounts((2, 0, 12000)))
    assert go(plan, with_gpu(node_gb_per_s=3.0)).done_us[0] == pytest.approx(4 + 5 + 2, abs=1e-3)
    known = replace(plan, first=traffic(4, (0, 2, 1, 3000)))
    assert go(known, with_gpu(node_gb_per_s=3.0)).done_us[0] == pytest.approx((3 + 2) + 4 + 5 + 2, abs=1e-3)


def test_phase_a_late_rank_holds_up_the_merging_of_its_node() -> None:
    conditions = healthy(plain(), 4)
    conditions.late_us[3] = 50.0
    plan = plan_of((2, 0, 1, 5000), merge=amounts((2, 0, 12000)))
    done = simulate(plan, with_gpu(node_gb_per_s=3.0), conditions).done_us
    assert done[0] == pytest.approx(50 + 4 + 5 + 2, abs=1e-3)


def test_phase_a_pair_of_ranks_has_its_own_limit() -> None:
    plan = plan_of((2, 0, 4, 5000), merge=amounts((2, 0, 4)), streams=True)
    free, held = go(plan), go(plan, plain(stream_gb_per_s=0.25))
    assert free.done_us[0] == pytest.approx(20 + 2, abs=1e-3)
    assert held.done_us[0] == pytest.approx(4 * 20 + 5 + 2, abs=1e-3)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["p5en", "mi300x-cx7"])
def test_phase_is_decided_by_its_seed(phase: str, name: str) -> None:
    one, jobs = PLATFORMS[name], demand(16, 8)
    plans = [low_latency(s, phase, jobs, SHAPE, one.efa) for s in ("upstream", "ours", "ours, by node")]
    plans += [throughput(s, phase, jobs, SHAPE, one.efa) for s in ("upstream", "ours")]
    for plan in plans:
        first, again, other = (simulate(plan, one, healthy(one, 16), seed) for seed in (1, 1, 2))
        assert (first.done_us == again.done_us).all() and first.parked == again.parked
        assert (first.done_us != other.done_us).any()
        assert (first.done_us > one.gpu.start_us).all()


def test_phase_more_of_everything_is_never_slower() -> None:
    one, jobs = PLATFORMS["p5en"], demand(16, 8, tokens=64)
    plan = throughput("upstream", "combine", jobs, Shape(topk=2), True)
    before = simulate(plan, one, healthy(one, 16)).slowest_us
    faster = replace(one, nic=replace(one.nic, gb_per_s=2 * one.nic.gb_per_s, stream_gb_per_s=1e9))
    assert simulate(plan, faster, healthy(one, 16)).slowest_us < before
    links = replace(one, gpu=replace(one.gpu, forward_gb_per_s=2 * one.gpu.forward_gb_per_s))
    assert simulate(plan, links, healthy(one, 16)).slowest_us <= before
