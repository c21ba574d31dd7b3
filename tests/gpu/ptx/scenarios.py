"""What the machine plays: small worlds of ranks whose kernels run as PTX, each with what no other one executes."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep, throughput_expected
from tests.end_to_end.world import World as Ranks
from tests.gpu.calls import buffer_for, cached, layout_of, low_latency, throughput
from tests.gpu.places import FakePlatform, Here, run
from tests.gpu.ptx.executor import PtxExecutor, World, playing
from tests.gpu.ptx.programs import lowered
from tests.gpu.test_forms import NodeWorld, Rank
from tests.gpu.test_forms import _node_sums as node_sums
from tests.gpu.test_forms import _overlapping as overlapping
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, reference_of
from tests.uccl_ep.ranks import low_latency as uneven
from uccl_ep import Config
from uccl_ep.gpu import device
from uccl_ep.layout import plan
from uccl_ep.reference import RandomCase, low_latency_combine, low_latency_combine_by_node
from uccl_ep.settings import settings

SEEDS = (1, 2, 3)  # each with another way to be late
NUM_SMS = 12
TWO_NODES = NodeWorld(4, 2)
# One write to a peer at a time, which arrives when it likes: pushes into two slots really wait.
SLOW = {"rings": 1, "ring_capacity": 2, "max_in_flight": 1, "shuffle_seed": 5}


Body = Callable[[FakePlatform], object]


def play_steps(group: Any, platform: FakePlatform, steps: list[Step], ranks: Ranks, slack: int) -> None:
    with buffer_for(group, platform, steps, ranks.ranks_per_node, slack) as buffer:
        for step in steps:
            if isinstance(step, LowLatencyStep):
                low_latency(buffer, platform, step)
            else:
                throughput(buffer, platform, step, ranks.node_sizes)
        buffer.barrier()
        buffer.barrier()


def rounds_of(ranks: Ranks, steps: Callable[[], list[Step]], slack: int = 4) -> Body:
    return lambda platform: run(platform, ranks, play_steps, steps(), ranks, slack)


def low_latency_rounds(tokens: int = 9, rounds: int = 5, **changed: Any) -> Callable[[], list[Step]]:
    """Rounds of one size, so that buffer sets come round again."""
    how = {"hidden": 256, "topk": 4, **changed}
    return lambda: [LowLatencyStep(40 + n, max_tokens=tokens, **how) for n in range(rounds)]


def throughput_rounds(tokens: int = 24, rounds: int = 3, **changed: Any) -> Callable[[], list[Step]]:
    how = {"hidden": 128, "topk": 3, "num_sms": 8, **changed}
    return lambda: [ThroughputStep(60 + n, max_tokens=tokens, **how) for n in range(rounds)]


def _only_dispatches(group: Any, platform: FakePlatform) -> None:
    """No combine between them tells the others how far a rank has read."""
    c = case(17, "uniform", num_ranks=group.size(), num_experts=2 * group.size(), num_topk=2, hidden=256, max_tokens=9)
    due = reference_of(c)[group.rank()]
    with uneven(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(6):
            assert_low_latency(rank.received(rank.dispatch(use_fp8=False)), due)


def _two_in_flight(group: Any, platform: FakePlatform, tokens: int = 9, rounds: int = 5) -> None:
    """Each call is received when the next one has been sent: only words of what was read let a set be reused."""
    ranks = group.size()
    c = case(17, "uniform", num_ranks=ranks, num_experts=2 * ranks, num_topk=2, hidden=128, max_tokens=tokens)
    due = reference_of(c)[group.rank()]
    with uneven(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        before = rank.dispatch(use_fp8=False, return_recv_hook=True)
        for _ in range(rounds):
            got = rank.dispatch(use_fp8=False, return_recv_hook=True)
            before[4]()
            assert_low_latency(rank.received(before), due)
            before = got
        before[4]()
        sent = rank.combine(before, return_recv_hook=True)
        for _ in range(4):
            again = rank.combine(before, return_recv_hook=True)
            sent[2]()
            sent = again
        sent[2]()
        platform.synchronize()


@functools.cache
def _small(arch: str) -> str:
    return lowered('#include "tests/gpu/ptx/small_kernels.h"\n', "small", arch)


def _executor(platform: FakePlatform) -> PtxExecutor:
    executor = platform.driver.executor
    assert isinstance(executor, PtxExecutor)
    return executor


def _barriers(ranks: Ranks) -> Body:
    def body(platform: FakePlatform) -> None:
        _executor(platform).load(_small)
        run(platform, ranks, _only_barriers)

    return body


def _only_barriers(group: Any, platform: FakePlatform) -> None:
    """A kernel of each rank reads what one of its neighbour has written: a barrier before, a barrier behind."""
    driver, executor = platform.driver, _executor(platform)
    with buffer_for(group, platform, low_latency_rounds()(), 0) as buffer:
        row, seen = driver.allocate(4096), driver.allocate(4096)
        neighbour = group.all_gather_object(row)[group.rank() ^ 1]
        for n in range(1, 6):
            queue = driver.current_stream().native
            executor.enqueue(queue, "writes_row", struct.pack("<QQ", row, n), (1, 32, 256, 32))
            buffer.barrier()
            executor.enqueue(queue, "reads_row", struct.pack("<QQ", neighbour, seen), (1, 32, 256, 32))
            buffer.barrier()
            assert set(struct.unpack("<32I", driver.read(seen, 128))) == {n}
        group.barrier()
        driver.free(row)
        driver.free(seen)


def _may_leave(group: Any, platform: FakePlatform) -> None:
    """Ranks may be masked, and none is: a flag is raised for each rank of the node by itself."""
    c = case(17, "uniform", num_ranks=group.size(), num_experts=2 * group.size(), num_topk=2, hidden=256, max_tokens=9)
    sums = low_latency_combine(
        [expert_rows(r, c.shape) for r in range(group.size())], c.topk_idx, c.topk_weights, reference_of(c)
    )
    with uneven(group, c.shape, device=platform.device, enable_shrink=True) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(4):
            out, *_ = rank.combine(rank.dispatch(use_fp8=False))
            assert torch.equal(rank.here.get(out), sums[group.rank()])


def _stats(group: Any, platform: FakePlatform) -> None:
    """Who waits counts for how long."""
    c = case(17, "uniform", num_ranks=group.size(), num_experts=2 * group.size(), num_topk=2, hidden=256, max_tokens=9)
    with uneven(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        waited, rows = torch.zeros(2, group.size(), dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
        for _ in range(4):
            got = rank.dispatch(
                use_fp8=False, dispatch_wait_recv_cost_stats=waited[0], cumulative_local_expert_recv_stats=rows
            )
            rank.combine(got, combine_wait_recv_cost_stats=waited[1])
        platform.synchronize()
        assert int(rows.sum()) > 0


def _shapes() -> list[Step]:
    """What streams hold is drained before chunks have another size."""
    sizes = ((64, 4), (128, 8), (64, 8), (256, 4))
    return [
        ThroughputStep(80 + n, max_tokens=30, hidden=hidden, topk=3, num_sms=num_sms)
        for n, (hidden, num_sms) in enumerate(sizes)
    ]


def _cached_shapes(group: Any, platform: FakePlatform, ranks: Ranks) -> None:
    """Two shapes in turn, and nothing between their dispatches but that streams are drained."""
    steps, here, handles = _shapes()[:2], Here(platform), []
    with buffer_for(group, platform, steps, ranks.ranks_per_node) as buffer:
        for step in steps:
            assert isinstance(step, ThroughputStep)
            due = throughput_expected(step, group.size(), ranks.node_sizes)
            given, ids = due.inputs[group.rank()], here.put(due.case.topk_idx[group.rank()])
            arguments, *_ = layout_of(buffer, ids, group.size() * step.local_experts)
            arguments |= {"topk_idx": ids, "topk_weights": here.put(given.topk_weights)}
            handles.append((step, due, buffer.dispatch(here.put(given.x), config=Config(step.num_sms), **arguments)[4]))
        for call in range(1, 4):
            for step, due, handle in handles:
                cached(buffer, platform, step, due, (handle, call))


def _rows_as_they_come(platform: FakePlatform, late_s: float = 0.0) -> None:
    """Other nodes' rows too, each when its signal says that it is there."""
    c = case(44, "some_unused", num_ranks=2, num_experts=4, num_topk=2, hidden=128, max_tokens=8)
    expected = reference_of(c)
    sums = low_latency_combine([expert_rows(r, c.shape) for r in range(2)], c.topk_idx, c.topk_weights, expected)
    run(platform, Ranks(2, 1), overlapping, c, sums, late_s)


