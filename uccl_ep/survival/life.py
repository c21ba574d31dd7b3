"""One life of a Buffer: what recover() makes anew, from the session up to the calls.

A life is a Session: segments, proxy, handshake. The new one's memory is new on purpose: a process that was stopped,
excluded, and wakes up still maps the old memory, and what it writes there reaches nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.config import Config
from uccl_ep.device.protocol import Device
from uccl_ep.errors import refuse
from uccl_ep.group.group import Group
from uccl_ep.low_latency.calls import LowLatencyCalls
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.session.barrier import Collective
from uccl_ep.session.device_choice import Choice, choose_device, make_device
from uccl_ep.session.session import Session, Start
from uccl_ep.settings import Settings, settings
from uccl_ep.survival.captured import Captured
from uccl_ep.survival.masks import Masks
from uccl_ep.survival.sleep import Sleep
from uccl_ep.system.os_limits import naming
from uccl_ep.system.tracebacks import shorten
from uccl_ep.throughput.calls import ThroughputCalls
from uccl_ep.throughput.launch import Throughput


@dataclass(frozen=True)
class Terms:
    """What all lives of a Buffer are made with.

    Attributes:
        budgets: num_nvl_bytes, num_rdma_bytes.
        alike: what all ranks must have alike besides the Buffer's own arguments.
        default_config: gives the Config of a dispatch without one, for a number of ranks.
        rack_by: who asks that hosts which share an NVLink domain are one node; empty: nobody.
        captured: of the next life: the captured calls of the one before, which may go on in it.
    """

    budgets: tuple[int, int]
    low_latency_mode: bool
    enable_shrink: bool
    settings: Settings
    choice: Choice
    alike: Mapping[str, Any]
    default_config: Callable[[int], Config]
    rack_by: str = ""
    captured: Captured | None = None

    @staticmethod
    def checked(
        device: str | None,
        budgets: tuple[int, int],
        modes: tuple[bool, bool, bool],
        alike: Mapping[str, Any],
        default_config: Callable[[int], Config],
    ) -> Terms:
        """The terms that the environment's settings give. `device` chooses the device; without it the settings do.

        Args:
            modes: low_latency_mode, enable_shrink, allow_mnnvl.

        Raises:
            InvalidArgument: an argument or a UCCL_EP_* variable is out of range.
        """
        shorten(lambda: settings().explain)
        names = "low_latency_mode", "enable_shrink", "allow_mnnvl"
        low_latency_mode, enable_shrink, allow_mnnvl = map(checks.check_bool, names, modes)
        check_budgets(budgets, low_latency_mode)
        environment = settings()
        rack_by = "allow_mnnvl=True" if allow_mnnvl else ""
        if environment.mnnvl != "auto":
            site = environment.from_site("mnnvl")
            by = "UCCL_EP_MNNVL=1" if site is None else site.words
            rack_by = by if environment.mnnvl == "1" else ""
        with naming("the choice of a device"):
            choice = choose_device(device, environment.device)
        return Terms(budgets, low_latency_mode, enable_shrink, environment, choice, alike, default_config, rack_by)


def check_budgets(budgets: tuple[int, int], low_latency_mode: bool) -> None:
    """Raises InvalidArgument when a Buffer cannot have these num_nvl_bytes and num_rdma_bytes."""
    for name, value in zip(("num_nvl_bytes", "num_rdma_bytes"), budgets, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value % 128:
            refuse(name, value, "a multiple of 128, 0 or more")
    if low_latency_mode and budgets[1] == 0:
        allowed = "the low-latency size with low_latency_mode=True"
        refuse("num_rdma_bytes", 0, allowed, "Buffer.get_low_latency_rdma_size_hint gives it.")


class Life:
    """A session, the device of its kernels, and the calls on both. Made collectively by the ranks of `group`.

    It knows no Buffer: a Buffer that nobody holds any more ends at once.

    Attributes:
        session, device, collective: memory and proxy; what kernels run on; the barrier of all ranks.
        throughput, low_latency, masks, sleep: the calls. low_latency_half: what queues the low-latency ones.
        steps: calls of switch_members() in this life.
    """

    steps = 0

    def __init__(self, group: Group, terms: Terms) -> None:
        self.terms, self._captured = replace(terms, captured=None), terms.captured
        self._open: Device | None = None
        start = Start(terms.choice.driver, self._prepare, terms.alike, terms.rack_by)
        modes = terms.low_latency_mode, terms.enable_shrink
        try:
            with naming("the start of a Buffer"):
                self.session = Session(group, terms.budgets, *modes, terms.settings, start)
        except BaseException:
            self.close_device()  # this rank was ready, and another one was not
            raise
        self._captured = None
        if self.session.graphs is not None:
            self.low_latency_half.expect_replays(self.session.graphs)

    def _prepare(self, session: Session) -> None:
        self._open = self.device = device = make_device(self.terms.choice, session)
        self.collective = Collective(session, device)
        low_latency, throughput = LowLatency(session, device), Throughput(session, device)
        self._refuse_outstanding, self._counted = low_latency.refuse_outstanding, (low_latency, throughput)
        allowed = self.terms.low_latency_mode
        self.low_latency = LowLatencyCalls(session, device, self.collective, low_latency, allowed)
        self.throughput = ThroughputCalls(session, device, throughput, self.terms.default_config)
        self.masks = Masks(session, device, low_latency, throughput, self.collective)
        self.sleep = Sleep(session, device, self.collective, low_latency)
        assert session.agreement_service is not None  # which this session has made or taken over
        for agreed in (session.agreement_service.agreed_masks, session.agreement_service.changes):
            agreed.begin(session.life)
        device.settle()
        self.low_latency_half = low_latency
        if self._captured is not None:
            session.told_of_graphs = self._captured.told_in(self, session)

    def settle(self, what: str) -> None:
        """Waits for this rank's queued kernels. Raises InvalidArgument, which names `what`, when a receive hook of a
        low-latency call has not run."""
        self._refuse_outstanding(what)
        self.device.settle()

    def calls_made(self) -> tuple[int, int, int, int]:
        """Low-latency dispatches and combines, throughput calls and barriers so far, which all ranks make alike; after
        this rank's queued kernels."""
        low_latency, throughput = self._counted
        dispatches, combines, *_ = low_latency.progress()
        return dispatches, combines, throughput.calls, self.collective.round

    def captured(self) -> Captured | None:
        """Its captured calls, for the next life; None: there are none."""
        sizes = self.low_latency_half.captured
        return None if sizes is None else Captured(self, sizes)

    def members(self) -> list[int]:
        """Ranks that take part, ascending."""
        return [rank for rank in range(self.session.num_ranks) if rank not in self.session.absent]

    def memory(self, dtype: torch.dtype, size: torch.Size | None, offset: int, low_latency: bool) -> torch.Tensor:
        """A view of this rank's raw memory, as Buffer.get_local_buffer_tensor documents it."""
        plan = self.session.plan
        begin = plan.low_latency_base if low_latency else plan.throughput.base
        length = plan.low_latency_budget if low_latency else plan.throughput.bytes()
        element = dtype.itemsize
        wanted = length - offset if size is None else size.numel() * element
        if offset < 0 or offset % element or wanted < 0 or offset + wanted > length:
            refuse("size and offset", (size, offset), f"a span inside {length} bytes")
        span = self.session.data[begin + offset : begin + offset + wanted // element * element].view(dtype)
        return span if size is None else span.view(size)

    def empty_rows(self, num_rows: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows where all ranks of the node reach them, if the device has such memory."""
        shape = checks.check_int("num_rows", num_rows, 0, 1 << 40), checks.check_int("hidden", hidden, 0, 1 << 20)
        return self.device.empty(*shape, dtype=dtype)

    def set_tag(self, tag: int) -> None:
        """Sets the step that the following calls belong to."""
        self.session.context.tag = checks.check_int("tag", tag, 0, (1 << 32) - 1)
        self.low_latency.refresh_tag()

    def barrier(self) -> None:
        """Waits until all ranks have come and everything that they sent before is delivered. Collective."""
        self.session.check()
        self.session.settle()
        self.collective.barrier()

    def dump_flight_record(self, path: str) -> str:
        """Writes the rank's record into the folder `path`, or where those of faults go; returns the file's path."""
        recorder = self.session.recorder
        return str(recorder.dump(self.session, Path(path) if path else None, "the program asked for it"))

    def close_device(self) -> None:
        """Closes the device when its queued kernels have run. Idempotent."""
        device, self._open = self._open, None
        if device is not None:
            device.close()

    def end(self) -> None:
        """Ends with what is queued, stops the proxy, drops the memory.

        Raises:
            PeerTimeout, PeerLost, ...: a fault that no call has raised yet. The memory is dropped all the same.
        """
        try:
            self.close_device()
            if not self.device.host_memory and not self.session.fault_raised:
                self.session.check()  # calls do not wait for their kernels: this is the last chance to tell
        finally:
            self.session.close()
