"""EPHandle: what an elastic dispatch found out, under V2's field names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from uccl_ep.refused import refusal

Tensor = torch.Tensor


@dataclass(eq=False)
class EPHandle:
    """Of one dispatch; pass it to combine, or to a cached dispatch, on the same buffer.

    n received tokens (all that could come when the host was not told how many), K top-k, N ranks, L local experts.

    Attributes:
        do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: as the dispatch was called.
        topk_idx: int64 [T, K], this rank's own; reading it raises AssertionError when it was changed in place since.
        num_recv_tokens: n. num_expanded_tokens: rows of an expanded result, with padding; else n.
        num_recv_tokens_per_expert_list: rows per local expert, rounded up to the alignment; [] without CPU sync.
        psum_num_recv_tokens_per_scaleup_rank: int32 [N], inclusive sums of tokens by source; the last is the true n.
        psum_num_recv_tokens_per_expert: int32 [L]. Not expanded: inclusive sums of rounded counts. Expanded: where an
            expert's rows end, without its padding.
        num_unaligned_recv_tokens_per_expert: int32 [L].
        recv_src_metadata: int32 [n, K + 2]: source rank * M + token, the row here, then each k's expanded row or -1.
        recv_topk_idx: int64 [n, K], local experts or -1; ours, also in a cached call.
        overflow, num_expanded_rows_needed: of dispatch_expanded_into: whether rows did not fit recv_x_out and were left
            out (bool, no dimensions), and how many it needs (int64, likewise), on the device; else None. Ours.
        overflow, recv_totals: of a dispatch with overflow_policy="drop", on the device: whether any rank was to receive
            more tokens than it takes, and int32 [N] how many each was, the same on all ranks. Ours.
        dst_buffer_slot_idx, token_metadata_at_forward, channel_linked_list, cached_recv_src_metadata_before_sort: of
            upstream's kernels; None here, where rows have no slots of their own.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    sent_topk_idx: Tensor = field(repr=False)  # topk_idx, unchecked
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list[int]
    psum_num_recv_tokens_per_scaleup_rank: Tensor
    psum_num_recv_tokens_per_expert: Tensor
    num_unaligned_recv_tokens_per_expert: Tensor
    recv_src_metadata: Tensor
    recv_topk_idx: Tensor
    routing: Any = field(repr=False)  # the throughput handle that combine and cached dispatches use
    overflow: Tensor | None = None
    num_expanded_rows_needed: Tensor | None = None
    recv_totals: Tensor | None = None
    dst_buffer_slot_idx: None = None
    token_metadata_at_forward: None = None
    channel_linked_list: None = None
    cached_recv_src_metadata_before_sort: None = None

    def __post_init__(self) -> None:
        self._version = None if self.sent_topk_idx.is_inference() else self.sent_topk_idx._version

    @property
    def topk_idx(self) -> Tensor:
        """The ids that were dispatched (see Attributes)."""
        if self._version is not None and self.sent_topk_idx._version != self._version:
            # Not an `assert`: V2.5's contract must hold under `python -O` too.
            raise AssertionError("topk_idx was modified in place while its EPHandle is in use: pass dispatch a copy")
        return self.sent_topk_idx

    @property
    def expanded_rows(self) -> Tensor:
        """int32 [n, K]: the row of each (token, k) in an expanded result, -1 where the expert is elsewhere."""
        return self.recv_src_metadata[:, 2:]

    deterministic_sort = refusal("EPHandle.deterministic_sort", "rows come in order already")
