"""Recorded dispatch and combine, replayed with the same argument bytes and other inputs; eager calls in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.device.platforms import Platform
from tests.end_to_end.play import same
from tests.end_to_end.steps import LowLatencyStep, ThroughputStep
from tests.end_to_end.world import World
from tests.gpu.calls import buffer_for, finish, layout_of, low_latency, throughput
from tests.gpu.fixed import Sizes, Values, low_latency_values, throughput_values
from tests.gpu.places import Here, run
from uccl_ep import Buffer

REPLAYS = 20
REPLAYS_AS_PTX = 8  # each a hundred times slower there; eager calls come after the 4th and the 8th
WORLDS = {"1 node": World(2), "2 nodes": World(4, 2)}
pytestmark = [pytest.mark.timeout(120), pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))]


def _sizes(world: World) -> Sizes:
    return Sizes(world.ranks, ranks_per_node=world.node_sizes)


def _replays(config: pytest.Config) -> range:
    return range(REPLAYS if config.getoption("--ptx", None) is None else REPLAYS_AS_PTX)


def _room(sizes: Sizes) -> list[Any]:
    """Steps whose budgets leave room for the recorded calls and for eager ones."""
    low = LowLatencyStep(0, sizes.tokens, sizes.hidden, sizes.local_experts, sizes.topk)
    high = ThroughputStep(0, 4 * sizes.tokens, 2 * sizes.hidden, sizes.local_experts, 2 * sizes.topk)
    return [low, high]


class Static:
    """A rank's tensors that a recording reads; `fill` changes their values only."""

    def __init__(self, here: Here, values: Values, rank: int) -> None:
        self._rank = rank
        self.x, self.ids, self.weights, self.outputs = (here.put(t) for t in self._of(values))

    def _of(self, v: Values) -> tuple[torch.Tensor, ...]:
        r = self._rank
        return v.x[r], v.ids[r], v.weights[r], v.outputs[r]

    def fill(self, values: Values) -> None:
        for mine, new in zip((self.x, self.ids, self.weights, self.outputs), self._of(values), strict=True):
            mine.copy_(new)


# ---- low latency ---------------------------------------------------------------------------------------------------


def _low_latency_graph(group: Any, platform: Platform, sizes: Sizes, send: str, replays: list[Values]) -> None:
    rank, here = group.rank(), Here(platform)
    with buffer_for(group, platform, _room(sizes), sizes.ranks_per_node or 0) as buffer:
        low_latency(buffer, platform, LowLatencyStep(1, sizes.tokens, sizes.hidden, sizes.local_experts, sizes.topk))
        static, results = Static(here, replays[0], rank), []

        def body() -> None:
            how = {"async_finish": send == "async", "return_recv_hook": send == "hook"}
            recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
                static.x, static.ids, sizes.tokens, sizes.experts, use_fp8=False, **how
            )
            finish(send, event, hook)
            out, event, hook = buffer.low_latency_combine(static.outputs, static.ids, static.weights, handle, **how)
            finish(send, event, hook)
            results[:] = [recv_x, count, handle, out]

        replay = platform.record(body)
        group.barrier()  # a replay's kernels run beside no capture and instantiation of another rank
        for number, values in enumerate(replays):
            static.fill(values)
            replay()
            _compare_low_latency(values, rank, [here.get(t) for t in (*results[:2], *results[2][:2], results[3])])
            if number % 4 == 3:
                _eager(buffer, platform, sizes, number)


def _compare_low_latency(values: Values, rank: int, seen: list[torch.Tensor]) -> None:
    recv_x, count, src_info, layout_range, out = seen
    due = values.received[rank]
    same("recv_count", count, due.recv_count)  # type: ignore[union-attr]
    same("layout_range", layout_range, due.layout_range)  # type: ignore[union-attr]
    for expert, rows in enumerate(count.tolist()):
        same(f"rows of expert {expert}", recv_x[expert, :rows], due.recv_x[expert, :rows])
        same(f"src_info of expert {expert}", src_info[expert, :rows], due.src_info[expert, :rows])  # type: ignore[union-attr]
    same("combined", out, values.combined[rank])


def _eager(buffer: Buffer, platform: Platform, sizes: Sizes, number: int) -> None:
    """Calls of both modes and other shapes, between two replays."""
    low = LowLatencyStep(number, sizes.tokens, sizes.hidden, sizes.local_experts, sizes.topk, send="hook")
    low_latency(buffer, platform, low)
    wide = ThroughputStep(number, 2 * sizes.tokens, 2 * sizes.hidden, sizes.local_experts, 5, num_cached=1, num_sms=4)
    throughput(buffer, platform, wide, sizes.ranks_per_node)


@pytest.mark.parametrize("send", ["hook", "sync", "async"])
def test_gpu_graph_of_low_latency(gpu: Platform, world: World, send: str, pytestconfig: pytest.Config) -> None:
    sizes = _sizes(world)
    replays = [low_latency_values(sizes, 10 + n) for n in _replays(pytestconfig)]
    run(gpu, world, _low_latency_graph, sizes, send, replays)


# ---- throughput ----------------------------------------------------------------------------------------------------


def _throughput_graph(group: Any, platform: Platform, sizes: Sizes, cached: bool, replays: list[Values]) -> None:
    rank, here = group.rank(), Here(platform)
    worst = sizes.ranks * sizes.tokens
    with buffer_for(group, platform, _room(sizes), sizes.ranks_per_node or 0) as buffer:
        static, results = Static(here, replays[0], rank), []

        def dispatch() -> Any:
            arguments, _, _ = layout_of(buffer, static.ids, sizes.experts)
            return buffer.dispatch(
                static.x, topk_idx=static.ids, topk_weights=static.weights, num_worst_tokens=worst, **arguments
            )

        handle = dispatch()[4]

        def body() -> None:
            if cached:
                recv_x, ids, used = buffer.dispatch(static.x, handle=handle)[0], None, handle
            else:
                recv_x, ids, _, _, used, _ = dispatch()
            out, _, _ = buffer.combine(static.outputs, used)
            results[:] = [recv_x, ids, out]

        replay = platform.record(body)
        group.barrier()  # a replay's kernels run beside no capture and instantiation of another rank
        for number, values in enumerate(replays):
            static.fill(values)
            replay()
            due, (recv_x, ids, out) = values.received[rank], [here.get(t) for t in results]
            n = due.num_rows  # type: ignore[union-attr]
            same("recv_x", recv_x[:n], due.recv_x[:n])
            if not cached:
                same("recv_topk_idx", ids, due.recv_topk_idx)  # type: ignore[union-attr]
            same("combined", out, values.combined[rank])
            if number % 4 == 3:
                _eager(buffer, platform, sizes, number)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "worst_tokens"])
def test_gpu_graph_of_throughput(gpu: Platform, world: World, cached: bool, pytestconfig: pytest.Config) -> None:
    sizes = _sizes(world)
    replays = [throughput_values(sizes, 50 + n, 50 if cached else 50 + n) for n in _replays(pytestconfig)]
    run(gpu, world, _throughput_graph, sizes, cached, replays)
