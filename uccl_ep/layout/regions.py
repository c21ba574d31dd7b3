"""The memory of one rank, and what it sees of its peers': made, told to them, opened, read for reports, given back.

This file: a rank whose kernels run on the CPU. `uccl_ep.gpu.memory` has the GPU's.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.group.handshake import Endpoints
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryPlan
from uccl_ep.membership.neighbours import Neighbours, Words
from uccl_ep.membership.root_cause import Knowledge, has_ended, is_stopped
from uccl_ep.settings import Settings
from uccl_ep.system.os_limits import address_space

_ARENA_BYTES = 1 << 36  # of address space, which takes no memory; results that do not fit lie elsewhere
# Lets NICs send from the first bytes of the zero-copy span: (bytes; where what is new of them lies in a GPU, its
# address and dma-bufs).
Admit = Callable[[int, int, list[int]], None]
# By descriptor: what ranks of this process have made. Its other ranks look at it there: a hundred mappings of so much
# address space each would not fit.
_made_here: dict[int, _native.Segment] = {}


def arena_bytes() -> int:
    """Bytes to reserve for results that others read in place: at most what the host has; none where address space is
    limited (`ulimit -v`)."""
    if address_space() is not None:
        return 0
    largest_file = resource.getrlimit(resource.RLIMIT_FSIZE)[0]  # beyond it, the system ends the process
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(_ARENA_BYTES, physical, _ARENA_BYTES if largest_file == resource.RLIM_INFINITY else largest_file)


@dataclass(frozen=True)
class Peer:
    """Another rank of this host or node.

    Attributes:
        endpoints: what it said of its memory.
        member: it is of this rank's node, whose kernels load from and store to it.
        same_process: it is a thread of this process.
        same_host: it is of this host; else nothing of it is reached but a GPU's memory.
    """

    endpoints: Endpoints
    member: bool
    same_process: bool
    same_host: bool = True


class Regions:
    """Memory of a rank whose kernels run on the CPU: memfds that whoever needs them maps.

    Made in steps, so that whatever exists by then can be closed: make, meet, place.

    Attributes:
        data: uint8 tensor over this rank's data region.
        control, rings, counters: segments that the proxy shares. stats: what peer_stats lies in.
        controls: control segments of all ranks of this host, by rank, once they have met.
        numa_node: that the host memory of NICs and proxy comes from, set before make(); -1: from anywhere.
        arena: segment that this rank's results lie in, for its node to read; None: this rank is alone on its node.
        viewed: somebody may hold a tensor over `data`.
        say_abroad: tells (number, what) to the ranks of this node that are on other hosts, set before make(); they
            hear_abroad().
        mask: int32 [num_ranks]; 1 = left out. peer_stats: int64 [num_ranks, PEER_STATS].
    """

    notice_bytes = 0  # behind the control words, for ranks of the node

    def __init__(self, plan: MemoryPlan, placement: Placement, rank: int, settings: Settings) -> None:
        self.plan, self.placement, self.rank = plan, placement, rank
        self.num_rings = settings.proxy_threads * settings.rings
        self._settings = settings
        self.numa_node = -1
        self.viewed = False
        self.say_abroad: Callable[[int, bytes], None] = lambda number, what: None
        self._peers: dict[int, Peer] = {}
        self._watch_pid = 0
        self.controls: dict[int, _native.Segment] = {}
        self._peer_data: dict[int, _native.Segment] = {}
        self.arena: _native.Segment | None = None
        self._arenas: dict[int, _native.Segment] = {}  # of the node's ranks
        self._zero_copies: dict[int, _native.Segment] = {}  # likewise, where zero-copy rows are read in place
        self._arena_table: torch.Tensor | None = None
        self._zero_copy_table: torch.Tensor | None = None
        self._zero_copy_bytes: torch.Tensor | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return self.plan.topology.num_ranks

    def make(self) -> None:
        """Makes this rank's own memory."""
        plan, s = self.plan, self._settings
        _ = plan.flat_bytes  # refuses what offsets cannot name
        name = f"uccl-ep-{self.rank}"
        self._make_data(f"{name}-data")
        self.control = _native.Segment.create(f"{name}-control", plan.control_bytes + self.notice_bytes)
        self.rings = _native.Segment.create(f"{name}-rings", self.num_rings * _native.ring_bytes(s.ring_capacity))
        num_bytes = _native.counters_bytes(s.proxy_threads, self.num_ranks)
        self.counters = _native.Segment.create(f"{name}-counters", num_bytes)
        n = plan.zero_copy_bytes if plan.zero_copy_where == "host" else 0
        self._zero_copy = _native.Segment.create(f"{name}-zero-copy", n) if n else None
        for segment in (self.control, self.rings, self.counters, self._peer_data.get(self.rank), self._zero_copy):
            if segment is not None and self.numa_node >= 0:
                segment.prefer_node(self.numa_node)  # a matter of speed only: refused where NUMA is unknown
        self.controls[self.rank] = self.control
        self._make_arena(f"{name}-results")

    def _make_arena(self, name: str) -> None:
        topology, most = self.plan.topology, arena_bytes()
        if most and len(topology.members(topology.node_of[self.rank])) > 1:
            self.arena = self._arenas[self.rank] = _native.Segment.create(name, most)
            _made_here[self.arena.fd] = self.arena
            # A NIC would take every page of a third set of rows.
            if self._zero_copy is not None and not self.plan.zero_copy_pinned:
                self._zero_copies[self.rank] = _made_here[self._zero_copy.fd] = self._zero_copy

    def _make_data(self, name: str) -> None:
        self._peer_data[self.rank] = _native.Segment.create(name, self.plan.data_bytes)
        self.data = torch.from_numpy(self._peer_data[self.rank].numpy())

    def spans(self) -> list[tuple[int, int, int]]:
        """What the proxy maps: (flat offset, bytes, descriptor)."""
        plan = self.plan
        spans = [(plan.control_offset, plan.control_bytes, self.control.fd)]
        if self.rank in self._peer_data:
            spans.insert(0, (0, plan.data_bytes, self._peer_data[self.rank].fd))
        if self._zero_copy is not None:
            spans.append((plan.zero_copy_offset, plan.zero_copy_bytes, self._zero_copy.fd))
        return spans

    def devices(self) -> list[tuple[int, int, list[int]]]:
        """Which of the spans are a GPU's memory: (flat offset, address, dma-bufs). None on a CPU."""
        return []

    def endpoints(self, address: bytes, watch_pid: int) -> Endpoints:
        """What peers need to know."""
        self._watch_pid = watch_pid
        data, zero_copy = self._peer_data.get(self.rank), self._zero_copies.get(self.rank)
        return Endpoints(
            rank=self.rank,
            segment_pid=os.getpid(),
            data_fd=-1 if data is None else data.fd,
            data_bytes=self.plan.data_bytes,
            control_fd=self.control.fd,
            control_bytes=self.control.bytes,
            flat_bytes=self.plan.flat_bytes,
            address=address,
            watch_pid=watch_pid,
            arena_fd=-1 if self.arena is None else self.arena.fd,
            arena_bytes=0 if self.arena is None else self.arena.bytes,
            zero_copy_fd=-1 if zero_copy is None else zero_copy.fd,
            zero_copy_bytes=0 if zero_copy is None else zero_copy.bytes,
        )

    def meet(self, peers: Sequence[Peer]) -> None:
        """Opens the memory of other ranks: control of the host's, to say goodbye there; data of the node's.

        Raises:
            UcclEpError: it cannot be opened; names the rank, and says whether its process has ended, or is hidden.
        """
        for peer in peers:
            if not peer.same_host:
                continue
            m = peer.endpoints
            self._peers[m.rank] = peer
            try:
                self.controls[m.rank] = _native.Segment.open(m.segment_pid, m.control_fd, m.control_bytes)
                if peer.member:
                    self._open_data(peer)
            except RuntimeError as error:
                ended = ": its process has ended" if has_ended(m.segment_pid) else ""
                if not ended and not os.path.exists(f"/proc/{m.segment_pid}"):
                    ended = ": its process lives, but this one may not look at it (hidepid)"
                raise UcclEpError(
                    f"rank {self.rank} cannot open the memory of rank {m.rank}{ended} ({error})"
                ) from error

    def _open_data(self, peer: Peer) -> None:
        m = peer.endpoints
        self._peer_data[m.rank] = _native.Segment.open(m.segment_pid, m.data_fd, m.data_bytes)
        if self.arena is None:
            return  # address space is limited here: the others see that this rank has none, and use none either
        results = self._arenas, m.arena_fd, m.arena_bytes
        for segments, fd, num_bytes in (results, (self._zero_copies, m.zero_copy_fd, m.zero_copy_bytes)):
            if fd >= 0:
                here = _made_here.get(fd) if peer.same_process else None
                segments[m.rank] = here or _native.Segment.open(m.segment_pid, fd, num_bytes)

    def place(self, tables: _native.RankTablesSettings, mates: Sequence[int]) -> _native.RankContext:
        """Fills in where everything lies, by kernels' addresses; returns what every kernel of this rank is told. What
        is stored for absent `mates` goes to this rank's own memory, where nobody reads it."""
        self.mask = torch.zeros(self.num_ranks, dtype=torch.int32)
        shape = (self.num_ranks, _native.PEER_STATS)
        self.stats = _native.Segment.create(f"uccl-ep-{self.rank}-stats", 8 * shape[0] * shape[1])
        words = self.stats.numpy()[: 8 * shape[0] * shape[1]]
        self.peer_stats = torch.from_numpy(words).view(torch.int64).view(shape)
        members = [r if r in self._peer_data else self.rank for r in mates]
        tables.data = [self._peer_data[r].address for r in members]
        tables.control, tables.rings = [self.controls[r].address for r in members], self.rings.address
        tables.mask, tables.peer_stats = self.mask.data_ptr(), self.peer_stats.data_ptr()
        self._tables = _native.RankTables(tables)
        self._arena_table = _addresses(self._arenas, members)
        self._zero_copy_table = _addresses(self._zero_copies, members)
        return self._tables.context

    @property
    def arenas(self) -> int:
        """Address of u64 [2, ranks of this node]: where each one's arena is mapped here, and how many bytes it has.

        0: not all have one.
        """
        return 0 if self._arena_table is None else self._arena_table.data_ptr()

    @property
    def zero_copy_rows(self) -> int:
        """Likewise of zero-copy rows; 0: other ranks of this node do not read them in place."""
        return 0 if self._zero_copy_table is None else self._zero_copy_table.data_ptr()

    def shared(self) -> dict[str, _native.Segment]:
        """What may be looked at from outside (uccl_ep.observe.page): segments in host memory, by purpose."""
        segments = {"control": self.control, "rings": self.rings, "counters": self.counters}
        if "stats" in self.__dict__:
            segments["stats"] = self.stats
        if self.rank in self._peer_data:
            segments["data"] = self._peer_data[self.rank]
        return segments

    @property
    def proxy_pid(self) -> int:
        """The process that runs the proxy: this one, or one beside it."""
        return self._watch_pid

    def control_words(self, rank: int) -> Words:
        """The control segment of a rank of this host; it stays mapped as long as somebody holds this."""
        return np.frombuffer(self.controls[rank].numpy(), dtype=np.uint64)

    def control_word(self, rank: int, offset: int) -> int:
        """One word of it; 0 of a rank of another host."""
        return int(self.control_words(rank)[offset // 8]) if rank in self.controls else 0

    def note_goodbye(self, rank: int, goodbye: int) -> None:
        """Writes that a rank has left, which said so over the network, where this rank's kernels and proxy look."""
        np.maximum(words := self._departed_words(self.rank, rank), goodbye, out=words)

    def hear_abroad(self, rank: int, number: int, what: bytes) -> None:
        """What a rank of this node has told that is on another host. There is none on a CPU."""

    def say_departed(self, value: int) -> None:
        """Tells every other rank of this host that this one departs, where it has not said more."""
        for rank in self.controls.keys() - {self.rank}:
            np.maximum(words := self._departed_words(rank, self.rank), value, out=words)

    def _departed_words(self, at: int, who: int) -> Words:
        """Both words that tell rank `at`, of this host, that `who` departs: that some do, and its own."""
        some, own = self.plan.control.SOME_DEPARTED // 8, self.plan.control.departed(who) // 8
        return self.control_words(at)[some : own + 1 : own - some]

    def neighbours(self) -> Neighbours:
        """What this rank sees of the other ranks of its host, whatever becomes of this object."""
        others = {}
        for rank, peer in self._peers.items():
            others[rank] = (peer.endpoints.segment_pid, self._departed_words(rank, self.rank))
        first = self.plan.control.departed(0) // 8
        return Neighbours(self.control_words(self.rank)[first : first + self.num_ranks], others)

    def knowledge(self) -> Knowledge:
        """What can be seen from here of ranks that wait for each other."""
        peers = self.read_counters()[1]
        mates = set(self.plan.topology.members(self.plan.topology.node_of[self.rank]))
        elsewhere = [rank for rank in range(self.num_ranks) if rank not in self.controls and rank not in mates]
        heard = {rank: peers[rank]["last_arrival_ns"] for rank in elsewhere}
        return Knowledge(self._wait_reports(), self._stopped(), heard)

    def _wait_reports(self) -> dict[int, int]:
        """Of the ranks of this host whose waits have expired: whom those were for, when it is known."""
        faults = {rank: _native.read_fault(segment.address) for rank, segment in self.controls.items()}
        named = {
            rank: fault["peer"]
            for rank, fault in faults.items()
            if fault and fault["kind"] == _native.FaultKind.TIMEOUT
        }
        return {rank: peer for rank, peer in named.items() if peer < self.num_ranks}

    def _stopped(self) -> list[int]:
        """Ranks of this host whose process, or whose proxy's, is stopped; this one too, by its proxy."""
        told: dict[int, tuple[int, ...]] = {self.rank: (self._watch_pid,)}
        told |= {rank: (peer.endpoints.segment_pid, peer.endpoints.watch_pid) for rank, peer in self._peers.items()}
        return sorted(rank for rank, pids in told.items() if any(pid > 0 and is_stopped(pid) for pid in pids))

    def data_word(self, rank: int, offset: int) -> int:
        """A word of the data region of a rank of this node."""
        return int(np.frombuffer(self._peer_data[rank].numpy(), dtype=np.uint64)[offset // 8])

    def read_stats(self) -> torch.Tensor:
        """peer_stats as they are now, in host memory."""
        return self.peer_stats

    def read_counters(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """The proxy's counters: (per worker, per peer)."""
        return _native.read_counters(self.counters.address, self._settings.proxy_threads, self.num_ranks)

    def zero_copy(self, num_bytes: int, admit: Admit) -> tuple[torch.Tensor, int]:
        """(uint8 tensor over at least `num_bytes` of the zero-copy span or all there is, its flat offset).

        Raises:
            InvalidArgument: the Buffer has none.
            TransportError: from `admit`; NICs do not take them.
        """
        if self._zero_copy_bytes is None:
            self._refuse_zero_copy()
            assert self._zero_copy is not None
            self._zero_copy_bytes = torch.from_numpy(self._zero_copy.numpy())
        if num_bytes <= self._zero_copy_bytes.numel():
            admit(num_bytes, 0, [])
        return self._zero_copy_bytes, self.plan.zero_copy_offset

    def _refuse_zero_copy(self) -> None:
        if not self.plan.zero_copy_bytes:
            raise InvalidArgument("zero copy needs a Buffer made with low_latency_mode=True")

    def held(self) -> dict[str, int]:
        """Bytes that this rank's memory takes now, by purpose: pages that exist, not address space."""
        words = [self.control, self.rings, self.counters, self.__dict__.get("stats")]  # the last one by place()
        rows, arena = self._peer_data.get(self.rank), self.arena
        segments = {"rows": [rows], "zero-copy rows": [self._zero_copy], "results": [arena], "control": words}
        return {what: sum(map(_held, parts)) for what, parts in segments.items()}

    def let_go(self) -> None:
        """Lets go of rows of other ranks, which are about to give them back: all ranks have met."""

    def behind(self) -> list[int]:
        """Ranks of this node that are not yet as far as this one, after `let_go` and after `take_again`."""
        return []

    def give_back(self, registered: str) -> dict[str, str]:
        """Gives the pages of rows back, which nobody reads or writes before `take_again`; addresses stay, in every
        process that has mapped them. Signals stay. Returns why what stays does, by purpose.

        Args:
            registered: why NICs keep rows where they are; empty: none does.
        """
        if registered:
            return {"rows": registered, "zero-copy rows": registered}
        first, kept = self.plan.throughput.base, {}
        for what, segment, begin in (
            ("rows", self._peer_data.get(self.rank), first),
            ("zero-copy rows", self._zero_copy, 0),
        ):
            if segment is not None and not segment.give_back(begin, segment.bytes - begin):
                kept[what] = "the system takes no pages of a segment back"
        return kept

    def take_again(self) -> None:
        """Ends what give_back began. Pages come when they are written."""

    def reach_again(self) -> None:
        """Ends what let_go began, when all ranks of the node have their rows again."""

    def release_peers(self) -> None:
        """Lets go of what of others' memory ends with its owner."""

    def close(self) -> None:
        """Drops everything. Memory that the caller still has a view of goes with the last view. Idempotent."""
        for name in "data control rings counters stats mask peer_stats _zero_copy _tables".split():
            self.__dict__.pop(name, None)
        self.arena = self._arena_table = self._zero_copy_table = self._zero_copy_bytes = None
        for mine in (self._arenas.get(self.rank), self._zero_copies.get(self.rank)):
            if mine is not None:
                _made_here.pop(mine.fd, None)
        self._arenas.clear()
        self._zero_copies.clear()
        self.controls.clear()
        self._peer_data.clear()


def _held(segment: _native.Segment | None) -> int:
    """Bytes of the pages that a segment has."""
    return 0 if segment is None else os.fstat(segment.fd).st_blocks * 512


def _addresses(segments: dict[int, _native.Segment], members: Sequence[int]) -> torch.Tensor | None:
    """int64 [2, members]: where their segments are mapped here, and their bytes; None: some have none."""
    if not all(rank in segments for rank in members):
        return None
    places = [segments[rank].address for rank in members], [segments[rank].bytes for rank in members]
    return torch.tensor(places, dtype=torch.int64)
