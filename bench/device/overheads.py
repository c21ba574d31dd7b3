"""The host's time in each call, and the time of a replayed dispatch and combine: one rank, which never waits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.device.exchange import Exchange
from bench.device.platforms import Platform, variables
from bench.device.rounds import RankRounds
from bench.device.shapes import LOW_LATENCY, THROUGHPUT, Shape
from uccl_ep.errors import UcclEpError
from uccl_ep.group.thread_group import run_ranks

Calls = dict[str, list[float]]


def measure(platform: Platform, quick: bool, gpu: bool) -> list[dict[str, Any]]:
    """Both modes: microseconds of the host in each call (the median), and milliseconds of a replay."""
    found = []
    for mode in (LOW_LATENCY, THROUGHPUT):
        rounds = 10 if quick else 50
        shape = Shape(mode, 1, 1, 128, rounds=rounds) if gpu else Shape(mode, 1, 1, 8, 256, 4, 8, rounds)

        def body(group: Any, shape: Shape = shape) -> dict[str, Any]:
            with platform.rank():
                exchange = Exchange(group, platform, shape)
                try:
                    return _rank(group, exchange, gpu)
                finally:
                    exchange.close()

        with variables(timeout_s=20):
            (one,) = run_ranks(1, body)
        found.append({"shape": vars(shape), **one})
    return found


def _rank(group: Any, exchange: Exchange, gpu: bool) -> dict[str, Any]:
    calls: Calls = {}
    for number in range(exchange.shape.rounds + 2):
        _calls(exchange, calls if number >= 2 else {})
    times: dict[str, list[float]] = {}
    try:
        RankRounds(group, exchange).replays(times)
    except UcclEpError:
        if gpu:
            raise
    return {
        "host_us": {name: statistics.median(values) * 1e6 for name, values in calls.items()},
        "replay_ms": statistics.median(times["replay"]) * 1e3 if times else None,
    }


def _calls(x: Exchange, calls: Calls) -> None:
    """Each call with an empty stream before it, and only the host's time until it returns."""

    def timed(name: str, call: Callable[[], Any]) -> Any:
        x.platform.synchronize()
        begin = time.perf_counter()
        result = call()
        calls.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    case = x.cases[0]
    if x.low_latency:
        received, handle, receive = timed("low_latency_dispatch", lambda: x.low_latency_dispatch(case, hook=True))
        timed("dispatch hook", receive)
        rows = x.low_latency_rows(received)
        _, receive = timed("low_latency_combine", lambda: x.low_latency_combine(case, rows, handle, hook=True))
        timed("combine hook", receive)
    else:
        rows, handle = timed("layout and dispatch", lambda: x.dispatch(case))
        timed("cached dispatch", lambda: x.dispatch_cached(case, handle))
        timed("combine", lambda: x.combine(rows, handle))
    x.platform.synchronize()
