"""Throughput dispatch and combine: tables, outputs, and the kernel launches."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.errors import Described, InvalidArgument, NotSupported, refuse
from uccl_ep.membership.fault_errors import LayoutFault, dtype_code, layout_error
from uccl_ep.session.session import Session
from uccl_ep.sizes import format_bytes
from uccl_ep.throughput.handle import Routing, routing_of

# On a CPU, rings of a node that fit into its caches together stay there, each this large at most.
_CACHED_RING_BYTES, _CACHED_RINGS, _CACHED_RING_SLOTS = 2 << 20, 8, 8
Tensor = torch.Tensor


@dataclass
class Rows:
    """What is to be dispatched, checked: x [T, hidden], scales as 4-byte words [T, S] or None."""

    x: Tensor
    scales: Tensor | None

    @property
    def payload_bytes(self) -> int:
        """Bytes of one row of x."""
        return self.x.shape[1] * self.x.element_size()


class Layout(NamedTuple):
    """What the caller says of a dispatch's tokens, as get_dispatch_layout returns it; per_node and ids may be None."""

    per_rank: Tensor
    per_node: Tensor | None
    in_rank: Tensor
    per_expert: Tensor
    ids: Tensor | None


@dataclass(frozen=True)
class CountOptions:
    """Of a dispatch that counts: num_worst_tokens is 0 when the host is to know the counts."""

    num_sms: int
    expert_alignment: int
    num_worst_tokens: int


@dataclass
class Dispatched:
    """Outputs of a dispatch."""

    x: Tensor
    scales: Tensor | None
    topk_idx: Tensor | None
    topk_weights: Tensor | None
    routing: Routing
    keep: tuple[Any, ...]


