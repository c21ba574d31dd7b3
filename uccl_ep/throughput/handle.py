"""What a throughput dispatch found out: the tables that later kernels read, and DeepEP's handle around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import HostWords
from uccl_ep.errors import Described, NotSupported, refuse

Tensor = torch.Tensor


@dataclass
class Routing:
    """What a dispatch found out and everything after it needs (tables of kernels/throughput/common.h).

    C is `channels`. All int32 on the Buffer's device.
    """

    channels: int
    num_tokens: int
    num_local_experts: int
    topk: int  # of the dispatched ids, 0 without
    is_token_in_rank: Tensor  # bool [num_tokens, N]
    channel_prefix: Tensor  # [N, C] inclusive
    node_rows: Tensor  # [nodes, C]
    recv_tokens: Tensor  # [N, C]
    recv_begin: Tensor  # [N, C]
    stream_rows: Tensor  # [N, C]
    reducer_tokens: Tensor  # [N, readers, C]
    rank_prefix: Tensor  # [N, N] on one node, else [N]
    expert_counts: Tensor | HostWords  # [L]
    recv_total: Tensor | HostWords  # [1]
    number: Tensor  # [1] of the count exchange; ranks compare it in each call with this routing
    recv_src_idx: Tensor  # [rows]
    refusal: HostWords | None  # LayoutRefusal of kernels/throughput/check.h, where the host waits for counts
    num_rows: int  # rows of the outputs (worst case when there was no CPU sync)
    owner: object  # of the Buffer that made it
    _held: tuple[Tensor | HostWords, ...] = ()  # for recv_src_idx as it was then
    _tables: _native.RoutingTables | None = None

    def tensors(self) -> tuple[Tensor | HostWords, ...]:
        """Everything that queued kernels read."""
        if not self._held or self._held[0] is not self.recv_src_idx:
            held = [v for v in vars(self).values() if isinstance(v, (Tensor, HostWords))]
            self._held = (self.recv_src_idx, *[v for v in held if v is not self.recv_src_idx])
        return self._held

    def tables(self) -> _native.RoutingTables:
        """Likewise, as launches are told of them; recv_src_idx is none of these."""
        if self._tables is None:
            self._tables = self._made_tables()
        return self._tables

    def _made_tables(self) -> _native.RoutingTables:
        return _native.routing_tables(
            channels=self.channels,
            num_tokens=self.num_tokens,
            num_local_experts=self.num_local_experts,
            is_token_in_rank=self.is_token_in_rank,
            channel_prefix=self.channel_prefix,
            node_rows=self.node_rows,
            recv_tokens=self.recv_tokens,
            recv_begin=self.recv_begin,
            stream_rows=self.stream_rows,
            reducer_tokens=self.reducer_tokens,
            rank_prefix=self.rank_prefix,
            expert_counts=self.expert_counts,
            recv_total=self.recv_total,
            number=self.number,
        )

    def counted(self) -> list[int]:
        """Rows for each local expert, once the host may read them; `num_rows` is set too."""
        assert isinstance(self.recv_total, HostWords) and isinstance(self.expert_counts, HostWords)
        self.num_rows = int(self.recv_total.tensor)
        counts: list[int] = self.expert_counts.tensor.tolist()
        return counts


class ThroughputHandle(tuple[Tensor, ...]):
    """DeepEP's handle tuple (6 tensors on one node, 10 on several) with the routing that combine uses.

    The tensors are worked out when they are first looked at: combine needs none of them, and in an asynchronous call
    the tables that they come from are filled only when its event has happened. Autograd's
    `save_for_backward(*handle)` gives a plain tuple of them back, so one of them carries the routing (`routing_of`).
    """

    routing: Routing
    overflow: Tensor | None = None  # with overflow_policy="drop": as `Admitted` of bounded.py says
    recv_totals: Tensor | None = None
    kept_topk_idx: Tensor | None = None
    _num_nodes: int
    _parts: tuple[Tensor, ...] | None

    @classmethod
    def make(cls, routing: Routing, num_nodes: int) -> ThroughputHandle:
        """The handle of a dispatch that has been queued."""
        handle = cls()
        handle.routing, handle._num_nodes, handle._parts = routing, num_nodes, None
        return handle

    def _tensors(self) -> tuple[Tensor, ...]:
        if self._parts is None:
            self._parts = _one_node(self.routing) if self._num_nodes == 1 else _several_nodes(self.routing)
            # On the storage, which every view and saved copy of the tensor shares; the routing does not hold this one.
            setattr(self._parts[_PLACES[len(self)].carrier].untyped_storage(), _CARRIED, self.routing)
        return self._parts

    def __len__(self) -> int:
        return 6 if self._num_nodes == 1 else 10

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors())

    def __getitem__(self, index: Any) -> Any:
        return self._tensors()[index]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other  # tuple has one of its own

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ThroughputHandle({len(self)} tensors, {self.routing.num_rows} rows)"

    def __reduce__(self) -> Any:
        raise NotSupported("a dispatch handle names live buffers of this process; it cannot be pickled or copied")


class _Places(NamedTuple):
    """Where a handle's tuple has the tensor that carries the routing, and one that is the routing's own."""

    carrier: int
    channel_prefix: int


_CARRIED = "uccl_ep_routing"
_PLACES = {6: _Places(2, 1), 10: _Places(5, 2)}


def routing_of(handle: object) -> Routing:
    """The routing of a dispatch's handle, also of one that has become a plain tuple or list of its tensors.

    Raises:
        InvalidArgument: it is something else, or its tensors are copies or in another order.
    """
    if isinstance(handle, ThroughputHandle):
        return handle.routing
    if isinstance(handle, (tuple, list)) and len(handle) in _PLACES and all(isinstance(t, Tensor) for t in handle):
        places = _PLACES[len(handle)]
        carrier, prefix = handle[places.carrier], handle[places.channel_prefix]
        routing = getattr(carrier.untyped_storage(), _CARRIED, None)
        if isinstance(routing, Routing) and prefix.data_ptr() == routing.channel_prefix.data_ptr():
            return routing
        hint = "Pass its tensors on as they came, in their order; a copy of them has lost what the call needs."
        refuse("handle", Described(f"{len(handle)} tensors"), "the handle that dispatch returned, or its tensors", hint)
    if isinstance(handle, (tuple, list)) and len(handle) == 5 and isinstance(handle[-1], int):
        hint = "Pass it to low_latency_combine."
        refuse("handle", Described("one of low_latency_dispatch"), "the handle that dispatch returned", hint)
    refuse("handle", handle, "the handle that dispatch returned", "Pass it on as it came.")


def _send_order(routing: Routing) -> Tensor:
    """int32 [T, N]: index of a token among those sent to a rank, -1 where it is not sent."""
    sent = routing.is_token_in_rank.int()
    return torch.where(routing.is_token_in_rank, sent.cumsum(0, dtype=torch.int32) - 1, -1).int()


def _recv_channel_prefix(routing: Routing) -> Tensor:
    return routing.recv_begin - routing.recv_begin[:, :1]


def _one_node(r: Routing) -> tuple[Tensor, ...]:
    return (
        r.rank_prefix,
        r.channel_prefix,
        _recv_channel_prefix(r),
        r.recv_src_idx,
        r.is_token_in_rank,
        _send_order(r),
    )


def _several_nodes(r: Routing) -> tuple[Tensor, ...]:
    recv_rank_prefix = r.rank_prefix
    hosted = r.stream_rows.cumsum(1, dtype=torch.int32)
    source = torch.bucketize(
        torch.arange(r.recv_src_idx.numel(), dtype=torch.int32, device=recv_rank_prefix.device),
        recv_rank_prefix,
        right=True,
        out_int32=True,
    )
    return (
        r.is_token_in_rank,
        r.node_rows.cumsum(1, dtype=torch.int32),
        r.channel_prefix,
        hosted,
        hosted[:, -1].cumsum(0, dtype=torch.int32),
        _recv_channel_prefix(r),
        recv_rank_prefix,
        torch.stack([source, r.recv_src_idx], 1).contiguous().view(torch.uint8),  # [n, 8]: source rank, token
        _send_order(r),
        r.reducer_tokens,
    )