def _node_sums(platform: FakePlatform, tokens: int = 16, ranks: Ranks = TWO_NODES) -> None:
    num = ranks.ranks
    c = case(41, "mixed", num_ranks=num, num_experts=2 * num, num_topk=4, hidden=256, max_tokens=tokens)
    outputs = [expert_rows(rank, c.shape) for rank in range(num)]
    due = low_latency_combine_by_node(outputs, c.topk_idx, c.topk_weights, reference_of(c), ranks.ranks_per_node)
    run(platform, ranks, node_sums, c, due, False)


def _other_weights(group: Any, platform: FakePlatform, c: RandomCase, due: list[torch.Tensor]) -> None:
    """Node sums with other weights in each call, so that those of an earlier one are seen to be old; in some calls one
    rank's come late."""
    with uneven(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for n in range(8):
            got, scale = rank.dispatch(use_fp8=False), 2.0 ** (n % 3)  # which rounds no sum otherwise
            rank.weights = rank.here.put(c.topk_weights[rank.rank] * scale)
            platform.synchronize()
            if n % 2 and n // 2 == rank.rank:
                time.sleep(0.02)
            assert torch.equal(rank.here.get(rank.combine(got)[0]), due[rank.rank] * scale)


def _weights_that_change(platform: FakePlatform) -> None:
    c = case(41, "mixed", num_ranks=4, num_experts=8, num_topk=4, hidden=128, max_tokens=6)
    outputs = [expert_rows(rank, c.shape) for rank in range(4)]
    due = low_latency_combine_by_node(outputs, c.topk_idx, c.topk_weights, reference_of(c), 2)
    run(platform, TWO_NODES, _other_weights, c, due)


def _coded_sums(rows: str) -> Body:
    """Node sums in a format: the kernels of combine then have every line of it, in both directions."""

    def body(platform: FakePlatform) -> None:
        c = case(46, "mixed", num_ranks=4, num_experts=8, num_topk=4, hidden=384, max_tokens=6)
        given = ([expert_rows(rank, c.shape) for rank in range(4)], c.topk_idx, c.topk_weights, reference_of(c))
        use = {f"use_{rows}": True}
        run(platform, TWO_NODES, node_sums, c, low_latency_combine_by_node(*given, 2, **use), False, use)

    return body


SCENARIOS: dict[str, Body] = {
    "low latency, 1 node of 3": rounds_of(Ranks(3), low_latency_rounds(format="fp8")),
    "low latency, 2 nodes of 2": rounds_of(Ranks(4, 2), low_latency_rounds(send="hook")),
    "low latency, zero copy": rounds_of(Ranks(3), low_latency_rounds(combine="zero_copy")),
    "low latency, zero copy, 2 nodes": rounds_of(Ranks(3, 2), low_latency_rounds(combine="zero_copy")),
    "low latency, ranks that may leave": lambda platform: run(platform, Ranks(4, 2), _may_leave),
    "low latency, only dispatches": lambda platform: run(platform, Ranks(3), _only_dispatches),
    "low latency, only dispatches, 2 nodes": lambda platform: run(platform, Ranks(2, 1), _only_dispatches),
    "low latency, sums in the node": _node_sums,
    "low latency, sums in the node in MXFP8": _coded_sums("mxfp8"),
    "low latency, sums in the node in NVFP4": _coded_sums("nvfp4"),
    "low latency, two calls in flight": lambda platform: run(platform, Ranks(3), _two_in_flight),
    "low latency, two calls in flight, 2 nodes": lambda platform: run(platform, Ranks(2, 1), _two_in_flight),
    "low latency, two calls in flight, many blocks": lambda platform: run(platform, Ranks(2), _two_in_flight, 30),
    "low latency, many blocks": rounds_of(Ranks(2), low_latency_rounds(30, 2, hidden=128)),
    "low latency, many blocks, 2 nodes": rounds_of(Ranks(3, 2, rings=1), low_latency_rounds(30, 2, hidden=128)),
    "low latency, full rings": rounds_of(
        Ranks(2, 1, rings=1, ring_capacity=16), low_latency_rounds(40, 3, hidden=128, send="hook")
    ),
    "low latency, full rings of 2": rounds_of(
        Ranks(2, 1, rings=1, ring_capacity=2), low_latency_rounds(40, 2, hidden=128, send="hook")
    ),
    "low latency, sums in the node, many blocks": lambda platform: _node_sums(platform, 30),
    "low latency, sums in the node, full rings of 2": lambda platform: _node_sums(
        platform, 16, NodeWorld(4, 2, rings=1, ring_capacity=2)
    ),
    "only barriers": _barriers(Ranks(2)),
    "only barriers, 2 nodes": _barriers(Ranks(4, 2)),
    "low latency, stats of waits": lambda platform: run(platform, Ranks(3, 2), _stats),
    "throughput, 1 node of 3": rounds_of(Ranks(3), throughput_rounds()),
    "throughput, 2 nodes of 2": rounds_of(Ranks(4, 2), throughput_rounds(num_bias=1)),
    "throughput, cached": rounds_of(Ranks(2), throughput_rounds(num_cached=2)),
    "throughput, rings that wrap": rounds_of(Ranks(2), throughput_rounds(90), 1),
    "throughput, rings that wrap, 2 nodes of 2": rounds_of(Ranks(4, 2, rings=1), throughput_rounds(90), 1),
    "throughput, rings that wrap, 2 nodes": rounds_of(Ranks(2, 1, ring_capacity=16), throughput_rounds(90), 1),
    "low latency, stats of waits for sums in the node": lambda platform: run(platform, TWO_NODES, _stats),
    "low latency, rows as they are computed": _rows_as_they_come,
    "low latency, rows that are late": lambda platform: _rows_as_they_come(platform, 0.3),
    "throughput, shapes that change": rounds_of(Ranks(4, 2), _shapes),
    "throughput, cached, 2 nodes": rounds_of(Ranks(4, 2), throughput_rounds(num_cached=2)),
    "throughput, cached, shapes that change": lambda platform: run(platform, Ranks(4, 2), _cached_shapes, Ranks(4, 2)),
    "throughput, full rings": rounds_of(Ranks(2, 1, rings=1, ring_capacity=16), throughput_rounds(120), 1),
    "throughput, full rings of 2": rounds_of(
        Ranks(2, 1, rings=1, ring_capacity=2), throughput_rounds(60, num_cached=1), 1
    ),
    "throughput, many blocks, 2 nodes": rounds_of(Ranks(3, 2, rings=1), throughput_rounds(60)),
    "low latency, full rings of 2, a slow network": rounds_of(Ranks(3, 1, **SLOW), low_latency_rounds(16)),
    "throughput, full rings of 2, a slow network": rounds_of(
        Ranks(3, 1, **SLOW), throughput_rounds(20, num_cached=2), 1
    ),
    "low latency, small blocks, 2 nodes": rounds_of(Ranks(4, 2), low_latency_rounds(hidden=128)),
    "low latency, batches in small blocks, a slow network": rounds_of(
        Ranks(2, 1, **SLOW), low_latency_rounds(100, 2, hidden=128)
    ),
    "low latency, sums in nodes of 3, full rings of 2": lambda platform: _node_sums(
        platform, 9, NodeWorld(6, 3, **SLOW)
    ),
    "throughput, small blocks": rounds_of(Ranks(3), throughput_rounds()),
    "throughput, small blocks, 2 nodes": rounds_of(Ranks(4, 2), throughput_rounds(num_bias=1)),
    "low latency, two calls in flight, small blocks": lambda platform: run(platform, Ranks(3), _two_in_flight, 9, 20),
    "low latency, small blocks, rows that are a little late": lambda platform: _rows_as_they_come(platform, 0.003),
    "low latency, small blocks, few staging rows": rounds_of(
        Ranks(2, 1, rings=1), low_latency_rounds(16, 3, hidden=128)
    ),
    "low latency, sums in the node, small blocks, weights that change": _weights_that_change,
    "throughput, small blocks, many of them at one full ring": rounds_of(
        Ranks(5, 2, **SLOW), throughput_rounds(40, 2, num_sms=60, num_cached=2), 1
    ),
}
SMS = {name: 2 * NUM_SMS if "many blocks" in name or "full rings" in name else NUM_SMS for name in SCENARIOS}
SMS |= {
    "low latency, two calls in flight, small blocks": 9,  # three blocks a launch
    "low latency, small blocks, few staging rows": 24,
    "throughput, small blocks, many of them at one full ring": 60,
}
# Two warps: a team of a block that also sends has one, and few warps share out all rows.
SMALL_BLOCK_LANES = 64
# One for some warps, none for the others: rows are staged again while the network has them.
FEW_STAGING_ROWS = 8


@dataclass
class Played:
    """What became of one scenario."""

    world: World
    wrong: str
    seconds: float


def play(scenario: str, seed: int, changes: Iterable[tuple[str, int, str]] = (), arch: str = "compute_90a") -> Played:
    """Plays it once, with (kernel, instruction, how) changed as Machine.mutate says."""
    world = World(arch, seed, 4, True)
    for change in changes:
        world.machine.mutate(*change)
    patch, began, wrong = pytest.MonkeyPatch(), time.monotonic(), ""
    if "small blocks" in scenario:
        patch.setattr(device, "MAX_BLOCK_LANES", SMALL_BLOCK_LANES)
    if "few staging rows" in scenario:
        patch.setattr(plan, "STAGING_ROWS", FEW_STAGING_ROWS)
    try:
        with playing(world):
            SCENARIOS[scenario](FakePlatform(install(patch, FakeDriver(num_sms=SMS[scenario])), "cuda"))
    except Exception as error:  # whatever it was
        wrong = f"{type(error).__name__}: {error}"
    finally:
        patch.undo()
        settings.cache_clear()
    return Played(world, (world.errors or [wrong])[0], time.monotonic() - began)
