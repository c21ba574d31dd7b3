"""Short measured runs for growth: thread ranks of one child process over the loopback transport, one shape after the
other. Times of one machine; what they say is how they grow.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uccl_ep.errors import UcclEpError, refuse
from uccl_ep.tools.bench.model.growth import GrowthShape, fitted

if TYPE_CHECKING:
    from uccl_ep.group.thread_group import ThreadGroup

BASE = GrowthShape(tokens=64, hidden=1024, topk=4, ranks=4, nodes=2, experts=16)
SWEEPS: dict[str, tuple[int, ...]] = {
    "tokens": (16, 32, 64, 128),
    "hidden": (512, 1024, 2048, 4096),
    "topk": (1, 2, 4, 8),
    "ranks": (2, 4, 8),  # on 2 nodes
    "nodes": (1, 2, 4),  # of 4 ranks
}
_WARM_UP = 2
_LIMIT_S = 600.0

Times = dict[str, float]


def measured_shape(axis: str, value: int) -> GrowthShape:
    """BASE with one size changed; the nodes stay as many."""
    return replace(BASE, **{axis: value})


def measured_growth(axes: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """An entry of growth.fitted for each axis, from measured runs.

    Raises:
        InvalidArgument: fewer than one round.
        UcclEpError: see measure.
    """
    if rounds < 1:
        refuse("--rounds", rounds, "1 or more")
    points = [(axis, value) for axis in axes for value in SWEEPS[axis]]
    times = measure([measured_shape(*point) for point in points], rounds)
    found = []
    for axis in axes:
        columns = [column for (of, _), column in zip(points, times, strict=True) if of == axis]
        found.append(fitted(axis, BASE, SWEEPS[axis], columns, counted=False))
    return found


def measure(shapes: Sequence[GrowthShape], rounds: int) -> list[Times]:
    """Of each shape, seconds of "mode: dispatch" and "mode: combine": the slowest rank's, median over rounds.

    Raises:
        UcclEpError: the child failed or took too long.
    """
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    child = context.Process(target=_child, args=(list(shapes), rounds, results), daemon=True)
    child.start()
    try:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                found, error = results.get(timeout=1.0)
                break
            except queue.Empty:
                if not child.is_alive() or time.monotonic() > deadline:
                    raise UcclEpError(
                        f"measured runs ended without a result (status {child.exitcode}, {_LIMIT_S:.0f} s allowed)"
                    ) from None
    finally:
        child.join(5.0)
        if child.is_alive():
            child.kill()
    if error:
        raise UcclEpError(f"measured runs failed: {error}")
    times: list[Times] = found
    return times


def _child(shapes: list[GrowthShape], rounds: int, results: Any) -> None:
    for name in [n for n in os.environ if n.startswith("UCCL_EP_")]:
        del os.environ[name]  # what the caller tunes is not what is measured
    os.environ["UCCL_EP_TRANSPORT"] = "loopback"
    try:
        import torch

        torch.set_num_threads(1)
        results.put(([_measure(shape, rounds) for shape in shapes], ""))
    except Exception as error:  # the parent prints it
        results.put((None, f"{type(error).__name__}: {error}"))


def _measure(shape: GrowthShape, rounds: int) -> Times:
    from uccl_ep.group.thread_group import run_ranks
    from uccl_ep.settings import settings

    os.environ["UCCL_EP_RANKS_PER_NODE"] = str(-(-shape.ranks // shape.nodes))
    settings.cache_clear()
    found: Times = {}
    for mode, rank_of in (("low latency", _low_latency), ("throughput", _throughput)):

        def body(group: ThreadGroup, rank_of: Any = rank_of) -> list[tuple[float, float]]:
            times: list[tuple[float, float]] = rank_of(group, shape, rounds + _WARM_UP)
            return times[_WARM_UP:]

        per_round = list(zip(*run_ranks(shape.ranks, body), strict=True))
        for part, name in enumerate(("dispatch", "combine")):
            found[f"{mode}: {name} time"] = statistics.median(max(rank[part] for rank in ranks) for ranks in per_round)
    return found


def _inputs(group: ThreadGroup, shape: GrowthShape) -> Any:
    import torch

    generator = torch.Generator().manual_seed(group.rank())
    x = torch.randn(shape.tokens, shape.hidden, generator=generator).bfloat16()
    ids = torch.rand(shape.tokens, shape.num_experts, generator=generator).topk(shape.topk).indices
    return x, ids, torch.rand(shape.tokens, shape.topk, generator=generator)


def _low_latency(group: ThreadGroup, shape: GrowthShape, rounds: int) -> list[tuple[float, float]]:
    from uccl_ep.buffer import Buffer

    x, ids, weights = _inputs(group, shape)
    sizes = (shape.tokens, shape.hidden, shape.ranks, shape.num_experts)
    buffer = Buffer(group, 0, Buffer.get_low_latency_rdma_size_hint(*sizes), low_latency_mode=True, device="cpu")
    times = []
    try:
        for _ in range(rounds):
            group.barrier()
            begin = time.perf_counter()
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, shape.tokens, shape.num_experts, use_fp8=False)
            middle = time.perf_counter()
            buffer.low_latency_combine(rows, ids, weights, handle)
            times.append((middle - begin, time.perf_counter() - middle))
        group.barrier()
    finally:
        buffer.destroy()
    return times


def _throughput(group: ThreadGroup, shape: GrowthShape, rounds: int) -> list[tuple[float, float]]:
    from uccl_ep.buffer import Buffer

    x, ids, weights = _inputs(group, shape)
    nvl = (8 + 4 * shape.ranks) * 256 * (2 * shape.hidden + 1024) // 128 * 128
    buffer = Buffer(group, nvl, device="cpu")
    times = []
    try:
        for _ in range(rounds):
            group.barrier()
            begin = time.perf_counter()
            ranks, nodes, experts, in_rank, _ = buffer.get_dispatch_layout(ids, shape.num_experts)
            rows, _, _, _, handle, _ = buffer.dispatch(
                x,
                num_tokens_per_rank=ranks,
                num_tokens_per_rdma_rank=nodes,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=experts,
                topk_idx=ids,
                topk_weights=weights,
            )
            middle = time.perf_counter()
            buffer.combine(rows, handle)
            times.append((middle - begin, time.perf_counter() - middle))
        group.barrier()
    finally:
        buffer.destroy()
    return times
