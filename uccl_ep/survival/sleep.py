"""Sleep and wake: between a Buffer's calls the memory of its rows goes back to the system.

For programs in which training and serving take turns. What is small stays: control words, signals, rings, counters,
the epochs of both modes, connections and proxies. So a Buffer that wakes up goes on where it was: the next call has the
next number, and handles, captured graphs and other ranks' mappings mean what they meant. Only rows go, which no call
reads that another call has written, once all ranks have met.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.recorder.calls import recorded
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session
from uccl_ep.sizes import format_bytes
from uccl_ep.system import ownership
from uccl_ep.system.ownership import Owner, in_turn, refuse_elsewhere

if TYPE_CHECKING:
    from uccl_ep.survival.life import Life


@dataclass(frozen=True)
class SleepReport:
    """What one pause() or resume() has done on this rank. `str()` is a table.

    Attributes:
        seconds: that the call took, with the wait for the other ranks.
        before, after: bytes that the Buffer's memory took before and after the call, by purpose: pages that exist, not
            address space. After resume() pages come back as rows are first written.
        kept: why memory that could be given back was not, by purpose.
    """

    seconds: float
    before: Mapping[str, int]
    after: Mapping[str, int]
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def freed_bytes(self) -> int:
        """Bytes before less bytes after."""
        return sum(self.before.values()) - sum(self.after.values())

    def __str__(self) -> str:
        rows = [(name, before, self.after[name]) for name, before in self.before.items()]
        rows.append(("total", sum(self.before.values()), sum(self.after.values())))
        lines = [f"{format_bytes(b):>12} {format_bytes(a):>12}  {n:<16} {self.kept.get(n, '')}" for n, b, a in rows]
        return "\n".join([f"{'before':>12} {'after':>12}  {self.seconds:.3f} s", *(line.rstrip() for line in lines)])


class Sleep:
    """pause() and resume() of a Buffer in one of its lives.

    Args:
        collective: the barrier in which the ranks meet. low_latency: says whether a result is outstanding.
    """

    def __init__(self, session: Session, device: Device, collective: Collective, low_latency: LowLatency) -> None:
        self._session, self._device = session, device
        self._collective, self._low_latency = collective, low_latency

    def pause(self) -> SleepReport:
        """Meets all ranks, then gives memory back. Collective.

        Raises:
            InvalidArgument: a receive hook has not run; nothing was done.
            PeerTimeout, PeerLost: a rank did not come; the Buffer is awake.
        """
        begin = time.monotonic()
        self._session.check()
        self._device.begin()
        self._device.check_host_wait()
        self._low_latency.refuse_outstanding("pause()")
        before = self._session.regions.held()
        self._collective.barrier()
        self._device.give_back()
        kept = self._session.fall_asleep()
        if "zero-copy rows" not in kept:
            self._low_latency.forget_rows()
        return SleepReport(time.monotonic() - begin, before, self._session.regions.held(), kept)

    def resume(self) -> SleepReport:
        """Takes memory again, then meets all ranks. Collective.

        Raises:
            UcclEpError: a GPU has not the memory; the Buffer sleeps on.
            PeerTimeout, PeerLost: a rank did not come, or has ended meanwhile; the Buffer sleeps on.
        """
        if not self._session.asleep:
            raise InvalidArgument("resume() is refused: this Buffer does not sleep. pause() comes first")
        begin = time.monotonic()
        self._session.check()
        before = self._session.regions.held()
        self._session.wake_up()
        self._collective.barrier()
        self._session.awake()
        return SleepReport(time.monotonic() - begin, before, self._session.regions.held())


class Sleeper:
    """The part of a Buffer that knows whether calls can be made, and that sleeps and wakes up."""

    runtime: Session | None
    _life: Life
    _owner: Owner

    @property
    def _living(self) -> Life:
        """The life that calls are made in."""
        if self._owner.pid != ownership.here:
            refuse_elsewhere(self._owner.pid)
        if self.runtime is None:
            raise InvalidArgument("this Buffer has been destroyed")
        if self.runtime.unusable:
            self.runtime.refuse_use()
        return self._life

    @property
    def _resting(self) -> Life:
        """The life, asleep or not: what asks and does not call looks there."""
        if self.runtime is None or not self.runtime.asleep:
            return self._living
        refuse_elsewhere(self._owner.pid)
        return self._life

    @in_turn("pause")
    @recorded("pause")
    def pause(self) -> SleepReport:
        """Gives the memory of rows back to the system, until resume(). Collective. Ours, not DeepEP's.

        For a trainer that takes turns with rollout: weights and optimizer states need the memory meanwhile. Connections
        and the numbers of calls stay, so that captured graphs and handles go on after resume(). The report says what of
        the memory cannot go, and why: rows that a NIC has registered, for one. On a CPU addresses stay; what a view of
        get_local_buffer_tensor shows is gone, and so is what was written into get_next_low_latency_combine_buffer's
        rows. Results that the caller holds stay. On a CPU, free pages of former results go too; on a GPU they are
        torch's (torch.cuda.empty_cache).

        Until resume() every call is refused but destroy, recover, members, memory_bill, stats and dump_flight_record.
        Replays of captured graphs must have ended before, on any stream, and none may be started.

        Returns:
            A SleepReport: seconds, and bytes before and after by purpose; print it.

        Raises:
            InvalidArgument: the receive hook of a low-latency call has not run; nothing was done.
            NotSupported: in a graph capture.
        """
        return self._living.sleep.pause()

    @in_turn("resume")
    @recorded("resume")
    def resume(self) -> SleepReport:
        """Wakes up after pause(): all calls may be made again, when all ranks have come. Collective.

        Ranks may come UCCL_EP_TIMEOUT_S apart. On a CPU pages come back when rows are first written to them.

        Returns:
            A SleepReport, as pause().

        Raises:
            PeerLost: a rank has ended, perhaps while this one slept. recover() goes on without it, awake.
            PeerTimeout: a rank did not come.
            UcclEpError: the GPU has not the memory; the Buffer sleeps on, and resume() may be called again.
            InvalidArgument: the Buffer does not sleep.
        """
        return self._resting.sleep.resume()
