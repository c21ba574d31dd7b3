"""What the throughput calls of a Buffer do: layout, dispatch, combine. Their contract is in buffer.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from uccl_ep import _native, checks
from uccl_ep.config import Config
from uccl_ep.device.kept_until_run import kept_until_run
from uccl_ep.device.protocol import Device, EventHandle
from uccl_ep.errors import Described, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.membership.fault_errors import dtype_code
from uccl_ep.session.session import Session
from uccl_ep.throughput.handle import ThroughputHandle
from uccl_ep.throughput.launch import CountOptions, Layout, Rows, Throughput

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]
_MAX_ALIGNMENT = 1 << 16  # of rows of an expert; rounded counts stay far from 32 bits


def _rows_of(x: Any) -> Rows:
    """x, or (x, scales), checked.

    Raises:
        InvalidArgument: not 2-D contiguous, a row that is no multiple of 16 bytes, or scales that do not fit.
    """
    if isinstance(x, tuple) and len(x) != 2:
        refuse("x", Described(f"a tuple of {len(x)}"), "a contiguous 2-D tensor, or a tuple of one and its scales")
    data, scales = x if isinstance(x, tuple) else (x, None)
    if not isinstance(data, Tensor) or data.layout != torch.strided or data.dim() != 2 or not data.is_contiguous():
        refuse("x", data, "a contiguous 2-D tensor, or a tuple of one and its scales")
    if data.shape[1] * data.element_size() % 16 or data.shape[1] == 0 or data.shape[1] > _native.MAX_HIDDEN:
        allowed = f"of rows of a multiple of 16 bytes, up to {_native.MAX_HIDDEN} channels"
        refuse("x", data, allowed, f"16 bytes are {16 // data.element_size()} channels of {data.dtype}.")
    if scales is not None:
        if data.element_size() != 1:
            refuse(
                "x",
                Described(f"{data.dtype} with scales"),
                "of a one-byte dtype such as float8_e4m3fn when scales are given",
            )
        good = isinstance(scales, Tensor) and scales.dim() == 2 and scales.layout == torch.strided
        good = good and scales.dtype in (torch.float32, torch.int32)
        if not good or scales.shape[0] != data.shape[0]:
            refuse("x[1]", scales, f"a 2-D float32 or int32 tensor with {data.shape[0]} rows")
    return Rows(checks.aligned(data), scales)


def unpack_bias(bias: Any) -> tuple[Tensor | None, Tensor | None]:
    """None, a tensor or a pair as a pair."""
    if bias is None:
        return None, None
    if isinstance(bias, Tensor):
        return bias, None
    if not isinstance(bias, (tuple, list)) or len(bias) != 2:
        refuse("bias", bias, "None, a bf16 tensor, or a pair of them")
    first, second = bias
    return first, second


class ThroughputCalls:
    """The throughput calls of a Buffer in one of its lives. Buffer documents their arguments and results.

    Args:
        throughput: queues their kernels.
        default_config: gives the Config of a dispatch without one, for a number of ranks.
    """

    def __init__(
        self, session: Session, device: Device, throughput: Throughput, default_config: Callable[[int], Config]
    ) -> None:
        self._session, self._device, self._throughput = session, device, throughput
        self._default_config = default_config
        self.rank, self.num_ranks = session.rank, session.num_ranks

    @kept_until_run
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: Event | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Event]:
        """Queues the kernel that counts where tokens go."""
        self._session.settle()
        with self._begin(previous_event, async_finish, allocate_on_comm_stream, topk_idx=topk_idx):
            num_experts = checks.check_int("num_experts", num_experts, 1, _native.MAX_EXPERTS)
            if num_experts % self.num_ranks:
                refuse("num_experts", num_experts, f"a multiple of the {self.num_ranks} ranks")
            ids = checks.row_ids("topk_idx", topk_idx, self._looked_at(num_experts, previous_event))
            results = self._throughput.layout(ids, num_experts)
            return *results, self._end(async_finish, (ids, *results))

    @kept_until_run
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        handle: Any,
        num_tokens_per_rank: Tensor | None,
        num_tokens_per_rdma_rank: Tensor | None,
        is_token_in_rank: Tensor | None,
        num_tokens_per_expert: Tensor | None,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        expert_alignment: int,
        num_worst_tokens: int,
        config: Config | None,
        previous_event: Event | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Any, Tensor | None, Tensor | None, list[int] | None, ThroughputHandle | None, Event]:
        """Sends tokens; with a handle by its routing, else by the layout, after an exchange of counts."""
        if handle is not None:
            with self._begin(previous_event, async_finish, allocate_on_comm_stream, x=x):
                return self._cached_dispatch(_rows_of(x), handle, topk_idx, topk_weights, async_finish)
        layout = (num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert)
        inputs = {
            "x": x,
            "topk_idx": topk_idx,
            "topk_weights": topk_weights,
            "num_tokens_per_rank": num_tokens_per_rank,
            "num_tokens_per_rdma_rank": num_tokens_per_rdma_rank,
            "is_token_in_rank": is_token_in_rank,
            "num_tokens_per_expert": num_tokens_per_expert,
        }
        with self._begin(previous_event, async_finish, allocate_on_comm_stream, **inputs):
            rows = _rows_of(x)
            given = self._checked_layout(rows, *layout)
            most = self.num_ranks * _native.MAX_TOKENS_PER_RANK
            num_worst_tokens = checks.check_int("num_worst_tokens", num_worst_tokens, 0, most)
            expert_alignment = checks.check_int("expert_alignment", expert_alignment, 1, _MAX_ALIGNMENT)
            if not isinstance(config, Config | None):
                refuse("config", config, "a Config, or None")
            looked_at = self._looked_at(given.per_expert.numel(), previous_event)
            ids, weights = self._checked_topk(rows, topk_idx, topk_weights, num_worst_tokens, looked_at)
            if num_worst_tokens == 0:
                self._device.check_host_wait()

            shape = _row_shape(rows, 0 if ids is None else ids.shape[1])
            num_sms = (config or self._default_config(self.num_ranks)).num_sms
            options = CountOptions(num_sms, expert_alignment, num_worst_tokens)
            routing, compared = self._throughput.exchange_counts(shape, rows, given._replace(ids=ids), options)
            counts: list[int] = []
            if num_worst_tokens == 0:
                self._device.finish()
                self._throughput.check_refusal(routing)
                counts = routing.counted()
            d = self._throughput.dispatch(rows, ids, weights, shape, routing, pad=num_worst_tokens > 0)
            event = self._end(async_finish, (*d.keep, *compared))
        result = ThroughputHandle.make(routing, self._session.topology.num_nodes)
        return _payload(d), d.topk_idx, d.topk_weights, counts, result, event

    def check_before(self, x: Any, layout: tuple[Any, ...], topk: tuple[Any, Any], num_worst_tokens: int) -> int:
        """Refuses what `dispatch` would refuse of these, before anything is sent; returns the number of experts."""
        self._session.check()
        rows = _rows_of(x)
        given = self._checked_layout(rows, *layout)
        num_experts = given.per_expert.numel()
        checks.check_int("num_worst_tokens", num_worst_tokens, 1, self.num_ranks * _native.MAX_TOKENS_PER_RANK)
        self._checked_topk(rows, *topk, num_worst_tokens, self._looked_at(num_experts, None))
        return num_experts

    def _cached_dispatch(
        self, rows: Rows, handle: Any, topk_idx: Tensor | None, topk_weights: Tensor | None, async_finish: bool
    ) -> tuple[Any, None, None, None, None, Event]:
        routing = self._throughput.routing_of(handle)
        if topk_idx is not None or topk_weights is not None:
            refuse("topk_idx and topk_weights", Described("one of them"), "None with a handle")
        if rows.x.shape[0] != routing.num_tokens:
            refuse("x", rows.x, f"of {routing.num_tokens} rows, as the handle's dispatch had")
        d = self._throughput.dispatch(rows, None, None, _row_shape(rows, 0), routing, again=True)
        return _payload(d), None, None, None, None, self._end(async_finish, d.keep)

    def _looked_at(self, num_experts: int, previous_event: Event | None) -> int | None:
        """num_experts where the host may look at ids now: kernels take one out of range for one that is not routed."""
        query = getattr(getattr(previous_event, "event", previous_event), "query", None)
        return num_experts if self._device.host_memory and (query is None or query()) else None

    def _checked_topk(
        self,
        rows: Rows,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        num_worst_tokens: int,
        num_experts: int | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        if (topk_idx is None) != (topk_weights is None):
            refuse("topk_idx and topk_weights", Described("one of them"), "given both or neither")
        if topk_idx is None:
            if num_worst_tokens:
                refuse("num_worst_tokens", num_worst_tokens, "0 without topk_idx")
            return None, None
        ids = checks.row_ids("topk_idx", topk_idx, num_experts)
        if ids.shape[0] != rows.x.shape[0]:
            refuse("topk_idx", ids, f"of {rows.x.shape[0]} rows, as x has")
        return ids, checks.weights("topk_weights", topk_weights, tuple(ids.shape))

    def _checked_layout(
        self,
        rows: Rows,
        per_rank: Tensor | None,
        per_node: Tensor | None,
        in_rank: Tensor | None,
        per_expert: Tensor | None,
    ) -> Layout:
        tokens, ranks, nodes = rows.x.shape[0], self.num_ranks, self._session.topology.num_nodes
        if per_rank is None or in_rank is None or per_expert is None:
            refuse(
                "num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert",
                None,
                "given without a handle",
                "Pass the results of get_dispatch_layout(topk_idx, num_experts).",
            )
        checks.check_vector("num_tokens_per_rank", per_rank, torch.int32, ranks)
        if nodes == 1:
            per_node = None  # upstream does not look at it then
        checks.check_vector("num_tokens_per_rdma_rank", per_node, torch.int32, nodes)
        in_rank = checks.check_matrix("is_token_in_rank", in_rank, (torch.bool,), ranks)
        if in_rank.shape[0] != tokens:
            refuse("is_token_in_rank", in_rank, f"of {tokens} rows, as x has")
        if not isinstance(per_expert, Tensor):
            refuse("num_tokens_per_expert", per_expert, "what get_dispatch_layout returned")
        if per_expert.numel() % ranks or not 1 <= per_expert.numel() <= _native.MAX_EXPERTS:
            refuse(
                "num_tokens_per_expert", per_expert, f"of one element for each expert, a multiple of the {ranks} ranks"
            )
        checks.check_vector("num_tokens_per_expert", per_expert, torch.int32, per_expert.numel())
        return Layout(per_rank, per_node, in_rank, per_expert, None)

    @kept_until_run
    def combine(
        self,
        x: Tensor,
        handle: Any,
        topk_weights: Tensor | None,
        bias: Any,
        out: Tensor | None,
        previous_event: Event | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Tensor, Tensor | None, Event]:
        """Sends the rows of a dispatch back, and adds up those that come."""
        with self._begin(
            previous_event, async_finish, allocate_on_comm_stream, x=x, topk_weights=topk_weights, bias=bias, out=out
        ):
            routing = self._throughput.routing_of(handle)
            x = checks.aligned(checks.check_matrix("x", x, (torch.bfloat16,)))
            hidden = x.shape[1]
            if x.shape[0] != routing.num_rows or hidden % 8 or not 8 <= hidden <= _native.MAX_HIDDEN:
                hint = "Rows go back with the handle of the dispatch that they came by."
                refuse("x", x, f"of {routing.num_rows} rows, as received, and a multiple of 8 channels", hint)
            if topk_weights is not None:
                topk_weights = checks.check_matrix("topk_weights", topk_weights, (torch.float32,))
                if topk_weights.shape[0] != x.shape[0] or not 1 <= topk_weights.shape[1] <= _native.MAX_TOPK:
                    refuse("topk_weights", topk_weights, f"of {x.shape[0]} rows and 1 to {_native.MAX_TOPK} columns")
            first, second = unpack_bias(bias)
            for tensor in (first, second):
                if tensor is None:
                    continue
                if tuple(checks.check_matrix("bias", tensor, (torch.bfloat16,)).shape) != (routing.num_tokens, hidden):
                    refuse("bias", tensor, f"of shape {(routing.num_tokens, hidden)}")
            if out is not None:
                read = {"x": x, "topk_weights": topk_weights, "bias": first, "bias[1]": second}
                checks.check_out("out", out, (routing.num_tokens, hidden), torch.bfloat16, **read)
            biases = tuple(None if b is None else checks.aligned(b) for b in (first, second))
            out, weights, keep = self._throughput.combine(x, topk_weights, (biases[0], biases[1]), out, routing)
            return out, weights, self._end(async_finish, keep)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def _begin(
        self, previous_event: Event | None, async_finish: bool, allocate_on_comm_stream: bool, **inputs: Any
    ) -> AbstractContextManager[Any]:
        self._session.check()
        if allocate_on_comm_stream and (previous_event is None or not async_finish):
            refuse("allocate_on_comm_stream", True, "False without previous_event and async_finish=True")
        for name, value in inputs.items():
            if value is None:
                continue
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(part, Tensor):
                    self._device.check_tensor(name, part)
        if previous_event is not None:
            previous_event = checks.event("previous_event", previous_event)
        return self._device.behind(previous_event)

    def _end(self, async_finish: bool, keep: tuple[Any, ...]) -> Event:
        if not async_finish:
            self._device.end(keep)
            return EventOverlap()
        return EventOverlap(self._device.record(keep), [t for t in keep if isinstance(t, Tensor)])


def _row_shape(rows: Rows, topk: int) -> Any:
    scales = 0 if rows.scales is None else rows.scales.shape[1]
    return _made_row_shape(rows.payload_bytes, rows.x.dtype, scales, topk)


@functools.lru_cache(256)
def _made_row_shape(payload_bytes: int, dtype: torch.dtype, scales: int, topk: int) -> Any:
    """Of rows with so many scales. Nobody changes what it returns."""
    named = topk > 0
    return _native.RowShape(payload_bytes, scales * 4, topk, has_ids=named, has_weights=named, dtype=dtype_code(dtype))


def _payload(d: Any) -> Any:
    return d.x if d.scales is None else (d.x, d.scales)
