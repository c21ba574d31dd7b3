"""The memory of a rank on a GPU.

Control words and rings stay memfds, pinned and mapped for kernels; so do the rows where proxies must reach them with
the CPU. Otherwise rows lie in the GPU's own memory, which ranks of other processes and hosts of the node open, and
threads use by address. What kernels alone touch (ring heads, tables, masks, counters) is always in the GPU's memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from uccl_ep import _native
from uccl_ep.errors import NotSupported, UcclEpError
from uccl_ep.gpu.dmabufs import EXPORTED_BYTES, close_dmabufs, export_dmabufs
from uccl_ep.gpu.driver import Driver
from uccl_ep.gpu.kernel_words import KernelWords
from uccl_ep.gpu.notices import PAGE_BYTES, Notices
from uccl_ep.gpu.shared import Parked, Shared, park, run_all, sweep
from uccl_ep.group.handshake import Endpoints
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryPlan
from uccl_ep.layout.regions import Admit, Peer, Regions
from uccl_ep.settings import Settings
from uccl_ep.sizes import format_bytes, round_up

_published: dict[tuple[int, int, str], Shared] = {}  # (session, rank, what): of ranks of this process


class GpuRegions(Regions):
    """See Regions.

    Args:
        session: number of the group's session, which tells this process's ranks of several Buffers apart.

    Attributes:
        kernel_words: what captured calls name. handed_out: zero-copy rows have been, which they may name too.
    """

    kernel_words: KernelWords
    handed_out = False
    notice_bytes = PAGE_BYTES

    def __init__(
        self, plan: MemoryPlan, placement: Placement, rank: int, settings: Settings, driver: Driver, session: int
    ) -> None:
        super().__init__(plan, placement, rank, settings)
        self._driver, self._session = driver, session
        self._own: dict[str, Shared] = {}  # by purpose
        self._node: dict[str, dict[int, int]] = {"data": {}, "control": {}}  # kernels' addresses, by rank
        self._endings: list[Callable[[], None]] = []  # for what is of other ranks
        self._row_endings: dict[int, Callable[[], None]] = {}  # the same for their rows, by rank
        self._sleeps = 0  # that have begun
        self._away = False  # this rank's rows were given back
        self._signals = b""  # what lay before them in the GPU's memory
        self._keeps = b"-"
        self._rows: tuple[torch.Tensor, int] | None = None  # zero copy
        self._rows_end = 0  # how far its span is taken, in the GPU's memory
        self._dmabufs: list[int] = []
        self._abroad: dict[int, Peer] = {}  # ranks of this node that are on other hosts
        self._notices = Notices(rank, self._page)

    # ---- own memory --------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Makes this rank's own memory; pins what both processors use."""
        sweep()
        super().make()
        self._pin("control", self.control)
        self._pin("rings", self.rings)
        if self.placement.where == "host":
            self._pin("data", self._peer_data[self.rank])
            self.data = self._driver.view(self._own["data"].address, self.plan.data_bytes)
        for what in self._node:
            _published[self._session, self.rank, what] = self._own[what]
            self._node[what][self.rank] = self._own[what].address
        self.kernel_words = KernelWords(self._driver, self.num_rings, self.num_ranks)

    def _make_arena(self, name: str) -> None:
        """None: a GPU's results lie in torch's memory."""

    def _make_data(self, name: str) -> None:
        if self.placement.where == "host":
            super()._make_data(name)
            return
        address = self._take("data", self.plan.data_bytes, shared=True)
        self.data = self._driver.view(address, self.plan.data_bytes)
        if self.plan.topology.num_nodes > 1:  # NICs write there
            self._dmabufs = self._export(address, self.plan.data_bytes)

    def _export(self, address: int, num_bytes: int) -> list[int]:
        """Descriptors by which NICs register rows, none where they go by the address."""
        if self.rank in self.placement.by_address:
            return []
        try:
            return export_dmabufs(self._driver, address, num_bytes)
        except UcclEpError as error:
            raise UcclEpError(
                f"rank {self.rank} cannot export {format_bytes(num_bytes)} of rows on GPU {self._driver.facts.name} "
                f"for its NICs, though a smaller piece went: {error}. UCCL_EP_GPU_MEMORY=host keeps rows in pinned "
                "host memory"
            ) from error

    def spans(self) -> list[tuple[int, int, int]]:
        """What the proxy is told of: (flat offset, bytes, descriptor or -1 where only NICs reach)."""
        plan = self.plan
        rows = [(0, plan.data_bytes, -1)] if self.devices() else []
        if plan.zero_copy_late and plan.zero_copy_where == "device":  # memory comes later
            return [*rows, *super().spans(), (plan.zero_copy_offset, plan.zero_copy_bytes, -1)]
        return [*rows, *super().spans()]

    def devices(self) -> list[tuple[int, int, list[int]]]:
        """Rows in this GPU that NICs write: (flat offset, address, dma-bufs, none: they are registered by address)."""
        if self.placement.where == "host" or self.plan.topology.num_nodes == 1:
            return []
        return [(0, self._own["data"].address, self._dmabufs)]

    def _take(self, what: str, num_bytes: int, shared: bool = False) -> int:
        driver = self._driver
        address = driver.allocate(num_bytes, shared)
        made = self._own[what] = Shared(address, lambda: driver.free(made.address))
        return address

    def _pin(self, what: str, segment: _native.Segment) -> int:
        driver = self._driver
        try:
            address = driver.register(segment.address, segment.bytes)
        except UcclEpError as error:
            why = f" Rows are pinned too because {self.placement.reason}." if self.placement.where == "host" else ""
            raise UcclEpError(
                f"rank {self.rank} cannot pin the {format_bytes(segment.bytes)} of its {what} for GPU "
                f"{driver.facts.name}: {error}. Control words, rings and rows that the CPU touches must be pinned.{why}"
            ) from error
        self._own[what] = Shared(address, lambda: driver.unregister(segment.address))
        return address

    def endpoints(self, address: bytes, watch_pid: int) -> Endpoints:
        """What peers need to know."""
        made = super().endpoints(address, watch_pid)
        if self.placement.where == "host" or not self._driver.facts.can_export:
            return made
        return replace(made, data_handle=self._driver.export(self._own["data"].address))

    # ---- peers -------------------------------------------------------------------------------------------------

    def meet(self, peers: Sequence[Peer]) -> None:
        """Opens the memory of other ranks of host and node."""
        super().meet(peers)
        for peer in peers:
            if not peer.same_host:
                self._abroad[peer.endpoints.rank] = peer
                self._notices.expect(peer.endpoints.rank)
            if peer.member:
                # No kernel looks into the control segment of another host: its cell is of one (topology.py).
                self._node["control"][peer.endpoints.rank] = self._reach("control", peer) if peer.same_host else 0
                self._node["data"][peer.endpoints.rank] = self._reach("data", peer)

    def _open_data(self, peer: Peer) -> None:
        if self.placement.where == "host":
            super()._open_data(peer)

    def _reach(self, what: str, peer: Peer) -> int:
        """Where kernels of this rank find a peer's memory."""
        driver, rank = self._driver, peer.endpoints.rank

        def end_with(ending: Callable[[], None]) -> None:
            if what == "data":
                self._row_endings[rank] = ending
            else:
                self._endings.append(ending)

        if peer.same_process:
            shared = _published[self._session, rank, what].hold()
            end_with(shared.drop)
            return shared.address
        if what == "data" and self.placement.where == "device":
            try:
                opened = driver.open(peer.endpoints.data_handle)
            except UcclEpError as error:
                raise UcclEpError(f"rank {self.rank} cannot open the GPU memory of rank {rank}: {error}") from error
            end_with(lambda: driver.close(opened))
            return opened
        segment = (self.controls if what == "control" else self._peer_data)[rank]
        try:
            mapped = driver.register(segment.address, segment.bytes)
        except UcclEpError as error:
            raise UcclEpError(f"rank {self.rank} cannot pin the {what} of rank {rank}: {error}") from error
        end_with(lambda: driver.unregister(segment.address))
        return mapped

    def place(self, tables: _native.RankTablesSettings, mates: Sequence[int]) -> _native.RankContext:
        """Puts the tables into the GPU's memory."""
        self._mates_here = [r if r in self._node["data"] else self.rank for r in mates]
        tables.data = [self._node["data"][r] for r in self._mates_here]
        tables.control = [self._node["control"][r] for r in self._mates_here]
        tables.rings = self._own["rings"].address
        context = self.kernel_words.place(tables)
        self.mask, self.peer_stats = self.kernel_words.mask, self.kernel_words.peer_stats
        return context

    def move_words(self, before: KernelWords) -> _native.RankContext:
        """See KernelWords.move_to."""
        context = self.kernel_words.move_to(before)
        self.mask, self.peer_stats = self.kernel_words.mask, self.kernel_words.peer_stats
        return context

    # ---- reports -----------------------------------------------------------------------------------------------

    def data_word(self, rank: int, offset: int) -> int:
        """A word of a data region, past whatever kernels are running."""
        if self.placement.where == "host":
            return super().data_word(rank, offset)
        return int.from_bytes(self._driver.read(self._node["data"][rank] + offset, 8), "little")

    def read_stats(self) -> torch.Tensor:
        """peer_stats as they are now, past whatever kernels are running."""
        return self.kernel_words.read_stats()

    # ---- zero copy ---------------------------------------------------------------------------------------------

    def zero_copy(self, num_bytes: int, admit: Admit) -> tuple[torch.Tensor, int]:
        """Rows for kernels and the proxy, taken when their size is known. Earlier, fewer ones stay, since a graph may
        name them.

        Raises:
            NotSupported: memory would have to be taken inside a graph capture.
            TransportError: NICs do not take them.
        """
        plan, driver, self.handed_out = self.plan, self._driver, True
        if self._rows is None or self._rows[0].numel() < num_bytes:
            self._refuse_zero_copy()
            room = plan.zero_copy_bytes - self._rows_end
            if num_bytes > room:
                return self._rows or (self.data[:0], plan.zero_copy_offset)  # the caller refuses it with numbers
            if driver.capturing(driver.current_stream()):
                raise NotSupported(
                    "get_next_low_latency_combine_buffer: call it once for these sizes before the capture"
                )
            if self._zero_copy is None:
                self._rows = self._take_rows(min(round_up(num_bytes, EXPORTED_BYTES), room), admit)
            else:
                num_pinned = round_up(num_bytes, mmap.PAGESIZE)
                segment = _native.Segment.open(os.getpid(), self._zero_copy.fd, num_pinned)
                address = self._pin(f"zero-copy rows of {num_pinned} bytes", segment)
                self._rows = driver.view(address, num_pinned), plan.zero_copy_offset
        admit(num_bytes, 0, [])  # the host's; a GPU's have been
        return self._rows

    def _take_rows(self, num_bytes: int, admit: Admit) -> tuple[torch.Tensor, int]:
        """More of the span, in the GPU's memory: NICs know it by what it exports, not by where the span lies."""
        what = f"zero-copy rows of {num_bytes} bytes"
        address, dmabufs = self._take(what, num_bytes, shared=True), []
        begin, end = self._rows_end, self._rows_end + num_bytes
        try:
            rows = self._driver.view(address, num_bytes)
            if self.plan.zero_copy_late:
                dmabufs = self._export(address, num_bytes)
                admit(end, address, dmabufs)  # last: NICs keep what they have taken
        except BaseException:
            self._own.pop(what).drop()
            raise
        finally:
            close_dmabufs(dmabufs)
        self._rows_end = end
        return rows, self.plan.zero_copy_offset + begin

    # ---- sleep -------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """Bytes that this rank's memory takes now, by purpose."""
        host = self.placement.where == "host"
        rows = super().held()["rows"] if host else 0 if self._away else self.plan.data_bytes
        zero_copy = self._rows_end or (0 if self._rows is None else self._rows[0].numel())
        return {"rows": rows, "zero-copy rows": zero_copy, "control": super().held()["control"]}

    def _page(self, rank: int) -> memoryview:
        begin = self.plan.control_bytes
        return self.controls[rank].numpy().data[begin : begin + self.notice_bytes]

    def _mates(self) -> list[Peer]:
        return [peer for peer in (*self._peers.values(), *self._abroad.values()) if peer.member]

    def _tell(self, number: int, handle: bytes = b"") -> None:
        """`number`: odd: has let go, even: has rows again. The first byte says whether others keep theirs for it."""
        self._notices.tell(number, self._keeps + handle)
        self.say_abroad(number, self._keeps + handle)

    def hear_abroad(self, rank: int, number: int, what: bytes) -> None:
        """What a rank of this node has told that is on another host."""
        self._notices.hear(rank, number, what)

    def let_go(self) -> None:
        """Closes the rows of other ranks and tells so; with a masked one, which may still write, says that all stay."""
        mask = self.mask.tolist()
        self._keeps = b"k" if any(mask[peer.endpoints.rank] for peer in self._mates()) else b"-"
        self._sleeps += 1
        if self._keeps == b"-":
            endings = list(self._row_endings.values())
            self._row_endings.clear()
            run_all(endings)
        self._tell(2 * self._sleeps - 1)

    def behind(self) -> list[int]:
        """Ranks of this node that have not told what this one has, but for masked ones."""
        due, _ = self._notices.heard(self.rank)
        ranks = [peer.endpoints.rank for peer in self._mates()]
        late = [rank for rank in ranks if self._notices.heard(rank)[0] < due]
        return [rank for rank in late if not self.mask.tolist()[rank]]

    def give_back(self, registered: str) -> dict[str, str]:
        """Gives the rows' memory back, and keeps the signals before them, which kernels go on from."""
        kept = {} if self._rows is None else {"zero-copy rows": "graphs may name them"}
        if why := registered or self._why_rows_stay():
            return {"rows": why, **kept}
        data, driver = self._own["data"], self._driver
        if self.placement.where == "device":
            self._signals = driver.read(data.address, self.plan.signals.bytes())
            driver.put_away(data.address)
            data.absent = not driver.keeps_addresses
        else:
            segment, first = self._peer_data[self.rank], self.plan.throughput.base
            driver.unregister(segment.address)
            data.absent = True
            if not segment.give_back(first, segment.bytes - first):
                kept["rows"] = "the system takes no pages of a segment back"
        self._away = True
        return kept

    def _why_rows_stay(self) -> str:
        if self.devices():
            return "NICs know them by their address"
        if self.viewed and not (self.placement.where == "device" and self._driver.keeps_addresses):
            return "get_local_buffer_tensor has handed out a view of them"
        ranks = [self.rank, *(peer.endpoints.rank for peer in self._mates())]
        keeper = next((rank for rank in ranks if self._notices.heard(rank)[1][:1] == b"k"), None)
        return "" if keeper is None else f"rank {keeper} has masked a rank of this node, which may still use them"

    def take_again(self) -> None:
        """Takes memory for the rows, puts the signals back, and tells the node where they are."""
        data, driver, num_bytes = self._own["data"], self._driver, self.plan.data_bytes
        device = self.placement.where == "device"
        if self._away:
            if device:
                data.address, data.absent = driver.bring_back(data.address, num_bytes, shared=True), False
                driver.write(data.address, self._signals)
            else:
                segment = self._peer_data[self.rank]
                data.address, data.absent = driver.register(segment.address, segment.bytes), False
            self._away = False
            self._node["data"][self.rank] = data.address
            self.data, self.viewed = driver.view(data.address, num_bytes), False
        self._tell(2 * self._sleeps, driver.export(data.address) if device and driver.facts.can_export else b"")

    def reach_again(self) -> None:
        """Opens the rows of the node's other ranks, and writes into the tables where they are."""
        for peer in self._mates():
            rank = peer.endpoints.rank
            if rank not in self._row_endings:
                handle = self._notices.heard(rank)[1][1:]
                known = (self._peers if peer.same_host else self._abroad)[rank] = replace(
                    peer, endpoints=replace(peer.endpoints, data_handle=handle)
                )
                self._node["data"][rank] = self._reach("data", known)
        self.kernel_words.rows_are_at([self._node["data"][r] for r in self._mates_here])

    # ---- end ---------------------------------------------------------------------------------------------------

    def release_peers(self) -> None:
        """Closes and unpins what is of other ranks, before they are told that this one has left."""
        endings, self._endings = [*self._row_endings.values(), *self._endings], []
        self._row_endings.clear()
        run_all(endings)

    def close(self) -> None:
        """Gives everything back. Rows that other processes have open stay until those have left."""
        for what in self._node:
            _published.pop((self._session, self.rank, what), None)
        own, self._own = self._own, {}
        close_dmabufs(self._dmabufs)
        self._rows = None
        others = [p.endpoints for p in self._peers.values() if p.member and not p.same_process]
        if self.placement.where == "device" and others and "data" in own:
            park(Parked(own.pop("data"), self.control, self.plan, others))
        super().close()
        endings, self._endings = [*self._row_endings.values(), *self._endings], []
        self._row_endings.clear()
        words = self.__dict__.pop("kernel_words", None)
        run_all([*endings, *([] if words is None else words.endings()), *(shared.drop for shared in own.values())])
        sweep()
