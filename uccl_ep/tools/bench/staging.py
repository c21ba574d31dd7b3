"""What both forms of a peer need: buffers that are kept from call to call, and a sum of rows by index."""

from __future__ import annotations

import torch

_PIECE = 64  # rows: as float32 they stay in a core's cache


class Staging:
    """Row buffers by name, as large as they were ever needed; shared by all peers of a rank, who take turns.

    Our own results come from a pool (uccl_ep/device/output_pool.py): the system would zero the pages of a fresh buffer
    on every call, which takes longer than the copy. So a peer's results, too, are kept, and valid until its next call.
    """

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._kept: dict[str, torch.Tensor] = {}
        self._sums: torch.Tensor | None = None

    def rows(self, name: str, count: int) -> torch.Tensor:
        """bf16 [count, H], with whatever was in it."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = torch.empty(count, self._hidden, dtype=torch.bfloat16)
        return kept[:count]

    def sums(self, count: int) -> torch.Tensor:
        """float32 [count, H] of zeros; one at a time."""
        if self._sums is None or len(self._sums) < count:
            self._sums = torch.empty(count, self._hidden)
        return self._sums[:count].zero_()

    def picked(self, name: str, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """bf16 [n, H]: rows[index] (index int64 [n]) in the buffer of that name."""
        out = self.rows(name, index.numel())
        torch.index_select(rows, 0, index, out=out)
        return out


def add_rows(out: torch.Tensor, rows: torch.Tensor, index: torch.Tensor, weight: torch.Tensor | None) -> None:
    """out[index[i]] += weight[i] * rows[i]: out float32 [T, H], rows bf16 [n, H], index int64, weight float32 [n]."""
    for first in range(0, len(rows), _PIECE):
        piece = rows[first : first + _PIECE].float()
        if weight is not None:
            piece.mul_(weight[first : first + _PIECE].unsqueeze(1))
        out.index_add_(0, index[first : first + _PIECE], piece)
