"""What a server would do without us: gather all ranks' rows everywhere, and add up all ranks' sums.

A plugin for vLLM's CPU build, only to be compared with: an all-gather of rows and a reduce-scatter of sums over gloo.
Sums are made and rounded as Buffer.combine does, so that answers can be compared bit by bit. Each rank keeps the count
of the bytes that it sends to other nodes in a file beside the one that PLAIN_COUNTS names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

NAME = "plain_all_gather"


def register() -> None:
    """What the entry point calls."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed.device_communicators import all2all
    from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase

    class PlainManager(All2AllManagerBase):
        def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
            super().__init__(cpu_group, tcp_store_group)
            experts = get_current_vllm_config().model_config.get_num_experts()
            self.exchange = PlainExchange(cpu_group, experts)

        def dispatch(
            self, hidden_states: Any, topk_weights: Any, topk_ids: Any, is_sequence_parallel: bool, extra_tensors: Any
        ) -> Any:
            assert not extra_tensors
            return self.exchange.dispatch(hidden_states, topk_weights, topk_ids)

        def combine(self, hidden_states: Any, is_sequence_parallel: bool = False) -> Any:
            return self.exchange.combine(hidden_states)

    all2all.AgRsAll2AllManager = PlainManager


class PlainExchange:
    """As uccl_ep.drop_in.row_exchange.RowExchange, without a Buffer."""

    def __init__(self, group: Any, num_experts: int) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.local = num_experts // self.size
        self.per_node = int(os.environ.get("UCCL_EP_RANKS_PER_NODE") or self.size)
        self.counts: list[int] = []
        self.sent = 0  # bytes, to ranks of other nodes
        self.file = Path(os.environ["PLAIN_COUNTS"] + f".{self.rank}") if "PLAIN_COUNTS" in os.environ else None

    def dispatch(self, rows: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mine = torch.tensor([rows.shape[0]])
        counts = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(counts, mine, group=self.group)
        self.counts = [int(count) for count in counts]
        all_rows, weights, ids = (self._gather(t) for t in (rows, topk_weights.float(), topk_ids.long()))
        ids = ids - self.rank * self.local
        here = (ids >= 0) & (ids < self.local)
        return all_rows, weights * here, (ids * here).to(topk_ids.dtype)

    def combine(self, results: Tensor) -> Tensor:
        mine = self.counts[self.rank]
        parts = results.new_empty(mine * self.size, results.shape[1])
        distributed.all_to_all_single(parts, results.contiguous(), [mine] * self.size, self.counts, group=self.group)
        self._count({peer: count * results.shape[1] * results.element_size() for peer, count in enumerate(self.counts)})
        total = torch.zeros(mine, results.shape[1])
        for node in parts.view(self.size, mine, -1).split(self.per_node):
            inside = torch.zeros_like(total)
            for one in node:
                inside += one.float()
            total += inside.to(results.dtype).float()
        return total.to(results.dtype)

    def _gather(self, rows: Tensor) -> Tensor:
        """All ranks' rows [sum of T, ...] in rank order; each rank's travel padded to the longest."""
        padded = rows.new_zeros(max(self.counts), *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded, group=self.group)
        self._count(dict.fromkeys(range(self.size), padded.numel() * padded.element_size()))
        return torch.cat([part[:count] for part, count in zip(parts, self.counts, strict=True)])

    def _count(self, sent: dict[int, int]) -> None:
        """Bytes for each rank, those on this rank's node and itself left out."""
        self.sent += sum(n for peer, n in sent.items() if peer // self.per_node != self.rank // self.per_node)
        if self.file is not None:
            self.file.write_text(str(self.sent))
