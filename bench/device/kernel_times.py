"""How long each kernel of a round runs on the GPU: timed events around every launch of a driver's kernel library."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.device.platforms import Mark, Platform

HOLD_MS = 40.0  # eight ranks queue a round in 5


class KernelTimes:
    """Marks around launches while `on`; by thread, since a rank is a thread.

    A kernel's time includes its waits for peers, so all ranks have to start at once: see `together`.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._marks: dict[int, list[tuple[str, Mark, Mark]]] = {}
        self._lock = threading.Lock()
        self._gate: Any = None
        self.on = False

    def together(self, group: Any) -> None:
        """Every rank's stream goes on at one moment, after all ranks have had time to queue a round: no kernel then
        waits for a host that has not yet come to launch a peer's. Called by every rank, its stream empty."""
        group.barrier()
        if group.rank() == 0:
            self._gate = self._platform.hold(HOLD_MS)
        group.barrier()
        driver = self._platform.driver
        driver.wait(driver.current_stream(), self._gate)

    def were_late(self) -> bool:
        """Whether the streams went on before the calling rank had queued its round."""
        return bool(self._platform.driver.query(self._gate))

    @contextmanager
    def watching(self, library: Any) -> Iterator[None]:
        """Stands between the ranks and `library.launch` (uccl_ep.gpu.kernels.KernelLibrary) for a while."""
        plain = library.launch

        def launch(name: str, args: bytes, grid: int, warps: int, stream: Any) -> None:
            if not self.on or self._platform.driver.capturing(stream):
                plain(name, args, grid, warps, stream)
                return
            with self._platform.driver.on(stream):
                before = self._platform.mark()
                plain(name, args, grid, warps, stream)
                after = self._platform.mark()
            with self._lock:
                self._marks.setdefault(threading.get_ident(), []).append((name, before, after))

        library.launch = launch
        try:
            yield
        finally:
            del library.launch  # the class's own again

    def take(self) -> dict[str, list[float]]:
        """Milliseconds by kernel of what the calling thread has launched since the last call; waits for it."""
        with self._lock:
            marks = self._marks.pop(threading.get_ident(), [])
        found: dict[str, list[float]] = {}
        for name, before, after in marks:
            found.setdefault(name, []).append(after.ms_after(before))
        return found


def slowest(per_rank: list[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Per kernel: of the launches of a round, the slowest rank's; median and worst over the rounds, ms."""
    names = {name for rank in per_rank for name in rank}
    summary = {}
    for name in sorted(names):
        rounds = list(zip(*(rank[name] for rank in per_rank if name in rank), strict=False))
        worst = [max(times) for times in rounds]
        summary[name] = {"median_ms": statistics.median(worst), "max_ms": max(worst), "rounds": len(worst)}
    return summary
