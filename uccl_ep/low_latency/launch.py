"""Low-latency dispatch and combine: argument checks, outstanding results, and the kernel launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.layout.combine_form import CombineForm
from uccl_ep.layout.combine_formats import RowFormat
from uccl_ep.low_latency import progress
from uccl_ep.low_latency.dispatch_formats import Format, ReceivedRows
from uccl_ep.low_latency.epochs import Epochs
from uccl_ep.low_latency.handle import Handle, make_handle
from uccl_ep.low_latency.node_sums import Sums
from uccl_ep.low_latency.overlap import Overlap
from uccl_ep.low_latency.progress import Progress
from uccl_ep.session.session import Session

Tensor = torch.Tensor
Sizes = tuple[int, int, int]
"""num_max_dispatch_tokens_per_rank, hidden, num_experts of calls."""

Received = tuple[Any, Tensor, Handle, Callable[[], None], tuple[Any, ...]]
"""What a dispatch returns, before it is wrapped for the caller: rows, or (rows, scales); how many for each expert; the
handle; what queues the receiving half; tensors that must outlive the queued kernels."""


class _Place(NamedTuple):
    """Registered rows [local, rows], `stride` bf16 elements apart."""

    memory: Tensor  # all of it, as bytes
    begin: int  # bytes into it
    offset: int  # the same place as the network names it
    local: int
    rows: int
    stride: int


class LowLatency:
    """The low-latency half of a Buffer.

    Attributes:
        captured: sizes of the calls that graphs of this rank hold; None: there are none.
        counters: what kernels count in from call to call (LowLatencyCalls::workspace_bytes). sums: what lays rows out.
    """

    _launches: _native.LowLatencyCalls  # once set_shape was called

    def __init__(self, session: Session, device: Device) -> None:
        self._session, self._device = session, device
        self.life = object()  # what handles are marked with
        self._dispatches, self._combines = Epochs(), Epochs()
        self._masked_at: dict[int, int] = {}  # by rank: calls there were when the caller masked it
        self._calls = 0
        self.captured: Sizes | None = None
        self._shape: Sizes | None = None
        self._recorded: Sizes | None = None  # the sizes of calls that are in graphs
        self._layout = _native.LowLatencyLayout()
        self._max_topk = 0  # of a call with this layout
        self._rows_lost = False  # those that wait_for_zero_copy announced
        self.counters = device.zeros(_native.LowLatencyCalls.workspace_bytes(session.num_ranks) // 8, dtype=torch.int64)
        self.sums = Sums(session, device)
        self._ranks = session.num_ranks

    # ---- shared by both calls ------------------------------------------------------------------------------------

    def set_shape(self, max_tokens: int, hidden: int, num_experts: int, barrier: Callable[[], None]) -> bool:
        """Lays the region out for these sizes; when they differ from the last call's, behind a barrier of all ranks.
        Returns whether there was one, which is a call of its own: the one at hand, which has begun, begins once more.

        Graphs run calls that nobody makes here. They all have the same sizes, and a call with others outside of them
        has a barrier before it and one after it (`leave_shape`); a call with theirs has none.

        Raises:
            InvalidArgument: the sizes are out of range or do not fit into num_rdma_bytes.
            NotSupported: in a graph capture, with other sizes than the last call's or than those of other graphs.
        """
        shape = (max_tokens, hidden, num_experts)
        capturing = self._device.capturing()
        if shape == self._shape and self._recorded in (None, shape) and not capturing:
            return False
        if capturing:
            if self._recorded not in (None, shape) or self._shape not in (None, shape):
                raise NotSupported(
                    f"a graph capture of low-latency calls with num_max_dispatch_tokens_per_rank, hidden, num_experts "
                    f"= {shape} after {self._recorded or self._shape}: calls of a Buffer's graphs must share these "
                    "sizes, and the call before the first capture must have had them. Make another Buffer for others."
                )
        outstanding = any(phase.sent != phase.consumed for phase in (self._dispatches, self._combines))
        if shape == self._shape and (self._recorded in (None, shape) or outstanding):
            self._record(shape, capturing)
            return False
        layout, form = self.sums.lay_out(*shape)
        if outstanding:
            refuse(
                "num_max_dispatch_tokens_per_rank, hidden, num_experts",
                (max_tokens, hidden, num_experts),
                f"those of the last call, {self._shape}, while a receive hook has not been called",
            )
        met = self._shape is not None and shape != self._recorded
        if met:
            barrier()
        self._use(shape, layout, form)
        self._record(shape, capturing)
        return met

    def _use(self, shape: Sizes, layout: _native.LowLatencyLayout, form: CombineForm) -> None:
        self._shape, self._layout, self._max_topk = shape, layout, layout.max_topk
        self.refresh()
        self.sums.use(form)

    def _record(self, shape: Sizes, capturing: bool) -> None:
        if capturing:
            self._recorded = self.captured = shape

    def refresh(self) -> None:
        """The sizes of calls, or the session's context, have changed: launches have them from now on."""
        if self._shape is not None:
            self._launches = _native.LowLatencyCalls(
                self._session.context, self._layout, self._shape[2], self.counters, self._device.shape
            )

    def expect_replays(self, sizes: Sizes) -> None:
        """Before the first call: ranks of this life have graphs of calls of these sizes, from the life before."""
        self._use(sizes, *self.sums.lay_out(*sizes))
        self._recorded = sizes

    def go_on(self, before: LowLatency) -> None:
        """The captured calls of another life, whose kernels have ended, are calls of this one from now on."""
        self.counters, self.captured = before.counters, before.captured
        self.counters.zero_()
        self.refresh()
        self._device.settle()
        self._device.expect_replays()

    def leave_shape(self, barrier: Callable[[], None]) -> None:
        """After a receiving half: when the sizes are not those of this Buffer's graphs, all ranks wait for each other,
        so that a replay finds the region unused."""
        if self._recorded not in (None, self._shape):
            barrier()

    def _begin(self) -> None:
        """Before a sending half is queued, when nothing speaks against the call any more."""
        self._calls += 1
        if self.sums.owed:
            self.sums.catch_up()

    def note_masked(self, rank: int, masked: bool) -> None:
        """The caller has masked a rank that was not masked, or a mask was taken away."""
        if masked:
            self._masked_at[rank] = self._calls
        else:
            self._masked_at.pop(rank, None)

    def late(self, ranks: set[int]) -> list[int]:
        """Those masked ranks among `ranks` that may have missed a call, ascending: one that a kernel masked has missed
        one, and so has one that the caller masked before the last call, or before a replay could have run."""
        masked = set(self._session.mask.nonzero().flatten().tolist()) & ranks
        return sorted(r for r in masked if self._recorded is not None or self._masked_at.get(r) != self._calls)

    # ---- how far this rank is (membership/returns.py) ---------------------------------------------------------------

    def progress(self) -> Progress:
        """Of all calls that were queued, when they have run."""
        self._device.catch_up()
        return progress.read_progress(self.counters, self._shape or (0, 0, 0))

    def take_over(self, other: Progress) -> None:
        """Goes on where another rank is: what this one missed counts as received. Without a call of its own it also has
        the sizes of the other's last one."""
        if self._shape is None and other.max_tokens:
            self.set_shape(other.max_tokens, other.hidden, other.num_experts, lambda: None)
        progress.take_over(self.counters, other)
        self._device.catch_up()

    # ---- dispatch --------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        form: Format,
        cumulative_stats: Tensor | None,
        wait_stats: Tensor | None,
    ) -> Received:
        """Queues the sending half."""
        assert self._shape is not None
        max_tokens, hidden, num_experts = self._shape
        ranks, device = self._ranks, self._device
        local, rows = num_experts // ranks, ranks * max_tokens
        tokens, topk = topk_idx.shape
        if topk > self._max_topk:
            self.sums.refuse_topk(topk, self._max_topk)
        epoch = self._dispatches.next("low_latency_dispatch")
        self._begin()
        # Three planes: token, slot at its source, source rank; then the dispatch's number. The handle shows the first;
        # combine finds the others in the same storage, also where a handle was put together again from its parts.
        # Behind them, on an 8-byte border, are the words that the sending half leaves for the receiving one.
        planes = (3 * local * rows + 2) // 2
        whole = device.empty(2 * (planes + self._launches.dispatch_words), dtype=torch.int32)
        layout_range = device.empty(local, ranks, dtype=torch.int64)
        handle = make_handle(whole, rows, layout_range, self._shape, self.life)
        src_info = handle[2].planes
        words = src_info + 8 * planes
        device.launch(
            self._launches.dispatch_send(
                words,
                x=x,
                topk_idx=topk_idx,
                num_tokens=tokens,
                topk=topk,
                format=form.code,
                round_scale=form.round_scale,
                global_scale=form.global_scale,
            )
        )
        received = ReceivedRows.make(device, form.code, local, rows, hidden)
        count = device.empty(local, dtype=torch.int32)

        def receive() -> None:
            self._dispatches.finish(epoch)
            if self.sums.owed:
                self.sums.catch_up()
            device.launch(
                self._launches.dispatch_recv(
                    words,
                    format=form.code,
                    recv_x=received.x,
                    recv_scales=received.scales,
                    recv_count=count,
                    src_info=src_info,
                    layout_range=layout_range,
                    cumulative_stats=cumulative_stats,
                    wait_stats=wait_stats,
                )
            )

        keep = (
            *(x, topk_idx, form.global_scale, cumulative_stats, wait_stats),
            *(received.x, received.scales, count, whole, layout_range),
        )
        return received.view(), count, handle, receive, keep

    # ---- combine ---------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: Handle,
        planes: int,
        out: Tensor | None,
        form: RowFormat,
        zero_copy: bool,
        wait_stats: Tensor | None,
        overlap: Overlap | None = None,
        stays: bool = False,
    ) -> tuple[Tensor, Callable[[], None], tuple[Any, ...]]:
        """Queues the sending half; returns (the sums, what queues the other half, tensors to keep alive).

        `planes`: see planes_of. With `stays` the caller does not write x until the other half has run, so that this
        rank's own rows are read there; not when sums overwrite them.
        """
        device, hidden = self._device, handle[3]
        tokens, topk = topk_idx.shape
        if topk > self._max_topk:
            self.sums.refuse_topk(topk, self._max_topk)
        registered = self._written_rows(handle) if zero_copy else None
        epoch = self._combines.next("low_latency_combine")
        self._begin()
        words = device.empty(_native.LowLatencyCalls.COMBINE_WORDS, dtype=torch.int64)
        reduces = self.sums.reduces(form)
        readable = self._session.regions.zero_copy_rows
        rows, begin, offset, _, _, stride = registered or (x, 0, 0, 0, 0, hidden)
        stays = stays or zero_copy
        if out is None:
            out = device.empty(tokens, hidden, dtype=torch.bfloat16)
        elif stays:
            stays = out.untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
        signals = None if overlap is None else overlap.signals
        sent = self._launches.combine_send(
            words,
            x=rows if begin == 0 else rows.data_ptr() + begin,
            row_stride=stride, zero_copy_offset=offset, x_at=begin,
            src_info=planes,
            layout_range=handle[1],
            format=int(form),
            own_stay=stays, reduces=reduces, node_reads=readable != 0,
            topk_idx=topk_idx, weights=topk_weights, num_tokens=tokens, topk=topk,
            signals=signals,
            signals_per_expert=0 if overlap is None else overlap.per_expert,
            signal_rows=0 if overlap is None else overlap.rows,
            signal_value=0 if overlap is None else overlap.value,
            blocks=0 if overlap is None else max(1, overlap.num_sms),
        )  # fmt: skip
        device.launch(sent)
        if reduces:
            sums = self._launches.combine_reduce(sent, wait_stats=wait_stats, registered=readable)
            self.sums.owe(sums, (words, wait_stats))

        def receive() -> None:
            self._combines.finish(epoch)
            if self.sums.owed:
                self.sums.catch_up()
            device.launch(
                self._launches.combine_recv(
                    sent,
                    out=out,
                    topk_idx=topk_idx,
                    weights=topk_weights,
                    num_tokens=tokens,
                    topk=topk,
                    wait_stats=wait_stats,
                    registered=readable,
                )
            )

        return out, receive, (words, x, topk_idx, topk_weights, handle[0], handle[1], out, wait_stats, signals)

    def next_combine_epoch(self) -> int:
        """Epoch of the combine call that comes next."""
        return self._combines.sent + 1

    def zero_copy_rows(self, handle: Handle, epoch: int) -> Tensor:
        """bf16 view [L, P, H] of the registered rows for a combine epoch."""
        place = self._zero_copy_place(handle, epoch)
        local, rows, stride = place.local, place.rows, place.stride
        whole = place.memory.view(torch.bfloat16)
        return whole.as_strided((local, rows, handle[3]), (rows * stride, stride, 1), place.begin // 2)

    def _written_rows(self, handle: Handle) -> _Place:
        """The registered rows of the next combine, which the caller has written."""
        if self._rows_lost:
            raise InvalidArgument(
                "zero_copy=True is refused: pause() gave back what get_next_low_latency_combine_buffer had handed out. "
                "Ask it for rows again, and write them"
            )
        return self._zero_copy_place(handle, self.next_combine_epoch())

    def _zero_copy_place(self, handle: Handle, epoch: int) -> _Place:
        """Where the registered rows for a combine epoch are.

        Rows are H + H/64 elements apart, as upstream's are, rounded up to 16 bytes where H is no multiple of 512. Two
        sets take turns; three where other ranks of the node read rows in place: a set is handed out again after the
        sending half that waited until all ranks had read it.
        """
        _, _, max_tokens, hidden, num_experts = handle
        local, rows = num_experts // self._ranks, self._ranks * max_tokens
        stride = -(-(hidden + hidden // 64) // 8) * 8
        set_bytes = -(-local * rows * stride * 2 // 128) * 128
        sets = 3 if self._session.regions.zero_copy_rows else 2
        memory, offset = self._session.zero_copy(sets * set_bytes)
        if sets * set_bytes > memory.numel():
            refuse(
                "zero_copy",
                True,
                f"False for {sets * set_bytes} bytes of rows: there is room for {memory.numel()}",
                "That is num_rdma_bytes where a NIC takes every page, or address space is limited (ulimit -v).",
            )
        begin = epoch % sets * set_bytes
        return _Place(memory, begin, offset + begin, local, rows, stride)

    def refuse_outstanding(self, what: str) -> None:
        """Raises InvalidArgument when a result has not been received: `what` takes the rows that it is made of.

        Replays of graphs are counted by kernels alone; with graphs this waits for what has been queued.
        """
        counted = [(phase.sent, phase.consumed) for phase in (self._dispatches, self._combines)]
        if self._recorded is not None and all(sent == received for sent, received in counted):
            self._device.catch_up()
            self._device.settle()
            seen = self.progress()
            counted = [(seen.dispatches, seen.received_dispatches), (seen.combines, seen.received_combines)]
        for call, (sent, received) in zip(("low_latency_dispatch", "low_latency_combine"), counted, strict=True):
            if sent != received:
                raise InvalidArgument(
                    f"{what} before the receive hook of {call} number {received + 1} has run is refused: its rows "
                    "would be lost. Call that hook first, or replay its graph."
                )

    def forget_rows(self) -> None:
        """Registered rows that were handed out hold nothing any more."""
        self._rows_lost = True

    def wait_for_zero_copy(self) -> None:
        """Returns when the rows of the next combine may be written: its set's last receiving half has run.

        Raises:
            InvalidArgument: that one has not even been queued.
        """
        self._combines.refuse_third("low_latency_combine")
        self._device.catch_up()
        self._rows_lost = False
