"""What ElasticBuffer.dispatch does: the throughput dispatch with V2's arguments, results and handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from uccl_ep import _native, checks
from uccl_ep.buffer import Buffer
from uccl_ep.config import Config
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic import expand
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.errors import Described, refuse
from uccl_ep.events import EventOverlap

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]
_MAX_ALIGNMENT = 1 << 16


Results = tuple[Any, Tensor | None, Tensor | None, EPHandle]
"""recv_x, recv_topk_idx, recv_topk_weights, handle."""


class Into(NamedTuple):
    """Where the caller wants an expanded dispatch's rows: recv_x_out [C, H], recv_sf_out, recv_topk_weights_out."""

    x: Tensor
    scales: Tensor | None
    weights: Tensor | None

    def check(self, data: Tensor, scales: Tensor | None, weights: Tensor | None) -> None:
        """That it is what such rows need, and apart from what is sent.

        Raises:
            InvalidArgument: it is not.
        """
        read = {"x": data, "x[1]": scales, "topk_weights": weights}
        num_rows = self.x.shape[0] if isinstance(self.x, Tensor) and self.x.dim() == 2 else 0
        checks.check_out("recv_x_out", self.x, (num_rows, data.shape[1]), data.dtype, **read)
        for name, given, out in (
            ("recv_sf_out", scales, self.scales),
            ("recv_topk_weights_out", weights, self.weights),
        ):
            if (given is None) != (out is None):
                what = "the scales of x" if name == "recv_sf_out" else "topk_weights"
                refuse(name, out, f"{'None without' if given is None else 'given with'} {what}")
            if out is not None and getattr(out, "device", None) != data.device:
                refuse(name, out, f"on {data.device}, where x is")
        if self.x.device != data.device:
            refuse("recv_x_out", self.x, f"on {data.device}, where x is")
        if scales is not None and self.scales is not None:
            shape = num_rows, scales.shape[1]
            if self.scales.dtype != scales.dtype or tuple(self.scales.shape) != shape or 0 in self.scales.stride():
                refuse("recv_sf_out", self.scales, f"a {scales.dtype} tensor of shape {shape}, as the scales of x")
            checks.refuse_overlap("recv_sf_out", self.scales, recv_x_out=self.x, **read)
        if self.weights is not None:
            checks.check_vector("recv_topk_weights_out", self.weights, torch.float32, num_rows)
            checks.refuse_overlap(
                "recv_topk_weights_out", self.weights, recv_x_out=self.x, recv_sf_out=self.scales, **read
            )

    @torch.no_grad()
    def write(self, received: Received, choices: Tensor, topk: int, zero_padding: bool) -> None:
        """The rows that `choices` [C] name (see expand.choice_of_row), without a copy in between."""
        for values, out in ((received.data, self.x), (received.scales, self.scales)):
            if values is not None and out is not None:
                expand.write_rows(values, choices, topk, zero_padding, out)
        if self.weights is not None and received.weights is not None:
            self.weights.copy_(expand.spread_weights(received.weights, choices))


class Call(NamedTuple):
    """The arguments of a dispatch that are no tensors to send."""

    given: tuple[int | None, int | None, int | None]  # num_experts, num_max_tokens_per_rank, expert_alignment
    num_sms: int
    stats: Tensor | None
    before: tuple[EventHandle | None, EventHandle | None]  # what the sending, and what the expansion waits for
    copies: bool
    cpu_sync: bool | None
    expand: bool
    zero_padding: bool
    column_major: bool
    into: Into | None = None
    bound: tuple[int | None, Any] = (None, "trap")  # max_recv_tokens_per_rank, overflow_policy


class Options(NamedTuple):
    """What a dispatch does, checked."""

    num_experts: int
    max_tokens: int
    alignment: int
    num_sms: int
    cpu_sync: bool
    expand: bool
    zero_padding: bool
    column_major: bool
    into: Into | None
    worst_tokens: int = 0  # tokens that may come; 0: the host is to know how many do, or knows by a handle
    overflow_policy: Any = "trap"


class Received(NamedTuple):
    """Tokens as they came: [n, ...] each."""

    data: Tensor
    scales: Tensor | None
    source: Tensor  # int32 [n]: source rank * M + token
    weights: Tensor | None  # f32 [n, K], as the source had them


