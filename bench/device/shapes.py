"""What dispatch and combine are measured with: DeepSeek-V3's shapes, or small ones for a CPU or a quick look."""

from __future__ import annotations

from dataclasses import dataclass

LOW_LATENCY, THROUGHPUT = "low_latency", "throughput"


@dataclass(frozen=True)
class Shape:
    """One measurement: ranks are threads of this process; `tokens` are each rank's."""

    mode: str
    ranks: int
    ranks_per_node: int
    tokens: int
    hidden: int = 7168
    topk: int = 8
    experts: int = 256
    rounds: int = 20

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks play."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.mode}, {counted(self.ranks, 'rank')}, {counted(self.num_nodes, 'node')}, {self.tokens} tokens"


def counted(number: int, what: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _alone(mode: str, quick: bool) -> Shape:
    tokens = 128 if mode == LOW_LATENCY else 512 if quick else 4096
    return Shape(mode, 1, 1, tokens, experts=32, rounds=5 if quick else 30)


def all_shapes(mode: str, gpu: bool, quick: bool) -> list[Shape]:
    """One rank with as many experts as it has among eight, which never waits; then 2, 4 and 8 ranks, each on one node
    (rows in device memory) and on two (rows through proxies, in host memory)."""
    found = [_alone(mode, quick)] if gpu else []
    for ranks in (2, 4) if quick else (2, 4, 8):
        for nodes in (1, 2):
            if not gpu:
                shape = Shape(mode, ranks, ranks // nodes, 16, 256, 4, 16, 3)
            elif mode == LOW_LATENCY:
                shape = Shape(mode, ranks, ranks // nodes, 128, rounds=5 if quick else 30)
            else:  # rows of several nodes cross host memory twice: fewer rounds
                tokens = 512 if quick else 4096
                shape = Shape(mode, ranks, ranks // nodes, tokens, rounds=3 if quick else 10 if nodes == 1 else 5)
            found.append(shape)
    return found
