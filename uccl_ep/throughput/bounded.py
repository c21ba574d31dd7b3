"""A bounded receive that drops: which rows fit is agreed before any is sent, and those that do not fit stay at home.

A row of counts goes from every rank to every rank, by the same dispatch, and each source then knows how many of its
rows still fit at each rank: ranks are served in ascending order, a rank's tokens in theirs. Ids of a choice that does
not fit become -1, and everything after that is a dispatch like any other.

With enable_shrink each rank may mask others, and then counts fewer rows than its peers do. There each rank says in a
second exchange how many rows it takes from whom, and every source goes by that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from uccl_ep import _native, checks
from uccl_ep.device.protocol import EventHandle
from uccl_ep.errors import refuse
from uccl_ep.events import EventOverlap
from uccl_ep.sizes import round_up
from uccl_ep.throughput.calls import ThroughputCalls
from uccl_ep.throughput.handle import ThroughputHandle

Tensor = torch.Tensor
POLICIES = ("trap", "drop")


class Admitted(NamedTuple):
    """What all ranks agree on, and this rank's part of it."""

    topk_idx: Tensor  # int64 [T, K]: -1 also where the row did not fit
    recv_totals: Tensor  # int32 [N]: rows that each rank was to receive
    overflow: Tensor  # bool, no dimensions: some rank was to receive more than it takes


def bounded(
    calls: ThroughputCalls, policy: Any, num_worst_tokens: int, cached: bool, shrink: bool
) -> ThroughputCalls | DroppingCalls:
    """The calls by whose dispatch a policy is kept; `cached`: with a handle; `shrink`: ranks may be masked.

    Raises:
        InvalidArgument: no policy, or dropping without a capacity or with a handle.
    """
    if policy not in POLICIES:
        refuse("overflow_policy", policy, '"trap" or "drop"')
    if policy == "trap":
        return calls
    if cached:
        refuse("overflow_policy", policy, '"trap" with a handle: it leaves out what its own dispatch left out')
    if not num_worst_tokens:
        refuse("overflow_policy", policy, '"trap" without num_worst_tokens')
    return DroppingCalls(calls, shrink)


def exchange(calls: ThroughputCalls, row: Tensor) -> Tensor:
    """Every rank's int32 [n] by rank, [N, n], without the host; zeros of a rank that is masked."""
    ranks, width = calls.num_ranks, min(calls.num_ranks, _native.MAX_TOPK)
    sends = -(-ranks // width)  # rows, each to `width` ranks, so that every rank gets one from each
    ids = torch.arange(sends * width, device=row.device).view(sends, width)
    ids = torch.where(ids < ranks, ids, -1)
    words = torch.nn.functional.pad(row, (0, round_up(len(row) + 1, 4) - len(row)), value=calls.rank)
    per_rank, per_node, per_expert, in_rank, _ = calls.get_dispatch_layout(ids, ranks, None, False, False)
    weights = torch.zeros(ids.shape, dtype=torch.float32, device=row.device)
    rows = words.expand(sends, -1).contiguous().view(torch.bfloat16)
    received, local_ids = calls.dispatch(
        rows, None, per_rank, per_node, in_rank, per_expert, ids, weights, 1, ranks, None, None, False, False
    )[:2]  # fmt: skip
    assert local_ids is not None
    told = received.view(torch.int32)
    # Rows come in the order of their ranks, but for those of masked ranks, which are missing or empty.
    sources = torch.where((local_ids >= 0).any(1), told[:, -1], ranks).long()
    by_rank: Tensor = told.new_zeros(ranks + 1, len(row)).index_copy(0, sources, told[:, : len(row)])
    return by_rank[:ranks]


def admit(calls: ThroughputCalls, topk_idx: Tensor, num_experts: int, capacity: int, shrink: bool) -> Admitted:
    """Which choices of this rank fit, when each rank takes `capacity` rows (its own number). Collective."""
    ranks, rank = calls.num_ranks, calls.rank
    per_rank, _, _, in_rank, _ = calls.get_dispatch_layout(topk_idx, num_experts, None, False, False)
    told = exchange(calls, torch.cat([per_rank, per_rank.new_full((1,), capacity)]))
    counts, capacities = told[:, :ranks], told[:, ranks]
    room = (capacities - counts.cumsum(0) + counts).clamp(min=0)  # [source, receiver], of which only one matters below
    totals, taken = counts.sum(0, dtype=torch.int32), capacities
    if shrink:
        mine = torch.cat([room[:, rank], totals[rank : rank + 1], capacities[rank : rank + 1]])
        told = exchange(calls, mine.int())
        room, totals, taken = told[:, :ranks].T, told[:, ranks].contiguous(), told[:, ranks + 1]
    fits = in_rank & (in_rank.cumsum(0) <= room[rank])
    choices = torch.where(topk_idx >= 0, topk_idx, 0) // (num_experts // ranks)
    kept = (topk_idx >= 0) & fits.gather(1, choices.clamp(max=ranks - 1).long())
    return Admitted(torch.where(kept, topk_idx, -1).long(), totals, (totals > taken).any())


class DroppingCalls:
    """The dispatch of `calls` with overflow_policy="drop"."""

    def __init__(self, calls: ThroughputCalls, shrink: bool) -> None:
        self._calls, self._shrink = calls, shrink

    def dispatch(
        self,
        x: Any,
        handle: None,
        num_tokens_per_rank: Any,
        num_tokens_per_rdma_rank: Any,
        is_token_in_rank: Any,
        num_tokens_per_expert: Any,
        topk_idx: Any,
        topk_weights: Any,
        expert_alignment: int,
        num_worst_tokens: int,
        config: Any,
        previous_event: Any,
        async_finish: bool,
        allocate_on_comm_stream: bool,
    ) -> tuple[Any, Tensor | None, Tensor | None, list[int] | None, ThroughputHandle | None, EventOverlap[EventHandle]]:
        """As ThroughputCalls.dispatch; what is given as layout is checked, and counted anew for what fits."""
        calls = self._calls
        given = num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert
        num_experts = calls.check_before(x, given, (topk_idx, topk_weights), num_worst_tokens)
        event = checks.event("previous_event", previous_event)
        if event is not None:
            event.current_stream_wait()
        admitted = admit(calls, topk_idx, num_experts, num_worst_tokens, self._shrink)
        kept = admitted.topk_idx
        per_rank, per_node, per_expert, in_rank, _ = calls.get_dispatch_layout(kept, num_experts, None, False, False)
        results = calls.dispatch(
            x, None, per_rank, per_node, in_rank, per_expert, kept, topk_weights, expert_alignment, num_worst_tokens,
            config, None if event is None else EventOverlap(EventHandle()), async_finish, allocate_on_comm_stream,
        )  # fmt: skip
        made = results[4]
        assert isinstance(made, ThroughputHandle)
        made.overflow, made.recv_totals, made.kept_topk_idx = admitted.overflow, admitted.recv_totals, kept
        return results
