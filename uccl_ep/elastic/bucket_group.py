"""What the ranks of one group of a BucketBuffer do: gather shards, and add them by ascending rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from uccl_ep.buffer import Buffer
from uccl_ep.config import Config
from uccl_ep.elastic.carrier import Carrier

Tensor = torch.Tensor
_RING_BYTES = 32 << 20  # of each group's Buffer


class BucketContext:
    """A group of a BucketBuffer: its ranks, and how bytes get from one to another."""

    def __init__(self, group: Any, device: str | None) -> None:
        self.group = group
        self.buffer = Buffer(group, _RING_BYTES, device=device)
        self.rank, self.num_ranks = self.buffer.rank, self.buffer.group_size
        self._carrier = Carrier(self.buffer)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of the largest node)."""
        topology = self.buffer._session.topology
        return topology.num_nodes, max(topology.sizes)

    def gather(self, shards: Sequence[Tensor], wholes: Sequence[Tensor], num_sms: int) -> None:
        """Every rank's shards, by rank, into tensors of N times their bytes."""
        others = [rank for rank in range(self.num_ranks) if rank != self.rank]
        to = torch.ones(1, self.num_ranks, dtype=torch.bool)
        to[0, self.rank] = False
        parts = [shard.view(-1).view(torch.uint8).unsqueeze(0) for shard in shards]
        came = self._carry(parts, to, num_sms)
        column = 0
        for part, whole in zip(parts, wholes, strict=True):
            size = part.shape[1]
            rows = whole.view(-1).view(torch.uint8).view(self.num_ranks, size)
            if rows[self.rank].data_ptr() != part.data_ptr():
                rows[self.rank] = part[0]
            for row, rank in enumerate(others):
                rows[rank] = came[row, column : column + size]
            column += size

    def reduce(self, parts: Sequence[Tensor], dtype: torch.dtype, scale: float, num_sms: int) -> Tensor:
        """The sum over ranks, in ascending order, of this rank's row: parts are f32 [N, n] each.

        Returns:
            f32 [sum of n].
        """
        whole = torch.cat([part.to(dtype) for part in parts], 1)
        to = torch.eye(self.num_ranks, dtype=torch.bool)
        to[self.rank, self.rank] = False
        came = self._carry([whole.view(torch.uint8)], to, num_sms).contiguous().view(dtype)
        rows = iter(came)
        total: Tensor | None = None
        for rank in range(self.num_ranks):
            row = (whole[rank] if rank == self.rank else next(rows)).float()
            total = row.clone() if total is None else total.add_(row)
        assert total is not None
        return total.mul_(scale)

    def _carry(self, parts: Sequence[Tensor], to: Tensor, num_sms: int) -> Tensor:
        expected = [int(rank != self.rank) for rank in range(self.num_ranks)]
        return self._carrier.carry("srcs", parts, to, expected, Config(num_sms))
