"""What a server's MoE layer asks of its communication: rows to the ranks of their experts, and the weighted sums back.

Servers whose experts take (rows, weights, ids) of any number of rows, and which know of no handle, layout or -1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uccl_ep.buffer import Buffer
from uccl_ep.errors import Described, refuse
from uccl_ep.throughput.handle import ThroughputHandle


class RowExchange:
    """A Buffer in throughput mode that all layers of a model share, since they take turns. Making one is collective.

    Args:
        group: as Buffer has it.
        hidden: channels of a row.
        num_experts: E of a layer, on all ranks; expert e lies on rank e // (E / N).

    Raises:
        InvalidArgument: E is no multiple of N, and what Buffer raises.
    """

    def __init__(self, group: Any, hidden: int, num_experts: int) -> None:
        ranks = group.size()
        if num_experts % ranks:
            refuse("num_experts", num_experts, f"a multiple of the {ranks} ranks that share the experts")
        self.num_experts = num_experts
        self.buffer = make_buffer(group, hidden * 2)
        self._handle: ThroughputHandle | None = None
        self._received = 0

    def dispatch(self, rows: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sends each row once to every rank that holds one of its experts. Collective, also for a rank without rows.

        Args:
            rows: bf16 [T, H]. topk_weights: [T, K]. topk_ids: int64 or int32 [T, K], of the layer's E experts.

        Returns:
            (rows bf16 [n, H], weights float32 [n, K], local ids [n, K] in topk_ids' dtype). Where an expert is on
            another rank, the id is 0 and the weight is 0, so that kernels need not know of absent experts. n is 1 or
            more: a rank that received nothing gets one row of zeros, because kernels need not take none either.
        """
        ids = topk_ids.long().contiguous()
        received, local, weights, self._handle = send_rows(
            self.buffer, rows.contiguous(), ids, topk_weights, self.num_experts
        )
        self._received = received.shape[0]
        if not self._received:
            received, weights = received.new_zeros(1, rows.shape[1]), weights.new_zeros(1, ids.shape[1])
            local = local.new_zeros(1, ids.shape[1])
        return received, weights, local.clamp(min=0).to(topk_ids.dtype)

    def combine(self, results: Tensor, out: Tensor | None = None) -> Tensor:
        """Adds up what the experts of all ranks made of this rank's rows; the order of roundings is Buffer.combine's.

        Args:
            results: bf16 [n, H], one weighted sum for each row that the last dispatch returned.
            out: contiguous bf16 [T, H] to write into; None makes one.

        Raises:
            InvalidArgument: there was no dispatch since the last combine.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            refuse("combine", Described("one without a dispatch"), "called once after each dispatch")
        return self.buffer.combine(results[: self._received].contiguous(), handle, out=out)[0]


def make_buffer(group: Any, row_bytes: int) -> Buffer:
    """A Buffer for rows of so many bytes; collective."""
    configs = Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())
    return Buffer(group, max(one.get_nvl_buffer_size_hint(row_bytes, group.size()) for one in configs))


def send_rows(
    buffer: Buffer, x: Any, ids: Tensor, weights: Tensor, num_experts: int, num_worst_tokens: int = 0
) -> tuple[Any, Tensor, Tensor, ThroughputHandle]:
    """A layout and a dispatch; collective.

    Args:
        x: bf16 [T, H], or what else Buffer.dispatch takes. ids: contiguous int64 [T, K]. weights: [T, K] of any dtype.
        num_worst_tokens: as Buffer.dispatch has it.

    Returns:
        (rows, local ids [n, K], weights float32 [n, K], the handle for combine).
    """
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, num_experts)
    received, local, received_weights, _, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=ids,
        topk_weights=weights.float().contiguous(),
        num_worst_tokens=num_worst_tokens,
    )
    assert local is not None and received_weights is not None and handle is not None  # as topk_idx was given
    return received, local, received_weights, handle