class Throughput:
    """The throughput half of a Buffer."""

    def __init__(self, session: Session, device: Device) -> None:
        self._session, self._device = session, device
        self._owner = object()
        self._workspace = device.zeros(_native.ThroughputCalls.WORKSPACE_BYTES // 8, dtype=torch.int64)
        self._geometry: dict[str, Any] = {"dispatch": None, "combine": None}
        self._prepared: tuple[int, _native.ThroughputCalls] | None = None
        self._readers = max(session.topology.sizes)  # ranks of the largest node
        self._fits: dict[tuple[int, int], Any] = {}
        self._cuts: dict[tuple[int, int, int], Any] = {}
        self.calls = 0  # dispatches and combines
        self._masked_at: dict[int, int] = {}  # by rank: `calls` when the caller masked it
        self._recorded = False  # calls of this rank are in graphs, which run without passing here

    def _launches(self) -> _native.ThroughputCalls:
        """What all calls have alike, for the tag that the session has now."""
        context, plan = self._session.context, self._session.plan.throughput
        if self._prepared is None or self._prepared[0] != context.tag:
            made = _native.ThroughputCalls(context, plan, self._workspace, self._device.shape)
            self._prepared = context.tag, made
        return self._prepared[1]

    def note_masked(self, rank: int, masked: bool) -> None:
        """The caller has masked a rank, or taken the mask away."""
        if masked:
            self._masked_at.setdefault(rank, self.calls)
        else:
            self._masked_at.pop(rank, None)

    def late(self, ranks: set[int]) -> list[int]:
        """Those masked ranks among `ranks` that a dispatch may have left out: their streams have stopped half way."""
        masked = set(self._session.mask.nonzero().flatten().tolist()) & ranks
        return sorted(r for r in masked if self.calls and self._masked_at.get(r) != self.calls)

    def routing_of(self, handle: object) -> Routing:
        """The routing inside a handle.

        Raises:
            InvalidArgument: not a handle that a dispatch of this Buffer returned.
        """
        routing = routing_of(handle)
        if routing.owner is not self._owner:
            wanted = "the handle that dispatch of this Buffer returned"
            refuse(
                "handle",
                Described("one of another Buffer"),
                wanted,
                "One from before recover() or switch_members() counts as that. Dispatch again.",
            )
        return routing

    # ---- layout ----------------------------------------------------------------------------------------------------

    def layout(self, topk_idx: Tensor, num_experts: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Queues get_dispatch_layout's kernel; returns its four tensors."""
        device, topology = self._device, self._session.topology
        tokens, topk = topk_idx.shape
        per_rank = device.zeros(topology.num_ranks, dtype=torch.int32)
        per_node = device.zeros(topology.num_nodes, dtype=torch.int32) if topology.num_nodes > 1 else None
        per_expert = device.zeros(num_experts, dtype=torch.int32)
        in_rank = device.empty(tokens, topology.num_ranks, dtype=torch.bool)
        device.launch(
            self._launches().layout(
                topk_idx=topk_idx,
                num_tokens=tokens,
                topk=topk,
                num_experts=num_experts,
                num_tokens_per_rank=per_rank,
                num_tokens_per_node=per_node,
                num_tokens_per_expert=per_expert,
                is_token_in_rank=in_rank,
            )
        )
        return per_rank, per_node, per_expert, in_rank

    # ---- geometry --------------------------------------------------------------------------------------------------

    def _fit(self, row_bytes: int, num_sms: int) -> Any:
        """How streams are cut for rows of this size; fewer channels where the memory is small. Same on all ranks.

        Raises:
            InvalidArgument: not even one channel fits; says how many bytes would do.
        """
        if (known := self._fits.get((row_bytes, num_sms))) is not None:
            return known
        layout = self._session.plan.throughput
        geometry = _native.StreamGeometry.fit(layout.unit_bytes, self._device.channels(num_sms), row_bytes)
        if geometry.num_slots:
            self._fits[row_bytes, num_sms] = geometry
            return geometry
        sizes = range(0, 16 * row_bytes + 128, 128)
        unit = sizes[bisect_left(sizes, 1, key=lambda size: _native.StreamGeometry.make(size, 1, row_bytes).num_slots)]
        needed = layout.num_units() * unit
        refuse(
            "num_nvl_bytes",
            self._session.plan.throughput_budget,
            f"at least {needed} ({format_bytes(needed)}) for rows of {row_bytes} bytes on "
            f"{self._session.num_ranks} ranks and {self._session.topology.num_nodes} node(s)",
            "This Buffer has no memory for throughput calls: make it with num_nvl_bytes, such as 64 << 20."
            if self._session.plan.throughput_budget == 0
            else "64 << 20 suits most; Config.get_nvl_buffer_size_hint gives a comfortable size.",
        )

    def _cut(self, channels: int, row_bytes: int, rings: int) -> Any:
        """How a call's streams are cut, of which a node has `rings`. Without slots where not all channels fit.

        A row that is read while it is still in a cache never goes to memory and back, so on a CPU a small ring is
        the faster one. Rings between nodes stay large: they hold what is under way.
        """
        known = self._cuts.get((channels, row_bytes, rings))
        if known is None:
            known = self._cuts[channels, row_bytes, rings] = self._made_cut(channels, row_bytes, rings)
        return known

    def _made_cut(self, channels: int, row_bytes: int, rings: int) -> Any:
        unit = self._session.plan.throughput.unit_bytes
        if self._device.host_memory and self._session.topology.num_nodes == 1 and rings <= _CACHED_RINGS:
            small = _native.StreamGeometry.make(min(unit, _CACHED_RING_BYTES), channels, row_bytes)
            if small.num_slots >= _CACHED_RING_SLOTS:
                return small
        return _native.StreamGeometry.make(unit, channels, row_bytes)

    def _settle(self, geometry: Any, direction: str) -> None:
        """Before streams are cut in another way, everything sent in the old way must have been read."""
        self._recorded = self._recorded or self._device.capturing()
        if not self._recorded and self._geometry[direction] == geometry:
            return
        self._geometry[direction] = geometry
        self._device.launch(self._launches().settle(geometry, direction == "combine"))

    # ---- dispatch --------------------------------------------------------------------------------------------------

    def exchange_counts(
        self, shape: Any, rows: Rows, given: Layout, options: CountOptions
    ) -> tuple[Routing, tuple[Any, ...]]:
        """Queues the count exchange, which also compares what is given. Returns the routing, whose tables are filled
        when it has run, and tensors to keep alive till then."""
        device, topology = self._device, self._session.topology
        in_rank, per_expert = given.in_rank, given.per_expert
        ranks, nodes = topology.num_ranks, topology.num_nodes
        # What a kernel masks later must not change whom tokens go to: others have been told how many there are.
        taken = device.empty(*in_rank.shape, dtype=torch.bool) if self._session.shrink else in_rank
        # The handle's combine sends bf16 rows over the same channels; they may be larger than these.
        answer = _native.RowShape(2 * rows.x.shape[1], topk=shape.topk, has_weights=True)
        channels = self._fit(max(shape.bytes(), answer.bytes()), options.num_sms).num_channels
        local, known = per_expert.numel() // ranks, options.num_worst_tokens == 0
        routing = Routing(
            channels=channels,
            num_tokens=in_rank.shape[0],
            num_local_experts=local,
            topk=shape.topk,
            is_token_in_rank=taken,
            channel_prefix=device.empty(ranks, channels, dtype=torch.int32),
            node_rows=device.empty(topology.num_cells, channels, dtype=torch.int32),
            recv_tokens=device.empty(ranks, channels, dtype=torch.int32),
            recv_begin=device.empty(ranks, channels, dtype=torch.int32),
            stream_rows=device.empty(ranks, channels, dtype=torch.int32),
            reducer_tokens=device.empty(ranks, self._readers, channels, dtype=torch.int32),
            rank_prefix=device.empty(*((ranks, ranks) if nodes == 1 else (ranks,)), dtype=torch.int32),
            expert_counts=device.pinned(local, torch.int32) if known else device.empty(local, dtype=torch.int32),
            recv_total=device.pinned(1, torch.int32) if known else device.empty(1, dtype=torch.int32),
            number=device.empty(1, dtype=torch.int32),
            recv_src_idx=device.empty(0, dtype=torch.int32),
            refusal=device.pinned(_native.LAYOUT_REFUSAL_WORDS, torch.int32) if known else None,
            num_rows=options.num_worst_tokens,
            owner=self._owner,
        )
        launches = self._launches()
        findings = device.empty(launches.findings_words(per_expert.numel()), dtype=torch.int32)
        device.launch(
            launches.counts(
                shape,
                routing.tables(),
                is_token_in_rank=in_rank,
                num_tokens_per_rank=given.per_rank,
                num_tokens_per_node=given.per_node,
                num_tokens_per_expert=per_expert,
                topk_idx=given.ids,
                expert_alignment=options.expert_alignment,
                findings=findings,
                refusal=routing.refusal,
            )
        )
        return routing, (*given, findings)

    def check_refusal(self, routing: Routing) -> None:
        """Raises what the count exchange found wrong with the arguments of a rank; the host has waited for it."""
        assert routing.refusal is not None
        words = routing.refusal.tensor.tolist()
        if words[0]:
            part, source, place, right, given = (word & 0xFFFFFFFF for word in words)
            what = LayoutFault(part, place, right, given)
            raise layout_error(what, self._session.rank, source, self._session.hostnames)

    def dispatch(
        self,
        rows: Rows,
        topk_idx: Tensor | None,
        topk_weights: Tensor | None,
        shape: Any,
        routing: Routing,
        pad: bool = False,
        again: bool = False,
    ) -> Dispatched:
        """Queues the data kernel for a routing whose `num_rows` is known; `again`: no counts were exchanged for it."""
        device = self._device
        geometry = self._cut(routing.channels, shape.bytes(), self._session.topology.num_ranks)
        if geometry.num_slots == 0:
            self._fit(shape.bytes(), 2)  # a cached call with larger rows than the memory holds: refused with numbers
            raise InvalidArgument("handle: these rows need fewer channels than the handle's; raise num_nvl_bytes")
        recv_x = device.empty(routing.num_rows, rows.x.shape[1], dtype=rows.x.dtype)
        recv_scales = None
        if rows.scales is not None:
            recv_scales = device.empty(routing.num_rows, rows.scales.shape[1], dtype=rows.scales.dtype)
        recv_idx = recv_weights = None
        if topk_idx is not None:
            recv_idx = device.empty(routing.num_rows, topk_idx.shape[1], dtype=torch.int64)
        if topk_weights is not None:
            recv_weights = device.empty(routing.num_rows, topk_weights.shape[1], dtype=torch.float32)
        recv_src_idx = device.empty(routing.num_rows, dtype=torch.int32)
        if not again:  # a cached call finds the same ones again; the handle keeps its own
            routing.recv_src_idx = recv_src_idx
        self.calls += 1
        self._settle(geometry, "dispatch")
        token_stride, stride = (0, 0) if rows.scales is None else rows.scales.stride()
        device.launch(
            self._launches().dispatch(
                shape,
                geometry,
                routing.tables(),
                x=rows.x,
                scales=rows.scales,
                scale_token_stride=token_stride,
                scale_stride=stride,
                topk_idx=topk_idx,
                topk_weights=topk_weights,
                recv_x=recv_x,
                recv_scales=recv_scales,
                recv_topk_idx=recv_idx,
                recv_topk_weights=recv_weights,
                recv_src_idx=recv_src_idx,
                capacity=routing.num_rows,
                pad_tail=pad,
                identify=again,  # otherwise the others have just been told with the counts
            )
        )
        keep = (
            rows.x,
            rows.scales,
            topk_idx,
            topk_weights,
            recv_x,
            recv_scales,
            recv_idx,
            recv_weights,
            recv_src_idx,
            *routing.tensors(),
        )
        return Dispatched(recv_x, recv_scales, recv_idx, recv_weights, routing, keep)

    # ---- combine ---------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Tensor,
        topk_weights: Tensor | None,
        bias: tuple[Tensor | None, Tensor | None],
        out: Tensor | None,
        routing: Routing,
    ) -> tuple[Tensor, Tensor | None, tuple[Any, ...]]:
        """Queues the kernel; returns (combined_x, which is `out` if given, its weights or None, what to keep alive)."""
        device, topology = self._device, self._session.topology
        if topology.num_cells - 1 > _native.MAX_PARTIALS and not 0 < routing.topk <= _native.MAX_PARTIALS:
            raise NotSupported(
                f"combine over {topology.num_cells} {topology.cells_are} without topk_idx: a token "
                f"may be summed from at most {_native.MAX_PARTIALS} others. Pass topk_idx to dispatch."
            )
        hidden = x.shape[1]
        shape = _native.RowShape()
        shape.payload_bytes, shape.dtype = hidden * 2, dtype_code(x.dtype)
        if topk_weights is not None:
            shape.topk, shape.has_weights = topk_weights.shape[1], 1
        geometry = self._cut(routing.channels, shape.bytes(), topology.num_ranks * (topology.num_ranks - 1))
        if geometry.num_slots == 0:
            self._fit(shape.bytes(), 2)
            raise InvalidArgument("handle: these rows need fewer channels than the handle's; raise num_nvl_bytes")
        out = device.empty(routing.num_tokens, hidden, dtype=torch.bfloat16) if out is None else out
        out_weights = None
        if topk_weights is not None:
            out_weights = device.empty(routing.num_tokens, shape.topk, dtype=torch.float32)
        self.calls += 1
        self._settle(geometry, "combine")
        launches = self._launches()
        workspace = device.empty(-(-launches.combine_bytes(routing.channels, hidden) // 8), dtype=torch.int64)
        offset = device.arena_offset(x)
        device.launch(
            launches.combine(
                shape,
                geometry,
                routing.tables(),
                workspace=workspace,
                hidden=hidden,
                x=x,
                topk_weights=topk_weights,
                recv_src_idx=routing.recv_src_idx,
                bias0=bias[0],
                bias1=bias[1],
                out=out,
                out_weights=out_weights,
                arenas=self._session.regions.arenas,
                x_in_arena=offset is not None,
                x_offset=offset or 0,
            )
        )
        return out, out_weights, (x, topk_weights, *bias, out, out_weights, workspace, *routing.tensors())