def split(x: Any, name: str = "x", of_scales: str = "x[1]") -> tuple[Tensor, Tensor | None]:
    """(data, scales or None) of dispatch's x. The names are those of the caller's arguments.

    Raises:
        InvalidArgument: not a 2-D tensor, rows of another size than a multiple of 16 bytes, or scales that do not fit.
    """
    data, scales = x if isinstance(x, tuple) and len(x) == 2 else (x, None)
    if not isinstance(data, Tensor) or data.dim() != 2 or not data.is_contiguous():
        refuse(name, data, f"a contiguous 2-D tensor of bf16 rows, or of one-byte rows with scales as {of_scales}")
    if data.shape[1] * data.element_size() % 16:
        hint = f"16 bytes are {16 // data.element_size()} channels of {data.dtype}."
        refuse(name, data, "of rows of a multiple of 16 bytes", hint)
    if scales is None:
        if data.dtype != torch.bfloat16:
            refuse(name, data, f"of bf16 rows, or of one-byte rows with scales as {of_scales}")
        return data, None
    if data.element_size() != 1:
        refuse(name, data, "of a one-byte dtype such as float8_e4m3fn when scales are given")
    if not isinstance(scales, Tensor) or scales.dim() != 2 or scales.element_size() != 4:
        refuse(of_scales, scales, "a 2-D tensor of a 4-byte dtype")
    if scales.shape[0] != data.shape[0]:
        refuse(of_scales, scales, f"of {data.shape[0]} rows, as the data has")
    return data, scales


def pack(scales: Tensor | None, source: Tensor, weights: Tensor | None) -> Tensor:
    """What travels beside a row, as int32 words [T, S + 1 + K]: scales, where the row is from, its unmasked weights.

    The kernels' own weights are zero where an expert is elsewhere (V1's rule); V2 wants them as the source had them.
    """
    words = [source.unsqueeze(1)]
    if scales is not None:
        words.insert(0, scales.contiguous().view(torch.int32))
    if weights is not None:
        words.append(weights.view(torch.int32))
    return torch.cat(words, 1)


def unpack(data: Tensor, words: Tensor, dtype: torch.dtype, scales: Tensor | None, weighted: bool) -> Received:
    """The other side of `pack`; `scales` are the sender's own, for their number and dtype."""
    packs = 0 if scales is None else scales.shape[1]
    received_scales = None if scales is None else words[:, :packs].contiguous().view(scales.dtype)
    weights = words[:, packs + 1 :].contiguous().view(torch.float32) if weighted else None
    return Received(data.view(dtype), received_scales, words[:, packs].contiguous(), weights)


