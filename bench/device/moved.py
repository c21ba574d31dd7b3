"""Bytes that an exchange must move through memory, from its routing: what achieved bytes a second are computed with.

Counted as a copy counts: each byte read and each byte written. Ids, weights, flags and counts are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.device.shapes import Shape


@dataclass(frozen=True)
class Rows:
    """Of one rank: rows it takes in, and rows it writes once per (token, node)."""

    received: int
    staged: int
    tokens: int


def rows_of(shape: Shape, ids: Sequence[torch.Tensor]) -> list[Rows]:
    """By rank, from every rank's topk_idx."""
    local = shape.experts // shape.ranks
    received = torch.zeros(shape.ranks, dtype=torch.int64)
    staged = []
    for own in ids:
        visits = torch.zeros(own.shape[0], shape.ranks, dtype=torch.bool)
        visits.scatter_(1, own.long() // local, True)
        received += visits.sum(0)
        nodes = [
            visits[:, n * shape.ranks_per_node : (n + 1) * shape.ranks_per_node].any(1) for n in range(shape.num_nodes)
        ]
        staged.append(int(sum(int(node.sum()) for node in nodes)))
    return [Rows(int(received[r]), staged[r], ids[r].shape[0]) for r in range(shape.ranks)]


def throughput_bytes(shape: Shape, rows: Sequence[Rows]) -> tuple[int, int]:
    """(dispatch, combine) of all ranks together, on one GPU and one node: bytes read plus bytes written.

    Dispatch: the sender copies a row once per node, each receiving rank copies it out. Combine: each rank copies its
    rows into a ring; they are read again and summed into one row per token.
    """
    row = 2 * shape.hidden
    staged, received, tokens = (sum(getattr(r, name) for r in rows) for name in ("staged", "received", "tokens"))
    return 2 * row * (staged + received), row * (3 * received + tokens)
