"""Timed rounds of an exchange on all ranks of a shape: wall times, kernel times, graph replays; each result checked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from bench.device.exchange import Case, Exchange
from bench.device.kernel_times import KernelTimes, slowest
from bench.device.moved import rows_of, throughput_bytes
from bench.device.platforms import GpuPlatform, Platform, variables
from bench.device.shapes import LOW_LATENCY, Shape
from uccl_ep.errors import UcclEpError
from uccl_ep.group.thread_group import run_ranks

WARM_UP = 2
REPLAYS = 20
Times = dict[str, list[float]]  # seconds by part


class RankRounds:
    """One rank's rounds. All ranks do the same in the same order."""

    def __init__(self, group: Any, exchange: Exchange) -> None:
        self._group, self._exchange = group, exchange
        self.worst, self.late = 0.0, 0

    def _timed(self, times: Times, part: str, call: Callable[[], Any]) -> Any:
        """Runs a call with all ranks ready, and the stream empty before and after it."""
        self._exchange.platform.synchronize()
        self._group.barrier()
        begin = time.perf_counter()
        result = call()
        self._exchange.platform.synchronize()
        times.setdefault(part, []).append(time.perf_counter() - begin)
        self._group.barrier()  # torch may load a kernel of its own next, which must not happen while one of ours waits
        return result

    def round(self, number: int, times: Times) -> None:
        """One dispatch and combine, timed apart and checked."""
        x = self._exchange
        case = x.cases[number % 2]
        if x.low_latency:
            received, handle, _ = self._timed(times, "dispatch", lambda: x.low_latency_dispatch(case))
            rows = x.low_latency_rows(received)
            out, _ = self._timed(times, "combine", lambda: x.low_latency_combine(case, rows, handle))
        else:
            rows, handle = self._timed(times, "dispatch", lambda: x.dispatch(case))
            again = self._timed(times, "cached_dispatch", lambda: x.dispatch_cached(case, handle))
            out = self._timed(times, "combine", lambda: x.combine(again, handle))
        self.worst = max(self.worst, x.check(out, case, f"round {number}"))

    def replays(self, times: Times) -> None:
        """Records dispatch and combine of the first inputs, then times replays of both together.

        The round before has left the rows that combine sums, so that what is recorded holds communication only.
        """
        x, case = self._exchange, self._exchange.cases[0]
        out: list[Any] = [None]
        prepared = self.prepare(case)
        replay = x.platform.record(lambda: out.__setitem__(0, self._both(case, prepared)))
        for number in range(WARM_UP + REPLAYS):
            self._timed(times if number >= WARM_UP else {}, "replay", replay)
        self.worst = max(self.worst, x.check(out[0], case, "replayed"))

    def together(self, kernel_times: KernelTimes, rounds: int) -> dict[str, list[float]]:
        """Kernel times of dispatch and combine of the first inputs, all ranks' kernels queued before any starts."""
        x, case = self._exchange, self._exchange.cases[0]
        prepared = self.prepare(case)
        found: dict[str, list[float]] = {}
        for _ in range(WARM_UP + rounds):
            x.platform.synchronize()
            kernel_times.together(self._group)
            kernel_times.on = True
            out = self._both(case, prepared)
            self.late += kernel_times.were_late()
            x.platform.synchronize()
            self._group.barrier()
            kernel_times.on = False
            found = {name: found.get(name, []) + times for name, times in kernel_times.take().items()}
        self.worst = max(self.worst, x.check(out, case, "queued"))
        return {name: times[WARM_UP * len(times) // (WARM_UP + rounds) :] for name, times in found.items()}

    def prepare(self, case: Case) -> Any:
        """What a recording needs that is not recorded: the rows to combine, and throughput's routing."""
        x = self._exchange
        if not x.low_latency:
            return x.dispatch(case)[1]
        received, handle, _ = x.low_latency_dispatch(case)
        rows = x.low_latency_rows(received).clone()
        x.low_latency_combine(case, rows, handle)
        x.platform.synchronize()  # the handle lives until its combine has run
        return rows

    def _both(self, case: Case, prepared: Any) -> Any:
        x = self._exchange
        if not x.low_latency:
            return x.combine(x.dispatch_cached(case, prepared), prepared)
        _, handle, receive = x.low_latency_dispatch(case, hook=True)
        receive()
        out, receive = x.low_latency_combine(case, prepared, handle, hook=True)
        receive()
        return out


def measure_shape(platform: Platform, shape: Shape, library: Any = None) -> dict[str, Any]:
    """All ranks' rounds of one shape.

    Args:
        library: the GPU's KernelLibrary, for kernel times; None measures wall times only.

    Raises:
        UcclEpError: a rank failed, or a result was wrong.
    """
    kernel_times = KernelTimes(platform)

    def body(group: Any) -> dict[str, Any]:
        with platform.rank():
            exchange = Exchange(group, platform, shape)
            try:
                return _rank(group, exchange, kernel_times, library is not None)
            finally:
                exchange.close()

    with variables(ranks_per_node=shape.ranks_per_node, timeout_s=20):
        with kernel_times.watching(library) if library is not None else nullcontext():
            ranks = run_ranks(shape.ranks, body)
    return _sum_up(shape, ranks)


def _rank(group: Any, exchange: Exchange, kernel_times: KernelTimes, gpu: bool) -> dict[str, Any]:
    rounds, shape = RankRounds(group, exchange), exchange.shape
    times: Times = {}
    for number in range(WARM_UP):
        rounds.round(number, {})
    for number in range(shape.rounds):
        rounds.round(number, times)
    kernels: dict[str, list[float]] = {}
    why_no_replay = ""
    if gpu:
        group.barrier()
        kernel_times.on = True
        for number in range(shape.rounds):
            rounds.round(number, {})
        group.barrier()
        kernel_times.on = False
        kernels = kernel_times.take() | rounds.together(kernel_times, shape.rounds)
    try:
        rounds.replays(times)
    except UcclEpError as error:
        if gpu:
            raise
        why_no_replay = str(error)
    session = exchange.buffer.runtime
    assert session is not None
    ids = [c.inputs.ids.cpu() for c in exchange.cases]
    return {
        "times": times,
        "kernels": kernels,
        "late": rounds.late,
        "worst_row": rounds.worst,
        "ids": ids,
        "placement": session.placement.where,
        "placement_reason": session.placement.reason,
        "no_replay": why_no_replay,
    }


def _sum_up(shape: Shape, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    wall = {}
    for part in ranks[0]["times"]:
        worst = [max(of) for of in zip(*(rank["times"][part] for rank in ranks), strict=True)]
        wall[part] = {"median_ms": statistics.median(worst) * 1e3, "max_ms": max(worst) * 1e3, "rounds": len(worst)}
    kernels = slowest([rank["kernels"] for rank in ranks])
    result = {
        "shape": {**vars(shape), "nodes": shape.num_nodes},
        "placement": ranks[0]["placement"],
        "placement_reason": ranks[0]["placement_reason"],
        "wall": wall,  # the slowest rank's of each round
        "kernels": kernels,
        "late": sum(rank["late"] for rank in ranks),  # rounds that a rank had not queued when kernels began
        "worst_row": max(rank["worst_row"] for rank in ranks),
        "no_replay": ranks[0]["no_replay"],
    }
    if shape.mode != LOW_LATENCY and shape.num_nodes == 1 and kernels:
        rows = rows_of(shape, [rank["ids"][0] for rank in ranks])
        moved = zip(("throughput_dispatch", "throughput_combine"), throughput_bytes(shape, rows), strict=True)
        result["achieved"] = {name: achieved(kernels, name, count) for name, count in moved}
    return result


def achieved(kernels: dict[str, dict[str, float]], prefix: str, num_bytes: int) -> dict[str, float]:
    """Bytes a second that the kernels of one direction moved, by the slowest rank's time of each."""
    took_ms = sum(k["median_ms"] for name, k in kernels.items() if name.startswith(prefix))
    return {"bytes": num_bytes, "ms": took_ms, "gb_per_s": num_bytes / took_ms / 1e6 if took_ms else 0.0}


def open_library(platform: Platform) -> Any:
    """The kernel library that ranks on this platform share; None on a CPU."""
    if not isinstance(platform, GpuPlatform):
        return None
    from uccl_ep.gpu.kernels import library

    return library(platform.driver)