class ElasticDispatch:
    """The dispatch of an ElasticBuffer, which documents its arguments and results, on the throughput calls of `buffer`.

    Args:
        max_tokens: M of calls that name none.
    """

    def __init__(self, buffer: Buffer, max_tokens: int) -> None:
        self._buffer, self._max_tokens = buffer, max_tokens
        self._rank, self._num_ranks = buffer.rank, buffer.group_size

    def start(
        self,
        x: Any,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        handle: EPHandle | None,
        call: Call,
        choose_sms: Callable[[int, int], int],
    ) -> Callable[[], Results]:
        """Sends; returns what gives (recv_x, recv_topk_idx, recv_topk_weights, handle) when it is called.

        `choose_sms` gives the SMs of a call that names none, for its experts and top-k.
        """
        data, scales = split(x)
        for name, event in zip(("previous_event", "previous_event_before_epilogue"), call.before, strict=True):
            checks.event(name, event)
        if call.into is not None:
            call.into.check(data, scales, topk_weights)
        if handle is None:
            if topk_idx is None:
                refuse("topk_idx", None, "an int64 tensor [T, K] where no handle is given")
            ids = checks.row_ids("topk_idx", topk_idx)
            options = self._options(call, ids.shape[1], choose_sms)
            stats = checks.check_vector(
                "cumulative_local_expert_recv_stats",
                call.stats,
                torch.int32,
                options.num_experts // self._num_ranks,
            )
            received, sent = self._send(data, scales, topk_weights, options, call.before, ids=ids)
            made = self._handle(received, sent, ids.clone() if call.copies else topk_idx, options)
            if stats is not None:
                stats += made.num_unaligned_recv_tokens_per_expert
        else:
            if topk_idx is not None or call.stats is not None or call.cpu_sync:
                names = "topk_idx, cumulative_local_expert_recv_stats, do_cpu_sync"
                refuse(names, Described("one of them"), "left out with a handle")
            made, options = handle, self._cached_options(handle, call)
            received = self._send(data, scales, topk_weights, options, call.before, handle=handle)[0]

        def finish() -> Results:
            if call.before[1] is not None:
                call.before[1].current_stream_wait()
            return *self._finish(received, made, options), made

        return finish

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _options(self, call: Call, topk: int, choose_sms: Callable[[int, int], int]) -> Options:
        num_experts, max_tokens, alignment = call.given
        if num_experts is None or isinstance(num_experts, bool) or num_experts < 1 or num_experts % self._num_ranks:
            refuse("num_experts", num_experts, f"a multiple of the {self._num_ranks} ranks")
        if call.zero_padding and not call.expand:
            refuse("do_zero_padding", True, "False without do_expand=True")
        max_tokens = self._max_tokens if max_tokens is None else max_tokens
        hint = "The buffer was made without num_max_tokens_per_rank." if not max_tokens else ""
        checks.check_int("num_max_tokens_per_rank", max_tokens, 1, _native.MAX_TOKENS_PER_RANK, hint)
        alignment = checks.check_int("expert_alignment", 1 if alignment is None else alignment, 1, _MAX_ALIGNMENT)
        sms = checks.check_int("num_sms", call.num_sms, 0, 1 << 16) or choose_sms(num_experts, topk)
        cpu_sync = True if call.cpu_sync is None else checks.check_bool("do_cpu_sync", call.cpu_sync)
        flags = (cpu_sync, call.expand, call.zero_padding, call.column_major, call.into)
        worst, (most, policy) = self._num_ranks * max_tokens, call.bound
        if most is not None and cpu_sync:
            refuse("max_recv_tokens_per_rank", most, "None without do_cpu_sync=False")
        if most is not None:
            worst = checks.check_int("max_recv_tokens_per_rank", most, 1, worst)
        elif policy != "trap":
            refuse("overflow_policy", policy, '"trap" without max_recv_tokens_per_rank')
        return Options(num_experts, max_tokens, alignment, sms, *flags, 0 if cpu_sync else worst, policy)

    def _cached_options(self, handle: EPHandle, call: Call) -> Options:
        if not isinstance(handle, EPHandle):
            refuse("handle", handle, "the EPHandle that dispatch returned")
        kept = (handle.num_experts, handle.num_max_tokens_per_rank, handle.expert_alignment)
        names = ("num_experts", "num_max_tokens_per_rank", "expert_alignment")
        for name, value, own in zip(names, call.given, kept, strict=True):
            if value is not None and value != own:
                refuse(name, value, f"{own}, as the handle's dispatch had, or None")
        if call.expand and not handle.do_expand:
            refuse("do_expand", True, "False, as the handle's dispatch had")
        if call.zero_padding and not call.expand:
            refuse("do_zero_padding", True, "False without do_expand=True")
        if call.into is not None and call.into.x.shape[0] != handle.num_expanded_tokens:
            refuse(
                "recv_x_out", call.into.x, f"of {handle.num_expanded_tokens} rows, as the handle's dispatch returned"
            )
        if call.bound != (None, "trap"):
            names_of = "max_recv_tokens_per_rank and overflow_policy"
            refuse(names_of, Described("one of them"), "left out with a handle, which keeps its dispatch's")
        return Options(*kept, handle.num_sms, False, call.expand, call.zero_padding, call.column_major, call.into)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _send(
        self,
        data: Tensor,
        scales: Tensor | None,
        weights: Tensor | None,
        options: Options,
        before: tuple[EventHandle | None, EventHandle | None],
        ids: Tensor | None = None,
        handle: EPHandle | None = None,
    ) -> tuple[Received, tuple[Any, ...]]:
        """Rows as bytes with their words through the throughput dispatch; also what that returned."""
        tokens = data.shape[0]
        if tokens > options.max_tokens:
            refuse("x", data, f"of up to num_max_tokens_per_rank={options.max_tokens} rows")
        if handle is not None and tokens != handle.topk_idx.shape[0]:
            refuse("x", data, f"of {handle.topk_idx.shape[0]} rows, as the handle's dispatch had")
        topk = (ids if ids is not None else handle.topk_idx).shape[1]  # type: ignore[union-attr]
        if weights is not None:
            weights = checks.weights("topk_weights", weights, (tokens, topk))
        source = torch.arange(tokens, dtype=torch.int32, device=data.device) + self._rank * options.max_tokens
        # Bytes for every dtype: the kernels take words beside a row for one-byte rows only.
        rows = (data.view(torch.uint8), pack(scales, source, weights))
        previous = None if before[0] is None else EventOverlap(before[0])
        if handle is not None:
            sent = self._buffer.dispatch(rows, handle=handle.routing, previous_event=previous)
        else:
            assert ids is not None
            layout = self._buffer.get_dispatch_layout(ids, options.num_experts, previous_event=previous)
            per_rank, per_node, per_expert, in_rank, _ = layout
            if ids.shape[0] != tokens:
                refuse("topk_idx", ids, f"of {tokens} rows, as x has")
            sent = self._buffer.dispatch(
                rows,
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_node,
                num_tokens_per_expert=per_expert,
                is_token_in_rank=in_rank,
                topk_idx=ids,
                topk_weights=torch.zeros(ids.shape, dtype=torch.float32, device=ids.device),
                expert_alignment=options.alignment,
                num_worst_tokens=options.worst_tokens,
                overflow_policy=options.overflow_policy,
                config=Config(options.num_sms),
                previous_event=previous,
            )
        received, words = sent[0]
        return unpack(received, words, data.dtype, scales, weights is not None), sent

    def _handle(self, received: Received, sent: tuple[Any, ...], topk_idx: Tensor, options: Options) -> EPHandle:
        idx, counts_list, routing = sent[1], sent[3], sent[4]
        local = options.num_experts // self._num_ranks
        counts = expand.count_experts(idx, local, options.alignment)
        rows = expand.expanded_rows(idx, counts) if options.expand else torch.full_like(idx, -1)
        num_tokens = idx.shape[0]
        if not options.expand:
            expanded = num_tokens
        elif options.cpu_sync:
            expanded = sum(counts_list)
        else:
            expanded = expand.worst_rows(num_tokens, idx.shape[1], local, options.alignment)
        overflow, needed = routing.overflow, None
        if options.into is not None:
            expanded = options.into.x.shape[0]
            needed = rows.amax() + 1 if rows.numel() else rows.new_zeros(())
            overflow = needed > expanded if overflow is None else overflow | (needed > expanded)
            if options.cpu_sync and bool(overflow):
                hint = "This rank's call has ended all the same: dispatch again, with more rows, on all ranks."
                refuse("recv_x_out", Described(f"{expanded} rows"), f"of {int(needed)} rows or more here", hint)
            rows = torch.where(rows < expanded, rows, -1)
        here = torch.arange(num_tokens, dtype=torch.int32, device=idx.device)
        prefix = routing.routing.rank_prefix
        per_rank = prefix if prefix.dim() == 1 else prefix[:, self._rank]
        return EPHandle(
            do_expand=options.expand,
            num_experts=options.num_experts,
            expert_alignment=options.alignment,
            num_max_tokens_per_rank=options.max_tokens,
            num_sms=options.num_sms,
            sent_topk_idx=topk_idx,
            num_recv_tokens=num_tokens,
            num_expanded_tokens=expanded,
            num_recv_tokens_per_expert_list=counts_list,
            psum_num_recv_tokens_per_scaleup_rank=per_rank.contiguous().int(),
            psum_num_recv_tokens_per_expert=(counts.end if options.expand else counts.aligned_ends).int(),
            num_unaligned_recv_tokens_per_expert=counts.real.int(),
            recv_src_metadata=torch.cat([received.source.unsqueeze(1), here.unsqueeze(1), rows.int()], 1),
            recv_topk_idx=idx,
            routing=routing,
            overflow=overflow,
            num_expanded_rows_needed=needed,
            recv_totals=routing.recv_totals,
        )

    def _finish(
        self, received: Received, handle: EPHandle, options: Options
    ) -> tuple[Any, Tensor | None, Tensor | None]:
        """recv_x, recv_topk_idx and recv_topk_weights as the caller asked for them."""
        data, scales, weights = received.data, received.scales, received.weights
        idx: Tensor | None = handle.recv_topk_idx
        if options.expand:
            choices = expand.choice_of_row(handle.expanded_rows.long(), handle.num_expanded_tokens)
            topk = handle.recv_topk_idx.shape[1]
            if options.into is not None:
                options.into.write(received, choices, topk, options.zero_padding)
                x = options.into.x if options.into.scales is None else (options.into.x, options.into.scales)
                return x, None, options.into.weights
            data = expand.take_rows(data, choices, topk, options.zero_padding)
            scales = None if scales is None else expand.take_rows(scales, choices, topk, options.zero_padding)
            weights = None if weights is None else expand.spread_weights(weights, choices)
            idx = None
        if scales is None:
            return data, idx, weights
        return (data, expand.column_major(scales) if options.column_major else scales), idx, weights
