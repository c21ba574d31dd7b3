"""The memory of some command rings, as producers and consumers of the ring benchmark see it, and one run over it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.device.clocks import Comparison, Longs, compare
from bench.device.ring_programs import (
    RING_HEADER_BYTES,
    ClockBenchArgs,
    ConsumerPlan,
    ConsumerReport,
    HostLibrary,
    RingBenchArgs,
    RingView,
)
from bench.device.ring_sides import HostMemory, Side
from uccl_ep.errors import UcclEpError

CAPACITY = 1024  # commands a ring, as UCCL_EP_RING_CAPACITY has it by default
LIMIT_NS = 20_000_000_000  # one run, which takes half a second on a machine of its own
_HEAD_BYTES = 24  # head, and what is known of tail and done
_RING_BYTES = -(-(RING_HEADER_BYTES + CAPACITY * 16) // 4096) * 4096
_QUESTIONS, _LEAST_ANSWERS = 500, 20
_ASKING_NS = 1_500_000_000


@dataclass(frozen=True)
class Run:
    """One run: `warps` producers push `pushes` times `width` commands each into `rings`, which `threads` take out."""

    rings: int
    threads: int
    width: int
    warps: int
    pushes: int
    interval: int = 0  # clock ticks between two pushes of a warp
    stamped: bool = False
    round_trips: bool = False


@dataclass(frozen=True)
class Seen:
    """What a run gave: taken commands and their first and last time, samples [n, 2], round trips in clock ticks."""

    taken: int
    seconds: float
    samples: Longs
    round_trips: Longs


@dataclass(frozen=True)
class Clock:
    """A comparison with the producers' clock, and how fast it ticks."""

    comparison: Comparison
    ticks_per_ns: float
    step_ns: int  # the smallest step of its nanoseconds


class RingWorld:
    """Up to `most_rings` rings; runs follow each other on it."""

    def __init__(self, side: Side, library: HostLibrary, most_rings: int) -> None:
        self._side, self._library, self.most_rings = side, library, most_rings
        self._words = HostMemory(4096)  # abort, refused, question, answer
        self._rings = HostMemory(most_rings * _RING_BYTES)
        self._shared = [side.share(m.address, m.num_bytes) for m in (self._words, self._rings)]
        self._heads = side.allocate(most_rings * _HEAD_BYTES)
        self._views = side.allocate(most_rings * ctypes.sizeof(RingView))

    def close(self) -> None:
        """Gives all memory back."""
        for memory in (self._words, self._rings):
            self._side.unshare(memory.address)
        for address in (self._heads, self._views):
            self._side.free(address)

    def _view(self, ring: int) -> RingView:
        base, words = self._shared[1] + ring * _RING_BYTES, self._heads + _HEAD_BYTES * ring
        return RingView(base + RING_HEADER_BYTES, words, words + 8, words + 16, base, base + 64, CAPACITY, 0)

    def _clear(self, rings: int) -> None:
        self._words.clear()
        self._rings.clear()
        self._side.write(self._heads, bytes(_HEAD_BYTES * self.most_rings))
        self._side.write(self._views, b"".join(bytes(self._view(r)) for r in range(rings)))

    def run(self, run: Run, most_samples: int = 0, sample_every: int = 1) -> Seen:
        """One run, checked: every command came once and whole.

        Raises:
            UcclEpError: commands were lost, torn, counted twice, or did not come in time.
        """
        self._clear(run.rings)
        owners = np.bincount(np.arange(run.warps) % run.rings, minlength=run.rings)
        commands = np.ascontiguousarray(owners * run.pushes * run.width, dtype=np.uint64)
        samples = np.zeros((max(1, most_samples), 2), dtype=np.int64)
        pointers = np.array([self._rings.address + r * _RING_BYTES for r in range(run.rings)], dtype=np.uint64)
        plan = ConsumerPlan(
            pointers.ctypes.data,
            commands.ctypes.data,
            samples.ctypes.data if most_samples else None,
            most_samples,
            LIMIT_NS,
            run.rings,
            CAPACITY,
            run.threads,
            sample_every,
        )
        with self._trips(run) as trips:
            consumers = self._library.start_consumers(plan)
            join = self._side.produce(self._args(run, trips), run.warps)
            in_time, report = self._library.join_consumers(consumers)
            join()
            raw = self._side.read(trips, run.warps * run.pushes * 8) if trips else b""
        self._judge(run, in_time, report)
        seconds = max(1, report.last_ns - report.first_ns) / 1e9
        return Seen(report.taken, seconds, samples[: report.num_samples], np.frombuffer(raw, dtype=np.int64))

    def _args(self, run: Run, trips: int) -> RingBenchArgs:
        words = self._shared[0]
        pointers = (self._views, words, words + 64, trips, LIMIT_NS, run.interval)
        return RingBenchArgs(*pointers, run.rings, run.width, run.pushes, int(run.stamped))

    @contextmanager
    def _trips(self, run: Run) -> Iterator[int]:
        address = self._side.allocate(run.warps * run.pushes * 8) if run.round_trips else 0
        try:
            yield address
        finally:
            if address:
                self._side.free(address)

    def _judge(self, run: Run, in_time: bool, report: ConsumerReport) -> None:
        refused = struct.unpack("<Q", self._words.peek(64, 8))[0]
        each = run.pushes * run.width
        numbers = run.warps * (each * (each - 1) // 2)
        weighted = run.warps * (run.warps + 1) // 2 * (each * (each - 1) // 2)
        due = (run.warps * each, numbers % 2**64, weighted % 2**64)
        seen = (report.taken, report.numbers, report.weighted)
        if not in_time or refused or seen != due:
            raise UcclEpError(
                f"ring benchmark, {run}: commands, sum of numbers, weighted sum are {seen}, due are {due}; {refused} "
                f"pushes were refused; {'in time' if in_time else f'not done in {LIMIT_NS / 1e9:.0f} s'}"
            )

    def clock(self) -> Clock:
        """Compares the producers' clock with this host's.

        Raises:
            UcclEpError: it did not answer.
        """
        self._clear(0)
        shared, own = self._shared[0], self._words.address
        result = self._side.allocate(40)
        try:
            args = ClockBenchArgs(shared + 128, shared + 192, result, shared, LIMIT_NS, _QUESTIONS)
            samples = np.zeros((_QUESTIONS, 3), dtype=np.int64)
            join = self._side.answer(args)
            answered = self._library.ask(own + 128, own + 192, samples.ctypes.data, _QUESTIONS, _ASKING_NS)
            self._words.fill(128, struct.pack("<Q", _QUESTIONS))  # ends the other side's waiting for questions
            join()
            ticks0, ns0, ticks1, ns1, step = struct.unpack("<5Q", self._side.read(result, 40))
        finally:
            self._side.free(result)
        if answered < _LEAST_ANSWERS:
            raise UcclEpError(f"the producers' clock answered {answered} questions in time, not {_LEAST_ANSWERS}")
        return Clock(compare(samples[:answered]), (ticks1 - ticks0) / max(1, ns1 - ns0), int(step))
