"""Low-latency dispatch and combine: argument checks, outstanding results, and the kernel launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.layout.combine_formats import CombineFormat
from uccl_ep.low_latency.arguments import Prototypes
from uccl_ep.low_latency.dispatch_formats import Format, ReceivedRows
from uccl_ep.low_latency.handle import Handle, OwnedInt, planes_of
from uccl_ep.low_latency.node_sums import Sums
from uccl_ep.low_latency.overlap import Overlap
from uccl_ep.session.session import Session
from uccl_ep.sizes import format_bytes

_WARPS = 4
_SEND_BLOCKS = 8  # of a combine that nothing is computed beside
_BATCH_BYTES = 1 << 18  # rows that a warp stages before it sends

Tensor = torch.Tensor


@dataclass
class Received:
    """What a dispatch returns, before it is wrapped for the caller."""

    x: Tensor | tuple[Tensor, Tensor]  # rows, or (rows, scales)
    count: Tensor
    handle: Handle
    receive: Callable[[], None]  # queues the receiving half
    keep: tuple[Any, ...]  # tensors that must outlive the queued kernels


class _Place(NamedTuple):
    """Registered rows [local, rows], `stride` bf16 elements apart."""

    memory: Tensor  # all of it, as bytes
    begin: int  # bytes into it
    offset: int  # the same place as the network names it
    local: int
    rows: int
    stride: int


class Epochs:
    """Calls of one phase that were queued, and which of them have their receiving half queued.

    Only to refuse a third outstanding result: the numbers that kernels go by are theirs (kernels/low_latency/common.h),
    since a recorded graph runs calls that nobody makes here.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.consumed = 0  # every call up to here
        self._ahead: set[int] = set()

    def next(self, what: str) -> int:
        """The next call's epoch.

        Raises:
            InvalidArgument: two calls before it have not been received yet.
        """
        if self.sent - self.consumed >= 2:
            self.refuse_third(what)
        self.sent += 1
        return self.sent

    def refuse_third(self, what: str) -> None:
        """Raises InvalidArgument when two calls have not been received yet."""
        if self.sent - self.consumed >= 2:
            raise InvalidArgument(
                f"a third {what} before the receive hook of {what} number {self.consumed + 1} has run is refused: "
                "at most two results may be outstanding. Call that hook first."
            )

    def finish(self, epoch: int) -> None:
        """The receiving half of `epoch` has been queued."""
        self._ahead.add(epoch)
        while self.consumed + 1 in self._ahead:
            self.consumed += 1
            self._ahead.discard(self.consumed)


