"""One rank's share of a Buffer's life: handshake, segments, proxy, peers' memory, faults, goodbye."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument
from uccl_ep.faults import BARRIER, FLAGS, PEER_LOST, TIMEOUT, Evidence, arrivals_of, error_of
from uccl_ep.group import Group
from uccl_ep.handshake import (
    Introduction,
    Meeting,
    Ready,
    compare_settings,
    exchange,
    host_identity,
    process_name,
    route_address,
)
from uccl_ep.memory import MemoryPlan
from uccl_ep.proxy_link import ProcessProxy, ProxyConfig, ProxyLink, ThreadProxy
from uccl_ep.settings import Settings
from uccl_ep.topology import Topology, split_into_nodes

_DRAIN_S = 2.0
_LEAVING, _LEFT = 1, 2  # proxy/engine/departures.h


def choose_family(wanted: str, introductions: list[Introduction], topology: Topology) -> tuple[str, str]:
    """(transport family, why), from facts that every rank has alike.

    Raises:
        InvalidArgument: the family that was asked for cannot reach all ranks.
    """
    one_process = len({i.process for i in introductions}) == 1
    one_host = len({i.host_id for i in introductions}) == 1
    if wanted == "loopback" and not one_process:
        raise InvalidArgument("UCCL_EP_TRANSPORT=loopback needs all ranks in one process; use shared_memory or tcp")
    if wanted == "shared_memory" and not one_host:
        raise InvalidArgument("UCCL_EP_TRANSPORT=shared_memory needs all ranks on one host; use tcp")
    if wanted != "auto":
        return wanted, "UCCL_EP_TRANSPORT says so"
    if topology.num_nodes == 1 or one_host:
        return "shared_memory", "all ranks share a host"
    return "tcp", "ranks are on several hosts and this build has no RDMA family for them"


class Session:
    """Everything of a rank that is not an operation. Made collectively by all ranks of the group.

    Attributes:
        rank, num_ranks, topology, plan, family: what was agreed.
        data, control: uint8 tensors over this rank's own segments.
        context: the kernels' RankContext.
        mask: int32 [num_ranks]; 1 = left out (low latency).
        peer_stats: int64 [num_ranks, PEER_STATS] that kernels add to.
    """

    def __init__(self, group: Group, budgets: tuple[int, int], low_latency: bool, shrink: bool, settings: Settings):
        self.rank, self.num_ranks = group.rank(), group.size()
        self.settings = settings
        self._proxy: ProxyLink | None = None
        self._guard: _native.ProxyGuard | None = None
        self._closed = False
        self.last_kernel = ""  # of those queued; for reports
        shared = {
            "num_nvl_bytes": budgets[0],
            "num_rdma_bytes": budgets[1],
            "low_latency_mode": low_latency,
            "enable_shrink": shrink,
            "UCCL_EP_RANKS_PER_NODE": settings.ranks_per_node,
            "UCCL_EP_TRANSPORT": settings.transport,
            "UCCL_EP_PROXY_THREADS": settings.proxy_threads,
            "UCCL_EP_RINGS": settings.rings,
        }
        self._introductions = self._introduce(group, shared)
        hosts = [i.host_id for i in self._introductions]
        self.topology = split_into_nodes(hosts, settings.ranks_per_node, _native.MAX_RANKS_PER_NODE)
        self.family, self.family_reason = choose_family(settings.transport, self._introductions, self.topology)
        self.plan = MemoryPlan(self.topology, *budgets, low_latency)
        # The classic per-expert layout's send area is what get_next_low_latency_combine_buffer's shape needs; with
        # memfds it costs nothing until it is written. Its bound is not known yet, so the span gets the whole rest.
        if low_latency:
            self.plan.reserve_zero_copy(min(1 << 35, _native.MAX_REGION_BYTES - self.plan.zero_copy_offset))
        try:
            self._connect(group, shrink)
        except BaseException:
            self.close()  # whatever was made by then: nothing stays behind a failed start
            raise

    # ---- start -------------------------------------------------------------------------------------------------

    def _connect(self, group: Group, shrink: bool) -> None:
        """The second and third exchange. A rank that fails says so in the next one, and every rank raises the same."""
        first = self._introductions[0]
        error, meeting = "", None
        try:
            self._make_segments()
            self._proxy = self._make_proxy(first.session, first.secret)
            meeting = self._meeting(self._proxy.local_address())
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        meetings = exchange(group, meeting or Meeting(self.rank, 0, -1, 0, -1, 0, 0, b"", error))
        ready = Ready(self.rank)
        try:
            self._meet(meetings, shrink)
        except Exception as failure:
            ready = Ready(self.rank, f"{type(failure).__name__}: {failure}")
        exchange(group, ready)

    def _introduce(self, group: Group, shared: Mapping[str, Any]) -> list[Introduction]:
        if not 1 <= self.num_ranks <= _native.MAX_RANKS:
            raise InvalidArgument(f"a group of {self.num_ranks} ranks is refused: allowed is 1 to {_native.MAX_RANKS}")
        introduction = Introduction(
            rank=self.rank,
            hostname=socket.gethostname(),
            host_id=host_identity(),
            process=process_name(),
            pid=os.getpid(),
            interface=self.settings.interface or route_address(),
            settings=dict(shared),
            session=secrets.randbits(63),
            secret=secrets.token_bytes(32),
        )
        introductions = exchange(group, introduction)
        compare_settings(introductions)
        return introductions

    def _make_segments(self) -> None:
        plan, s = self.plan, self.settings
        name = f"uccl-ep-{self.rank}"
        self.num_rings = s.proxy_threads * s.rings
        _ = plan.flat_bytes  # refuses what offsets cannot name
        self._data = _native.Segment.create(f"{name}-data", plan.data_bytes)
        self._control = _native.Segment.create(f"{name}-control", plan.control_bytes)
        self._rings = _native.Segment.create(f"{name}-rings", self.num_rings * _native.ring_bytes(s.ring_capacity))
        self._counters = _native.Segment.create(
            f"{name}-counters", _native.counters_bytes(s.proxy_threads, self.num_ranks)
        )
        self._zero_copy = (
            _native.Segment.create(f"{name}-zero-copy", plan.zero_copy_bytes) if plan.zero_copy_bytes else None
        )
        self.data = torch.from_numpy(self._data.numpy())
        self.control = torch.from_numpy(self._control.numpy())

    def _make_proxy(self, session: int, secret: bytes) -> ProxyLink:
        plan, s = self.plan, self.settings
        spans = [
            (0, plan.data_bytes, self._data.fd),
            (plan.control_offset, plan.control_bytes, self._control.fd),
        ]
        if self._zero_copy is not None:
            spans.append((plan.zero_copy_offset, plan.zero_copy_bytes, self._zero_copy.fd))
        one_host = len({i.host_id for i in self._introductions}) == 1
        config = ProxyConfig(
            rank=self.rank,
            num_ranks=self.num_ranks,
            num_workers=s.proxy_threads,
            spans=spans,
            control_offset=plan.control_offset,
            num_channels=plan.num_channels,
            rings_fd=self._rings.fd,
            num_rings=self.num_rings,
            ring_capacity=s.ring_capacity,
            counters_fd=self._counters.fd,
            family=self.family,
            session=session,
            secret=secret,
            interface=s.interface or ("127.0.0.1" if one_host else self._introductions[self.rank].interface),
            max_in_flight=s.max_in_flight,
            max_in_flight_bytes=s.max_in_flight_bytes,
            shuffle_seed=s.shuffle_seed,
            cpus=list(s.pin_cpus),
        )
        if s.proxy == "process" and self.family == "loopback":
            raise InvalidArgument("UCCL_EP_PROXY=process and UCCL_EP_TRANSPORT=loopback exclude each other")
        return ProcessProxy(config) if s.proxy == "process" else ThreadProxy(config)

    def _meeting(self, address: bytes) -> Meeting:
        return Meeting(
            rank=self.rank,
            segment_pid=os.getpid(),
            data_fd=self._data.fd,
            data_bytes=self.plan.data_bytes,
            control_fd=self._control.fd,
            control_bytes=self.plan.control_bytes,
            flat_bytes=self.plan.flat_bytes,
            address=address,
            watch_pid=0 if self._proxy is None else self._proxy.pid,
        )

    def _meet(self, meetings: list[Meeting], shrink: bool) -> None:
        me = self._introductions[self.rank]
        same_host = [i.host_id == me.host_id for i in self._introductions]
        node = self.topology.node_of[self.rank]
        members = self.topology.members(node)
        self._peer_data = {self.rank: self._data}
        self._peer_control = {self.rank: self._control}
        for m in meetings:
            if m.rank == self.rank or not same_host[m.rank]:
                continue
            # Control of every rank on the host: to say goodbye there. Data of the node: to load and store.
            self._peer_control[m.rank] = _native.Segment.open(m.segment_pid, m.control_fd, m.control_bytes)
            if m.rank in members:
                self._peer_data[m.rank] = _native.Segment.open(m.segment_pid, m.data_fd, m.data_bytes)
        remote = [of != node for of in self.topology.node_of]
        assert self._proxy is not None
        self._proxy.connect(
            [m.address if remote[m.rank] else b"" for m in meetings],
            [m.flat_bytes if remote[m.rank] else 0 for m in meetings],
            [m.watch_pid if same_host[m.rank] and m.watch_pid != me.pid and m.rank != me.rank else 0 for m in meetings],
        )
        self._make_context(members, shrink)
        self._proxy.start()
        if self._proxy.pid != me.pid:
            self._guard = _native.ProxyGuard(self._proxy.pid, self._control.address, self.rank)

    def _make_context(self, members: list[int], shrink: bool) -> None:
        self.mask = torch.zeros(self.num_ranks, dtype=torch.int32)
        self.peer_stats = torch.zeros(self.num_ranks, _native.PEER_STATS, dtype=torch.int64)
        tables = _native.RankTablesSettings()
        tables.rank = self.rank
        tables.node_of = list(self.topology.node_of)
        tables.data = [self._peer_data[r].address for r in members]
        tables.control = [self._peer_control[r].address for r in members]
        tables.rings = self._rings.address
        tables.num_rings = self.num_rings
        tables.ring_capacity = self.settings.ring_capacity
        tables.mask = self.mask.data_ptr()
        tables.peer_stats = self.peer_stats.data_ptr()
        tables.shrink = shrink
        tables.timeout_ns = int(self.settings.timeout_s * 1e9)
        tables.control_offset = self.plan.control_offset
        tables.num_channels = self.plan.num_channels
        self._tables = _native.RankTables(tables)
        self.context = self._tables.context

    # ---- life --------------------------------------------------------------------------------------------------

    @property
    def hostnames(self) -> list[str]:
        """Host name of each rank."""
        return [i.hostname for i in self._introductions]

    def zero_copy(self) -> tuple[torch.Tensor, int]:
        """(uint8 tensor over the zero-copy span, its flat offset); taken from memory page by page when written."""
        if self._zero_copy is None:
            raise InvalidArgument("zero copy needs a Buffer made with low_latency_mode=True")
        return torch.from_numpy(self._zero_copy.numpy()), self.plan.zero_copy_offset

    def rings_idle(self) -> bool:
        """Every command of this rank so far is complete at its receiver."""
        return _native.rings_idle(self._rings.address, self.num_rings, self.settings.ring_capacity)

    def check(self) -> None:
        """Raises this rank's fault, if it has one; after a fault every use of the buffer raises it again.

        Raises:
            PeerTimeout, PeerLost, SettingsMismatch, TransportError, UcclEpError: see uccl_ep.faults.
        """
        if self._closed:
            return  # an event outlived the buffer; what it waited for has ended
        fault = _native.read_fault(self._control.address)
        if fault is None:
            return
        fault["peer"] = self._culprit(fault)
        raise error_of(fault, self.rank, self.hostnames, self._evidence(fault))

    def _word(self, rank: int, offset: int) -> int:
        """A word of a control segment of this host."""
        return int(np.frombuffer(self._peer_control[rank].numpy(), dtype=np.uint64)[offset // 8])

    def _culprit(self, fault: Mapping[str, int]) -> int:
        """Whom a record is about; a kernel knows only what it waited for."""
        peer, phase = fault["peer"], fault["phase"]
        if phase == BARRIER and peer >= self.num_ranks:  # remote ranks meet in the proxy, which noted who has come
            words = [self._word(self.rank, self.plan.control.progress(3, r)) for r in range(self.num_ranks)]
            return words.index(1 << 32) if 1 << 32 in words else peer
        if fault["kind"] == TIMEOUT and phase in FLAGS and peer < self.num_ranks:
            # Rows of a remote rank come in at its host here. When that has not even done its own part, it is the one.
            host = self.topology.host_of(peer, self.topology.node_of[self.rank])
            offset = self.plan.signals.flag(FLAGS[phase], host)
            own = int(np.frombuffer(self._peer_data[host].numpy(), dtype=np.uint64)[offset // 8])
            if fault["channel"] >= self.plan.num_channels and own < fault["expected"]:
                return host
        return peer

    def _evidence(self, fault: Mapping[str, int]) -> Evidence:
        """What this rank and the one of its node that takes in the peer's rows know about the peer of a fault."""
        peer, control = fault["peer"], self.plan.control
        if peer >= self.num_ranks:
            return Evidence(self.last_kernel)
        host = self.topology.host_of(peer, self.topology.node_of[self.rank])
        # Rows of a dispatch, and their counts, arrive at the host; everything else at the rank that waits.
        at = {0: host, 2: host}
        progress = None if host == peer else lambda p: self._word(at.get(p, self.rank), control.progress(p, peer))
        last_ns = max(self.counters()[1][peer]["last_arrival_ns"], self._word(host, control.flag_time(peer)))
        last_seen_s = (time.monotonic_ns() - last_ns) / 1e9 if last_ns else None
        return Evidence(self.last_kernel, *arrivals_of(fault, progress), last_seen_s)

    def counters(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """The proxy's counters: (per worker, per peer)."""
        return _native.read_counters(self._counters.address, self.settings.proxy_threads, self.num_ranks)

    def close(self) -> None:
        """Says goodbye to the ranks of this host, stops the proxy, drops the memory. No collective; idempotent.

        No kernel may be queued any more. Memory that the caller still has a view of goes with the last view.
        """
        if self._closed:
            return
        self._closed = True
        orderly = not self._lost_its_proxy()
        if orderly:
            self._say(_LEAVING)  # before anyone can see this process's proxy end
        if self._guard is not None:
            self._guard.stop()
        if self._proxy is not None:
            self._proxy.stop(_DRAIN_S)
        if orderly:
            self._say(_LEFT)
        for name in (
            "_proxy _guard _tables context data control _data _control _rings _counters _zero_copy "
            "_peer_data _peer_control"
        ).split():
            self.__dict__.pop(name, None)

    def _lost_its_proxy(self) -> bool:
        """What this rank owed others went with its proxy: a goodbye would hide that from who has not noticed yet."""
        fault = _native.read_fault(self._control.address) if hasattr(self, "_control") else None
        return fault is not None and fault["kind"] == PEER_LOST and fault["peer"] == self.rank

    def _say(self, goodbye: int) -> None:
        """Writes this rank's `departed` word where ranks of this host look for it."""
        for rank, segment in getattr(self, "_peer_control", {}).items():
            if rank != self.rank:
                words = np.frombuffer(segment.numpy(), dtype=np.uint64)
                words[self.plan.control.departed(self.rank) // 8] = goodbye

    def note(self, kernel: str) -> None:
        """Remembers what was queued last, for reports."""
        self.last_kernel = kernel
