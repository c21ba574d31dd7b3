"""A rank's session: it meets the other ranks, makes its memory and its proxy, reports faults, and says goodbye."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, PeerLost, PeerTimeout, refuse
from uccl_ep.fabric.choice import explain
from uccl_ep.fabric.facts import host_address, tell
from uccl_ep.fabric.nearness import Nearness, near_nics
from uccl_ep.fabric.sysfs import read_machine
from uccl_ep.group.group import Group
from uccl_ep.group.handshake import (
    Endpoints,
    Hello,
    Ready,
    agreed_graphs,
    compare_settings,
    exchange,
    host_identity,
    process_name,
)
from uccl_ep.group.self_description import describe_self
from uccl_ep.layout.arrangement import Whole, arrange
from uccl_ep.layout.combine_form import CombineForm
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryBill, MemoryPlan
from uccl_ep.layout.regions import Peer, Regions
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.death_notices import watched_by
from uccl_ep.membership.secret import OWN_PAIR, deal
from uccl_ep.observe.publish import publish
from uccl_ep.plan.fill import Agreed
from uccl_ep.plan.start import show_start
from uccl_ep.recorder.recorder import FlightRecorder
from uccl_ep.session.device_choice import gpu_facts, kind_of
from uccl_ep.session.diagnosis import Diagnosis
from uccl_ep.session.proxy_idle import cores_of, may_nap
from uccl_ep.session.proxy_link import CONNECT_TIMEOUT_S, ProcessProxy, ProxyConfig, ProxyLink, ThreadProxy
from uccl_ep.settings import PREFIX, Settings
from uccl_ep.system.os_limits import address_space, in_words, make_room
from uccl_ep.system.ownership import NoCopies
from uccl_ep.system.tracebacks import last_words

if TYPE_CHECKING:
    import torch

    from uccl_ep.gpu.driver import Driver

_DRAIN_S = 2.0
_LOOK_S = 0.0005  # between two looks at what other ranks have told
_WORDS_S = 0.5  # how long a rank whose start-up failed waits for the other ranks to say why theirs did
_SHARED = (
    "ranks_per_node transport proxy_threads rings provider queue_pairs low_latency_combine low_latency_topk".split()
)  # settings that all ranks must have alike


@dataclass(frozen=True)
class Start:
    """What a session starts with besides settings.

    Attributes:
        driver: the GPU that this rank's kernels run on; None: the CPU.
        prepare: makes what else the rank needs, given the session. When it fails on one rank, no rank starts.
        alike: settings of whoever makes the session that all ranks must have alike.
        rack_by: who asks that hosts which share an NVLink domain are one node; empty: nobody.
    """

    driver: Driver | None = None
    prepare: Callable[[Session], None] = lambda session: None
    alike: Mapping[str, Any] = field(default_factory=dict)
    rack_by: str = ""


class Session(NoCopies):
    """All of a rank but its calls. The ranks of the group make their sessions together, or, from a
    SurvivorGroup, by those that are left of it.

    Attributes:
        rank, num_ranks, topology, plan, family: what was agreed. notes: (choice, why) about NICs and the transport.
        hellos: what each rank has said of itself; empty for absent ranks.
        absent: ranks of the original group that take no part. hosts, domains: host identity and NVLink domain of every
            one of its ranks.
        agreement_service: what survivors agree by when ranks are lost.
        regions: this rank's memory and what it sees of others'.
        closed: close() was called. asleep: memory was given back (fall_asleep). unusable: either.
        settle: what a call does first, when nothing speaks against it.
        told_of_graphs: what this rank tells the others (Ready.graphs). graphs: sizes of captured calls that go on in
            this life, as all ranks have agreed; None: none does.
        context: the kernels' RankContext. combine_form: of low-latency combines, once memory is laid out for them.
    """

    told_of_graphs: Sequence[int] = ()

    def __init__(
        self,
        group: Group,
        budgets: tuple[int, int],
        low_latency: bool,
        shrink: bool,
        settings: Settings,
        start: Start = Start(),  # noqa: B008 - frozen
    ) -> None:
        self.rank, self.num_ranks, self.settings = group.rank(), group.size(), settings
        make_room(100 + 8 * self.num_ranks * max(1, settings.proxy_threads))
        self._driver, self._prepare = start.driver, start.prepare
        self._proxy: ProxyLink | None = None
        self._guard: _native.ProxyGuard | None = None
        self.closed = self.asleep = self.unusable = False
        self._admitted = 0  # bytes of zero-copy rows that NICs have registered
        self._closing = threading.Lock()  # the agreement service calls on a thread of its own
        self.absent: frozenset[int] = getattr(group, "absent", frozenset())
        self.agreement_service: AgreementService | None = getattr(group, "agreement_service", None)
        self._owns_roll_call = self.agreement_service is None
        self.shrink, self.fault_raised, self.last_kernel = shrink, False, ""  # the one queued last; for reports
        self.notes: list[tuple[str, str]] = []
        self.combine_form: CombineForm | None = None
        self.settle: Callable[[], None] = lambda: None
        self.recorder: FlightRecorder = FlightRecorder(self.rank, settings, kind_of(start.driver) == "cuda")
        shared = {
            "num_nvl_bytes": budgets[0],
            "num_rdma_bytes": budgets[1],
            "low_latency_mode": low_latency,
            "enable_shrink": shrink,
            "allow_mnnvl": start.rack_by != "",
            **{PREFIX + name.upper(): getattr(settings, name) for name in _SHARED},
            "device": kind_of(start.driver),
            **start.alike,
        }
        self.hellos = self._introduce(group, shared)
        self.hosts: list[str] = getattr(group, "hosts", [i.host_id for i in self.hellos])
        self.domains = self._domains(getattr(group, "domains", ()))
        keeps = getattr(group, "keeps_places", False)
        whole = Whole(self.hosts, self.domains, self.absent, shrink, start.rack_by, keeps)
        self._arrangement = made = arrange(settings, self._present, whole, self.rank)
        self.topology, self.fabric, self.family = made.topology, made.fabric, made.fabric.family
        self.plan = MemoryPlan(self.topology, *budgets, low_latency, whole.entire(settings))
        # The classic per-expert layout's send area is what get_next_low_latency_combine_buffer's shape needs; with
        # memfds it costs nothing until it is written. Its bound is not known yet, so the span gets the whole rest.
        # libfabric's registration takes every page at once, and a limit of address space (`ulimit -v`) counts what is
        # only reserved: there it gets as much as the rows have.
        if low_latency:
            pins, late = self.fabric.pins_memory, self.fabric.registers_late
            limited = (pins and not late) or any(i.limited for i in self._present)  # others map it, too
            most = min(budgets[1] if limited else 1 << 35, _native.MAX_REGION_BYTES - self.plan.zero_copy_offset)
            self.plan.reserve_zero_copy(most, pins, late, self.placement)
        self.regions = self._choose_regions()
        self._explain()
        try:
            self._connect(group, shrink)
            self._owns_roll_call = True
        except BaseException:
            self.close()  # a failed start leaves nothing behind
            raise

    @property
    def placement(self) -> Placement:
        """Where rows lie, and why."""
        return self._arrangement.placement

    # ---- start -------------------------------------------------------------------------------------------------

    def _connect(self, group: Group, shrink: bool) -> None:
        """Makes the last two exchanges. A rank that fails says so in the next one, and all raise the same error."""
        error, endpoints = "", None
        try:
            self._make_segments()
            if self.agreement_service is None:
                self.agreement_service = AgreementService(
                    self.rank, self.num_ranks, self._secret, self._interface(), quorum=True, absent=self.absent
                )
            self.agreement_service.on_call, self.agreement_service.on_goodbye = self.hear_call, self.hear_goodbye
            self.agreement_service.on_notice = self.regions.hear_abroad
            self._proxy = self._make_proxy()
            endpoints = self._endpoints(self._proxy.local_address())
        except Exception as failure:
            error = in_words(failure)
        all_endpoints = exchange(group, endpoints or Endpoints(self.rank, 0, -1, 0, -1, 0, 0, b"", error))
        ready = Ready(self.rank)
        try:
            self._meet(all_endpoints, shrink)
            self._diagnosis = self._diagnose()
            self._prepare(self)
            ready = Ready(self.rank, graphs=list(self.told_of_graphs))
            self._prepare = Start.prepare  # it may hold an object that holds this session
        except Exception as failure:
            ready = Ready(self.rank, in_words(failure))
            if self.agreement_service is not None:  # the group may be what broke
                self.agreement_service.report_wait(-1, ready.error)
        try:
            self.graphs = agreed_graphs(exchange(group, ready))
        except PeerLost as loss:
            raise self._with_others_words(loss) from loss

    def _with_others_words(self, loss: PeerLost) -> PeerLost:
        """The error of a loss at start-up. If other ranks have left because they lost a third one, it names that."""
        words = {} if self.agreement_service is None else self.agreement_service.wait_reports(None, _WORDS_S)
        said = "".join(f"; rank {rank} had said: {word.reason}" for rank, word in sorted(words.items()))
        phase = f"{loss.phase}{said}"
        return PeerLost(rank=self.rank, peer=loss.peer, phase=phase, reason=loss.reason) if said else loss

    def _introduce(self, group: Group, shared: Mapping[str, Any]) -> list[Hello]:
        if not 1 <= self.num_ranks <= _native.MAX_RANKS:
            refuse("group", self.num_ranks, f"of 1 to {_native.MAX_RANKS} ranks")
        pair, known = OWN_PAIR, self.agreement_service
        hello = Hello(
            rank=self.rank,
            hostname=socket.gethostname(),
            host_id=host_identity(),
            process=process_name(),
            pid=os.getpid(),
            interface=host_address(self.settings)[0],
            settings=dict(shared),
            session=secrets.randbits(63),
            public=pair.public() if known is None else b"",
            limited=int(address_space() is not None),
            **tell(self.settings, self._driver),
            **gpu_facts(self._driver),
            self_description=describe_self(self.settings).plain(),
        )
        hellos = exchange(group, hello)
        self._present = [i for i in hellos if i.rank not in self.absent]
        compare_settings(self._present)
        new = self._present[0].session
        self._secret = deal(group, pair, self._present) if known is None else known.secret_of(new)
        return hellos

    def _domains(self, before: Sequence[str]) -> list[str]:
        """NVLink domain of each rank: as it says now, of one that is absent as it said last."""
        return [before[i.rank] if i.rank in self.absent and before else i.domain for i in self.hellos]

    def _interface(self) -> str:
        one_host = len({i.host_id for i in self._present}) == 1
        return self.settings.interface or ("127.0.0.1" if one_host else self.hellos[self.rank].interface)

    def _choose_regions(self) -> Regions:
        if self._driver is None:
            return Regions(self.plan, self.placement, self.rank, self.settings)
        from uccl_ep.gpu.memory import GpuRegions

        session = self._present[0].session
        return GpuRegions(self.plan, self.placement, self.rank, self.settings, self._driver, session)

    def _explain(self) -> None:
        if self.rank == (me := self._present[0]).rank:
            where = me.device if self._driver is None else f"{me.device}, {self._driver.facts.name} ({me.gpu})"
            agreed = Agreed(self._present, self.settings, self._arrangement)
            show_start(agreed, self.bill, where)

    def show(self, *choices: tuple[str, str]) -> None:
        """Prints each (choice, why) once, with UCCL_EP_EXPLAIN=1."""
        if self.settings.explain and self.rank == self._present[0].rank:
            explain(choices, sys.stderr)

    def _look_around(self) -> Nearness:
        if not (nics := [nic for nic, _, _ in self.fabric.config.nics]):
            return Nearness()
        return near_nics(nics, read_machine(), frozenset(os.sched_getaffinity(0)))

    def _choose_idle(self) -> tuple[bool, str]:
        here = [i.pid for i in self._present if i.host_id == self.hellos[self.rank].host_id]
        s, gpu = self.settings, self._driver is not None
        return may_nap(s.proxy_idle, gpu, self.family, cores_of(here), len(here) * (s.proxy_threads + 1))

    def _make_segments(self) -> None:
        self._near = self._look_around()
        self.regions.numa_node = self._near.node
        self.regions.say_abroad = self._say_abroad
        if self._driver is not None:
            from uccl_ep.gpu.device import check_group

            check_group(self.hellos, self.rank)
        self.regions.make()

    def _make_proxy(self) -> ProxyLink:
        plan, s, regions = self.plan, self.settings, self.regions
        way, _ = self.placement.ways.get(self.rank, ("none", ""))
        self._idle = self._choose_idle()
        config = ProxyConfig(
            rank=self.rank,
            num_ranks=self.num_ranks,
            num_workers=s.proxy_threads,
            spans=regions.spans(),
            control_offset=plan.control_offset,
            num_channels=plan.num_channels,
            late_span=len(regions.spans()) - 1 if plan.zero_copy_late else -1,
            rings_fd=regions.rings.fd,
            num_rings=regions.num_rings,
            ring_capacity=s.ring_capacity,
            counters_fd=regions.counters.fd,
            family=self.family,
            session=self._present[0].session,
            secret=self._secret,
            interface=self._interface(),
            max_in_flight=s.max_in_flight,
            max_in_flight_bytes=s.max_in_flight_bytes,
            max_in_flight_bytes_all=s.max_in_flight_bytes_all,
            nap_when_idle=self._idle[0],
            shuffle_seed=s.shuffle_seed,
            connect_timeout_s=min(CONNECT_TIMEOUT_S, s.timeout_s),
            cpus=list(s.pin_cpus),
            near_cpus=list(self._near.cpus),
            losses_are_absences=self.shrink,
            fabric=replace(self.fabric.checked_config(), flush_by_read=way == "nic_read"),
            flush_call=list(self._driver.flush_call()) if self._driver is not None and way == "driver" else [],
            devices=regions.devices(),
            unreached=self.topology.unreached(self.rank),
            **self.recorder.proxy_settings(),
        )
        if s.proxy == "process" and self.family == "loopback":
            raise InvalidArgument("UCCL_EP_PROXY=process and UCCL_EP_TRANSPORT=loopback exclude each other")
        return ProcessProxy(config) if s.proxy == "process" else ThreadProxy(config)

    def _endpoints(self, address: bytes) -> Endpoints:
        endpoints = self.regions.endpoints(address, 0 if self._proxy is None else self._proxy.pid)
        return replace(
            endpoints, agreement_service="" if self.agreement_service is None else self.agreement_service.address
        )

    def _meet(self, all_endpoints: list[Endpoints], shrink: bool) -> None:
        me = self.hellos[self.rank]
        if self._owns_roll_call and self.agreement_service is not None:
            there = [m for m in all_endpoints if m.rank not in self.absent]
            self.agreement_service.meet({m.rank: m.agreement_service for m in there})
        same_host = [i.host_id == me.host_id for i in self.hellos]
        members = self.topology.members(node := self.topology.node_of[self.rank])
        others = [m for m in all_endpoints if m.rank != self.rank and same_host[m.rank]]
        peers = [Peer(m, m.rank in members, self.hellos[m.rank].process == me.process) for m in others]
        abroad = [Peer(all_endpoints[rank], True, False, False) for rank in self.topology.abroad(self.rank)]
        self.regions.meet([*peers, *abroad])
        if self.agreement_service is not None:
            self.agreement_service.see(self.regions.neighbours())
        remote = [of != node for of in self.topology.node_of]
        assert self._proxy is not None
        self._proxy.connect(
            [m.address if remote[m.rank] else b"" for m in all_endpoints],
            [m.flat_bytes if remote[m.rank] else 0 for m in all_endpoints],
            [
                m.watch_pid if same_host[m.rank] and m.watch_pid != me.pid and m.rank != me.rank else 0
                for m in all_endpoints
            ],
        )
        rest = "a proxy thread without work naps" if self._idle[0] else "a proxy thread without work keeps its core"
        said = [(rest, self._idle[1])]
        if self._near.reason:
            said.append((f"proxy threads and their memory on NUMA node {self._near.node}", self._near.reason))
        said += self._proxy.notes()
        self.notes = [*self.fabric.notes, *said]
        self.show(*said)
        self._make_context(shrink)
        self._proxy.start()
        if self._proxy.pid != me.pid:
            self._guard = _native.ProxyGuard(self._proxy.pid, self.regions.control.address, self.rank)
        if self.agreement_service is not None:
            watched = watched_by(self.rank, self.hosts, [i.rank for i in self._present])
            self.agreement_service.watch(watched, self.hear_death)
        self._published = publish(self)
        self.recorder.complete(self)

    def publish_again(self) -> bool:
        """Tries once more to serve the host's metrics, where their port was taken; whether nothing is left to try."""
        published = self.__dict__.get("_published")
        return published is None or published.serve_again()

    def _make_context(self, shrink: bool) -> None:
        tables = _native.RankTablesSettings()
        tables.rank = self.rank
        tables.node_of, tables.cell_of = list(self.topology.placed), list(self.topology.cell_of)
        tables.num_rings, tables.ring_capacity = self.regions.num_rings, self.settings.ring_capacity
        tables.shrink = shrink
        tables.timeout_ns = int(self.settings.timeout_s * 1e9)
        tables.control_offset = self.plan.control_offset
        tables.num_channels = self.plan.num_channels
        self.context = self.regions.place(tables, self.topology.mates(self.rank))
        self.mask[sorted(self.absent)] = 1

    def _diagnose(self) -> Diagnosis:
        nics = [f"{device}:{port}" for device, port, _ in self.fabric.config.nics]
        known = self.rank, self.family, nics, self.absent, self.hostnames, self.topology, self.plan, self.regions
        return Diagnosis(*known, self.agreement_service, self.settings.timeout_s)

    # ---- life --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises this rank's fault, if it has one; after a fault every use of the buffer raises it again.

        Raises:
            PeerTimeout, PeerLost, SettingsMismatch, TransportError, UcclEpError: see uccl_ep.membership.fault_errors.
        """
        if self.closed:
            return  # an event outlived its Buffer; what it waited for has ended
        fault = _native.read_fault(self.regions.control.address)
        if fault is not None:
            self.fault_raised = True
            raise self.recorder.noted(self, self._diagnosis.error(fault, self.last_kernel))

    def note(self, kernel: str) -> None:
        """Wakes the proxy for a kernel that is about to be queued, and remembers the kernel for reports."""
        _native.ring_doorbell(self.regions.control.address)
        self.last_kernel = kernel
        self.recorder.calls.note(kernel)

    def keep_awake(self) -> None:
        """Keeps the proxy from sleeping: a replayed graph runs kernels that no call announces."""
        _native.keep_awake(self.regions.control.address)

    @property
    def life(self) -> int:
        """A number of this life of the Buffer, the same on all of its ranks."""
        return self._present[0].session

    def queue_pairs(self) -> list[dict[str, int]]:
        """What each queue pair of the network has carried: lane, peer, nic, number, writes, write_bytes."""
        return [] if self._proxy is None else self._proxy.queue_pairs()

    @property
    def hostnames(self) -> list[str]:
        """Host name of each rank."""
        return [i.hostname for i in self.hellos]

    @property
    def data(self) -> torch.Tensor:
        """uint8 tensor over this rank's data region, where its kernels run."""
        self.regions.viewed = True
        return self.regions.data

    @property
    def mask(self) -> torch.Tensor:
        """int32 [num_ranks]; 1 = left out."""
        return self.regions.mask

    def leave_out(self, rank: int, out: bool) -> None:
        """Masks a rank for the kernels and for the proxy, or takes the mask away."""
        self.mask[rank] = int(out)
        _native.exclude_peer(self.regions.control.address, self.plan.control, rank, out)

    def has_gone(self, rank: int) -> bool:
        """Whether a rank has left, or this rank's proxy has parted with it: nothing goes there in this life."""
        control = self.plan.control
        return any(self.regions.control_word(self.rank, at(rank)) for at in (control.departed, control.parted))

    @property
    def peer_stats(self) -> torch.Tensor:
        """int64 [num_ranks, PEER_STATS] that kernels add to, as it is now, in host memory."""
        return self.regions.read_stats()

    def bill(self) -> MemoryBill:
        """What this rank allocates, and where."""
        return self.plan.bill(self.placement.where, self.placement.reason, self._driver is not None)

    def zero_copy(self, num_bytes: int) -> tuple[torch.Tensor, int]:
        """(uint8 tensor over at least `num_bytes` of zero-copy rows or all there are, its flat offset)."""
        return self.regions.zero_copy(num_bytes, self._admit)

    def _admit(self, num_bytes: int, address: int, dmabufs: list[int]) -> None:
        """Registers the first bytes of the zero-copy span with NICs that take them late (layout/regions.py, Admit)."""
        if self.plan.zero_copy_late and self._admitted < num_bytes:
            assert self._proxy is not None
            self._proxy.admit(num_bytes, address, dmabufs)
            self._admitted = num_bytes

    def fall_asleep(self) -> dict[str, str]:
        """Gives the memory of rows back, which no rank uses: all have met. Returns why what stays does, by purpose."""
        pins = self.fabric.pins_memory and self.topology.num_nodes > 1
        self.asleep = self.unusable = True
        self.regions.let_go()
        self._await_node("pause()")
        return self.regions.give_back(f"a NIC has registered every page ({self.family})" if pins else "")

    def wake_up(self) -> None:
        """Takes memory again, at the addresses where it was. Calls stay refused until `awake`."""
        self.regions.take_again()
        self._await_node("resume()")
        self.regions.reach_again()

    def _await_node(self, phase: str) -> None:
        """Waits until all ranks of the node are as far as this one, where they must be.

        Raises:
            PeerLost, PeerTimeout: one has left or ended, or does not come.
        """
        begin = time.monotonic()
        while late := self.regions.behind():
            self.check()
            peer, waited_s = late[0], time.monotonic() - begin
            gone = self.regions.control_word(self.rank, self.plan.control.departed(peer)) != 0
            if gone or waited_s > self.settings.timeout_s:
                kind, host = PeerLost if gone else PeerTimeout, self.hostnames[peer]
                raise kind(rank=self.rank, peer=peer, host=host, phase=phase, waited_s=waited_s)
            time.sleep(_LOOK_S)

    def awake(self) -> None:
        """Every rank has its memory again."""
        self.asleep = self.unusable = False

    def refuse_use(self) -> NoReturn:
        """Raises InvalidArgument: no call can be made of this Buffer now, and why."""
        if self.closed:
            raise InvalidArgument("this Buffer has no memory: its last recover() failed. Call it again, or destroy()")
        raise InvalidArgument("this Buffer sleeps: pause() gave its memory back. Call resume() on every rank first")

    def rings_idle(self) -> bool:
        """Whether every command of this rank so far is complete at its receiver. Of CPU kernels only."""
        return _native.rings_idle(self.regions.rings.address, self.regions.num_rings, self.settings.ring_capacity)

    def hear_call(self, suspects: list[int], teller: int) -> None:
        """Another rank has called for agreement: this rank's call ends with the loss that it has not noticed."""
        with self._closing:
            if not self.closed:
                _native.report_lost_peer(self.regions.control.address, suspects[0])

    def hear_death(self, rank: int) -> None:
        """A rank of another host has been killed, which its NIC does not say: all ranks of this host hear of it."""
        with self._closing:
            if not self.closed:
                for control in self.regions.controls.values():
                    _native.report_ended_peer(control.address, self.plan.control, rank)

    def hear_goodbye(self, rank: int) -> None:
        """A rank of this node leaves that is on another host, and so cannot write that here itself."""
        with self._closing:
            if not self.closed and rank in self.topology.abroad(self.rank):
                self.regions.note_goodbye(rank, _native.DEPARTED_LEFT)

    def _say_abroad(self, number: int, what: bytes) -> None:
        """Tells ranks of this node that are on other hosts, where GpuRegions reads it."""
        if self.agreement_service is not None:
            self.agreement_service.notify(self.topology.abroad(self.rank), number, what)

    def release_roll_call(self) -> AgreementService | None:
        """Hands the agreement service over: from now on the caller closes it."""
        self._owns_roll_call = False
        return self.agreement_service

    def keep_roll_call(self) -> None:
        """Takes the agreement service back: close() closes it."""
        self._owns_roll_call = True

    def close(self, drain_s: float = _DRAIN_S) -> None:
        """Says goodbye to the ranks of host and node, stops the proxy, drops the memory. No collective; idempotent.

        No kernel may be queued any more. Memory that the caller still has a view of goes with the last view.
        """
        orderly = not self._lost_its_proxy()
        if self._owns_roll_call and self.agreement_service is not None:
            # Its kernels have ended, and what they stored for ranks of its node is there.
            self.agreement_service.close(last_words(), self.topology.abroad(self.rank) if orderly else ())
        with self._closing:
            if self.closed:
                return
            self.closed = self.unusable = True
        if orderly:
            self._say(_native.DEPARTED_LEAVING)  # before anyone can see this process's proxy end
        if self._guard is not None:
            self._guard.stop()
        if self._proxy is not None:
            self._proxy.stop(drain_s)
        try:
            self.regions.release_peers()
        finally:
            if orderly:
                self._say(_native.DEPARTED_LEFT)
            self.recorder.close(self)
            for name in ("_published", "_proxy", "_guard", "context"):
                self.__dict__.pop(name, None)
            self.regions.close()

    def _lost_its_proxy(self) -> bool:
        """Whether this rank's proxy has died with writes that it owed; a goodbye would hide that from the others."""
        control = getattr(self.regions, "control", None)
        fault = None if control is None else _native.read_fault(control.address)
        return fault is not None and fault["kind"] == _native.FaultKind.PEER_LOST and fault["peer"] == self.rank

    def _say(self, goodbye: int) -> None:
        """Writes this rank's words of departure where ranks of this host look for them."""
        self.regions.say_departed(goodbye)