class LowLatency:
    """The low-latency half of a Buffer."""

    def __init__(self, session: Session, device: Device) -> None:
        self._session, self._device = session, device
        self.life = object()  # what handles are marked with
        self._dispatches, self._combines = Epochs(), Epochs()
        self.missed: set[int] = set()  # ranks of other nodes that a call left out because they were masked
        self._masked_at: dict[int, int] = {}  # by rank: calls there were when the caller masked it
        self._calls = 0
        self._shape: tuple[int, int, int] | None = None
        self._recorded: tuple[int, int, int] | None = None  # the sizes of calls that are in graphs
        self._layout = _native.LowLatencyLayout()
        self._max_topk = 0  # of a call with this layout
        self.prototypes = Prototypes(session, device)
        self._sums = Sums(session, device)
        self._ranks, self._has_remote = session.num_ranks, session.topology.num_nodes > 1

    # ---- shared by both calls ------------------------------------------------------------------------------------

    def set_shape(self, max_tokens: int, hidden: int, num_experts: int, barrier: Callable[[], None]) -> None:
        """Lays the region out for these sizes; when they differ from the last call's, behind a barrier of all ranks.

        Graphs run calls that nobody makes here. They all have the same sizes, and a call with others outside of them
        has a barrier before it and one after it (`leave_shape`).

        Raises:
            InvalidArgument: the sizes are out of range or do not fit into num_rdma_bytes.
            NotSupported: in a graph capture, with other sizes than the last call's or than those of other graphs.
        """
        shape = (max_tokens, hidden, num_experts)
        capturing = self._device.capturing()
        if shape == self._shape and self._recorded in (None, shape) and not capturing:
            return
        if capturing:
            if self._recorded not in (None, shape) or self._shape not in (None, shape):
                raise NotSupported(
                    f"a graph capture of low-latency calls with num_max_dispatch_tokens_per_rank, hidden, num_experts "
                    f"= {shape} after {self._recorded or self._shape}: calls of a Buffer's graphs must share these "
                    "sizes, and the call before the first capture must have had them. Make another Buffer for others."
                )
        outstanding = any(phase.sent != phase.consumed for phase in (self._dispatches, self._combines))
        if shape == self._shape and (self._recorded in (None, shape) or outstanding):
            self._recorded = shape if capturing else self._recorded
            return
        if not 1 <= max_tokens <= _native.MAX_TOKENS_PER_RANK:
            refuse("num_max_dispatch_tokens_per_rank", max_tokens, f"1 to {_native.MAX_TOKENS_PER_RANK}")
        if hidden % 8 or not 8 <= hidden <= _native.MAX_HIDDEN:
            refuse("hidden", hidden, f"a multiple of 8 up to {_native.MAX_HIDDEN}")
        ranks = self._ranks
        if num_experts % ranks or not 1 <= num_experts <= _native.MAX_EXPERTS:
            refuse("num_experts", num_experts, f"a multiple of the {ranks} ranks up to {_native.MAX_EXPERTS}")
        plan = self._session.plan
        layout, form = self._sums.lay_out(max_tokens, hidden, num_experts)
        if layout.bytes() > plan.low_latency_budget:
            refuse(
                "num_rdma_bytes",
                plan.low_latency_budget,
                f"at least {layout.bytes()} ({format_bytes(layout.bytes())}) for {max_tokens} tokens x {hidden} "
                f"channels on {plan.topology.num_nodes} node(s)",
                "Buffer.get_low_latency_rdma_size_hint gives it; set UCCL_EP_RANKS_PER_NODE where nodes are simulated.",
            )
        if outstanding:
            refuse(
                "num_max_dispatch_tokens_per_rank, hidden, num_experts",
                (max_tokens, hidden, num_experts),
                f"those of the last call, {self._shape}, while a receive hook has not been called",
            )
        if self._shape is not None:
            barrier()
        self._shape, self._layout, self._max_topk = shape, layout, layout.max_topk
        self.prototypes.lay_out(layout, num_experts)
        self._sums.use(form)
        self._recorded = shape if capturing else self._recorded

    def leave_shape(self, barrier: Callable[[], None]) -> None:
        """After a receiving half: when the sizes are not those of this Buffer's graphs, all ranks wait for each other,
        so that a replay finds the region unused."""
        if self._recorded not in (None, self._shape):
            barrier()

    def _begin(self) -> None:
        """Before a sending half is queued, when nothing speaks against the call any more."""
        if self._sums.owed:
            self._sums.catch_up()
        if self._has_remote:
            self._note_missed()

    def _note_missed(self) -> None:
        """With several nodes, for each sending half: proxies count the epochs of a source in turn, so one that was not
        sent cannot be made up for later."""
        self._calls += 1
        if self._device.host_memory and self._session.mask.any():
            topology = self._session.topology
            node = topology.node_of[self._session.rank]
            masked = self._session.mask.nonzero().flatten().tolist()
            self.missed.update(rank for rank in masked if topology.node_of[rank] != node)

    def note_masked(self, rank: int, masked: bool) -> None:
        """The caller has masked a rank, or taken the mask away."""
        if masked:
            self._masked_at.setdefault(rank, self._calls)
        else:
            self._masked_at.pop(rank, None)

    def late(self, ranks: set[int]) -> list[int]:
        """Those masked ranks among `ranks` that have missed a call for good, ascending.

        Where looking at the mask would wait for the device, calls do not look. Then a rank that a kernel masked has
        missed one, and so has one that the caller masked before the last call, or before a replay could have run.
        """
        masked = set(self._session.mask.nonzero().flatten().tolist()) & ranks
        if self._device.host_memory:
            return sorted(masked & self.missed)
        topology = self._session.topology
        remote = {r for r in masked if topology.node_of[r] != topology.node_of[self._session.rank]}
        fresh = {r for r in remote if self._recorded is None and self._masked_at.get(r, -1) == self._calls}
        return sorted(remote - fresh)

    # ---- dispatch --------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        form: Format,
        cumulative_stats: Tensor | None,
        wait_stats: Tensor | None,
    ) -> Received:
        """Queues the sending half; `receive` of the result queues the other."""
        assert self._shape is not None
        max_tokens, hidden, num_experts = self._shape
        ranks, device = self._ranks, self._device
        local, rows = num_experts // ranks, ranks * max_tokens
        tokens, topk = topk_idx.shape
        if topk > self._max_topk:
            self._sums.refuse_topk(topk, self._max_topk)
        epoch = self._dispatches.next("low_latency_dispatch")
        self._begin()
        work = device.empty(2 + -(-ranks * local // 2), dtype=torch.int64)  # the epoch's words, then counts of rows
        words = work.data_ptr()

        args = _native.DispatchSendArgs(self.prototypes.dispatch_send)
        args.epoch, args.x, args.topk_idx = words, x.data_ptr(), topk_idx.data_ptr()
        args.num_tokens, args.topk = tokens, topk
        args.format, args.round_scale = form.code, int(form.round_scale)
        args.global_scale = 0 if form.global_scale is None else form.global_scale.data_ptr()
        row_bytes = _native.LowLatencyLayout.row_bytes(hidden, form.code)
        args.batch = max(1, min(_native.WARP, _BATCH_BYTES // row_bytes))
        device.launch(_native.low_latency_dispatch_send, args, device.grid(max(1, tokens), _WARPS))

        received = ReceivedRows.make(device, form.code, local, rows, hidden)
        count = device.empty(local, dtype=torch.int32)
        # Three planes: token, slot at its source, source rank; then the dispatch's number. The handle shows the first;
        # combine finds the others in the same storage, also where a handle was put together again from its parts.
        src_info = device.empty(3 * local * rows + 1, dtype=torch.int32)
        layout_range = device.empty(local, ranks, dtype=torch.int64)
        given = (x, topk_idx, form.global_scale, cumulative_stats, wait_stats)

        def receive() -> None:
            self._dispatches.finish(epoch)
            if self._sums.owed:
                self._sums.catch_up()
            take = _native.DispatchReceiveArgs(self.prototypes.dispatch_receive)
            take.epoch, take.counts, take.format = words, words + 16, form.code
            take.recv_x = received.x.data_ptr()
            take.recv_scales = 0 if received.scales is None else received.scales.data_ptr()
            take.recv_count, take.src_info = count.data_ptr(), src_info.data_ptr()
            take.layout_range = layout_range.data_ptr()
            take.cumulative_stats = 0 if cumulative_stats is None else cumulative_stats.data_ptr()
            take.wait_stats = 0 if wait_stats is None else wait_stats.data_ptr()
            device.launch(_native.low_latency_dispatch_recv, take, device.grid(ranks, _WARPS))

        return Received(
            x=received.view(),
            count=count,
            handle=(
                src_info.as_strided((local, rows), (rows, 1)),
                layout_range,
                OwnedInt(max_tokens, self.life),
                hidden,
                num_experts,
            ),
            receive=receive,
            keep=(work, *given, received.x, received.scales, count, src_info, layout_range),
        )

    # ---- combine ---------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: Handle,
        out: Tensor,
        form: CombineFormat,
        zero_copy: bool,
        wait_stats: Tensor | None,
        overlap: Overlap | None = None,
        stays: bool = False,
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Queues the sending half; returns (what queues the other half, tensors to keep alive).

        With `stays` the caller does not write x until the other half has run, so that this rank's own rows are read
        there; not when sums overwrite them.
        """
        device, hidden = self._device, handle[3]
        planes = planes_of(handle)
        plain = form is CombineFormat.BF16
        tokens, topk = topk_idx.shape
        if topk > self._max_topk:
            self._sums.refuse_topk(topk, self._max_topk)
        registered = self._zero_copy_place(handle, self.next_combine_epoch()) if zero_copy else None
        epoch = self._combines.next("low_latency_combine")
        self._begin()
        word = device.empty(2, dtype=torch.int64)
        reduces = self._sums.form_of(form).reduces
        args = _native.CombineSendArgs(self.prototypes.combine_send)
        args.epoch, args.reduces = word.data_ptr(), int(reduces)
        args.x, args.row_stride, args.format = x.data_ptr(), hidden, int(form)
        args.src_info, args.layout_range = planes, handle[1].data_ptr()
        if reduces:
            args.num_tokens, args.topk = tokens, topk
            args.topk_idx, args.weights = topk_idx.data_ptr(), topk_weights.data_ptr()
        rows, begin = x, 0
        if registered is not None:
            rows, begin = registered.memory, registered.begin
            args.x, args.row_stride = rows.data_ptr() + begin, registered.stride
            args.zero_copy_offset = registered.offset
        overwritten = out.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        own_rows = args.x if (stays or zero_copy) and plain and not overwritten else 0
        own_stride = args.row_stride
        args.own_stay = int(own_rows != 0)
        readable = self._session.regions.zero_copy_rows
        if readable and plain:
            stay = zero_copy and own_rows != 0
            args.node_rows = _native.NODE_ROWS_STAY if stay else _native.NODE_ROWS_COPIED_AND_MARKED
            args.x_at = begin if stay else 0
        signals = None
        if overlap is not None:
            signals = overlap.signals
            args.signals = 0 if signals is None else signals.data_ptr()
            args.signals_per_expert, args.signal_rows = overlap.per_expert, overlap.rows
            args.signal_value = overlap.value
        blocks = _SEND_BLOCKS if overlap is None else overlap.num_sms
        device.launch(_native.low_latency_combine_send, args, device.grid(blocks, _WARPS))
        if reduces:
            self._sums.owe(self.prototypes.combine_reduce, wait_stats, word, readable)

        def receive() -> None:
            self._combines.finish(epoch)
            if self._sums.owed:
                self._sums.catch_up()
            take = _native.CombineReceiveArgs(self.prototypes.combine_receive)
            take.epoch, take.reduces = word.data_ptr(), int(reduces)
            take.out, take.topk_idx, take.weights = out.data_ptr(), topk_idx.data_ptr(), topk_weights.data_ptr()
            take.wait_stats = 0 if wait_stats is None else wait_stats.data_ptr()
            take.num_tokens, take.topk = tokens, topk
            take.format, take.zero_copy = int(form), int(zero_copy)
            take.own_rows, take.own_stride, take.registered = own_rows, own_stride, readable
            device.launch(_native.low_latency_combine_recv, take, device.grid(max(1, tokens), _WARPS))

        return receive, (word, x, topk_idx, topk_weights, handle[0], handle[1], out, wait_stats, signals)

    def next_combine_epoch(self) -> int:
        """Epoch of the combine call that comes next."""
        return self._combines.sent + 1

    def zero_copy_rows(self, handle: Handle, epoch: int) -> Tensor:
        """bf16 view [L, P, H] of the registered rows for a combine epoch."""
        place = self._zero_copy_place(handle, epoch)
        local, rows, stride = place.local, place.rows, place.stride
        whole = place.memory.view(torch.bfloat16)
        return whole.as_strided((local, rows, handle[3]), (rows * stride, stride, 1), place.begin // 2)

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
                f"up to {memory.numel()} bytes of rows, not {sets * set_bytes}",
                "That is num_rdma_bytes where a NIC takes every page, or address space is limited (ulimit -v).",
            )
        begin = epoch % sets * set_bytes
        return _Place(memory, begin, offset + begin, local, rows, stride)

    def wait_for_zero_copy(self) -> None:
        """Returns when the rows of the next combine may be written: its set's last receiving half has run.

        Raises:
            InvalidArgument: that one has not even been queued.
        """
        self._combines.refuse_third("low_latency_combine")
        self._device.catch_up()
