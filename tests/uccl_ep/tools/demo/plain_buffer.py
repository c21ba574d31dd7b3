"""A plain-torch stand-in for uccl_ep.Buffer with ranks as threads: the contract's order and rounding in the plainest
way (Python loops over tokens), written apart from uccl_ep/tools/demo/one_process.py so that each checks the other."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

WAIT_S = 30.0


class Board:
    """Where threads that play ranks leave an object each and read everyone's."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)
        self.slots: list[Any] = [None] * size

    def gather(self, rank: int, item: Any) -> list[Any]:
        self.slots[rank] = item
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()  # nobody writes the next round before everybody has read this one
        return found


def pick(parts: list[Tensor], rows: list[tuple[int, int]]) -> Tensor:
    """Rows (source rank, token) of the sources' tensors; none is ordinary."""
    return torch.stack([parts[s][t] for s, t in rows]) if rows else parts[0][:0].clone()


class PlainBuffer:
    """One rank's buffer. `gather(item)` returns every rank's item, in rank order."""

    def __init__(self, rank: int, size: int, ranks_per_node: int, gather: Any) -> None:
        self.rank, self.size, self.ranks_per_node, self.gather = rank, size, ranks_per_node, gather
        self.rows_sent = [0] * size
        self.bytes_sent = [0] * size
        self.cached_dispatches = 0

    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int) -> Any:
        owner = topk_idx // (num_experts // self.size)
        in_rank = torch.stack([(owner == rank).any(1) for rank in range(self.size)], dim=1)
        per_expert = torch.bincount(topk_idx.flatten(), minlength=num_experts).int()
        return in_rank.sum(0).int(), None, per_expert, in_rank, None

    def dispatch(self, x: Any, handle: Any = None, topk_idx: Any = None, topk_weights: Any = None, **rest: Any) -> Any:
        if handle is not None:
            assert topk_idx is None and topk_weights is None
            self.cached_dispatches += 1
            parts = [tensors[0] for tensors in self.gather((x,))]
            return pick(parts, handle["rows"]), None, None, None, None, None
        in_rank = rest["is_token_in_rank"]
        per_rank = len(rest["num_tokens_per_expert"]) // self.size
        if isinstance(x, tuple):
            x = (x[0].view(torch.uint8), x[1])  # moved as bytes, as a library would
        sources = self.gather((x, topk_idx, topk_weights, in_rank))
        rows = [(s, t) for s in range(self.size) for t in sources[s][3][:, self.rank].nonzero().flatten().tolist()]
        for peer in range(self.size):
            count = int(in_rank[:, peer].sum())
            self.rows_sent[peer] += count
            self.bytes_sent[peer] += count * (x[0] if isinstance(x, tuple) else x)[:1].nbytes
        idx = pick([source[1] for source in sources], rows) - self.rank * per_rank
        mine = (idx >= 0) & (idx < per_rank)
        weights = pick([source[2] for source in sources], rows)
        if isinstance(x, tuple):
            data, scales = (pick([source[0][i] for source in sources], rows) for i in (0, 1))
            received: Any = (data.view(torch.float8_e4m3fn), scales)
        else:
            received = pick([source[0] for source in sources], rows)
        handle = {"rows": rows, "tokens": len(topk_idx)}
        return received, torch.where(mine, idx, -1), torch.where(mine, weights, 0.0), [], handle, None

    def combine(self, x: Tensor, handle: Any, topk_weights: Tensor | None = None) -> Any:
        assert x.dtype == torch.bfloat16 and len(x) == len(handle["rows"])
        parts = self.gather((handle["rows"], x, topk_weights))
        combined = torch.zeros(handle["tokens"], x.shape[1], dtype=torch.bfloat16)
        weights = None if topk_weights is None else torch.zeros(handle["tokens"], topk_weights.shape[1])
        found: dict[int, dict[int, list[Tensor]]] = {}
        for rank, (sources, rows, sent_weights) in enumerate(parts):
            for i, (source, token) in enumerate(sources):
                if source == self.rank:
                    found.setdefault(token, {}).setdefault(rank // self.ranks_per_node, []).append(rows[i])
                    if weights is not None:
                        weights[token] += sent_weights[i]
        for token, nodes in found.items():
            total = torch.zeros(x.shape[1])
            for node in sorted(nodes):
                inside = torch.zeros(x.shape[1])
                for row in nodes[node]:
                    inside += row.float()
                total += inside.bfloat16().float()
            combined[token] = total.bfloat16()
        return combined, weights, None

    def stats(self) -> dict[str, Any]:
        peers = []
        for peer in range(self.size):
            local = peer // self.ranks_per_node == self.rank // self.ranks_per_node
            peers.append({
                "rank": peer, "node_local": local, "rows_sent": self.rows_sent[peer],
                "bytes_sent": self.bytes_sent[peer], "rows_received": 0, "bytes_received": 0,
                "wait_ns": 1_000_000 * (peer + 1), "via": "load/store" if local else "tcp",
            })  # fmt: skip
        away = sum(p["bytes_sent"] for p in peers if not p["node_local"])
        return {"rank": self.rank, "peers": peers, "proxy": {"commands": 7, "writes": 5, "write_bytes": away}}

    def destroy(self) -> None:
        pass
