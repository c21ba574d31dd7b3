"""What is measured: shapes of an exchange, ranks, peers, and how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

from uccl_ep.errors import Described, one_of, refuse
from uccl_ep.layout.combine_form import FORMS

MODES = ("throughput", "low-latency")
PEERS = ("gloo", "openmpi")
SHAPES = ("small", "v3")
OUTPUTS = ("shared", "private")
MOST_LOW_LATENCY_TOKENS = 128


@dataclass(frozen=True)
class BenchOptions:
    """One measurement. Defaults are a small form of DeepSeek-V3's shapes that two cores finish in seconds."""

    mode: str = "throughput"
    ranks: int = 4
    ranks_per_node: int = 2
    tokens: int = 512  # of each rank
    hidden: int = 2048
    topk: int = 8
    experts: int = 64
    rounds: int = 12  # timed, at most: a round has every side once
    budget_s: float = 60.0  # of timed rounds: after it, the round that runs is the last; three are always done
    transport: str = "auto"
    peers: tuple[str, ...] = PEERS
    outputs: str = OUTPUTS[0]  # where our experts write: memory that the node's ranks read in place, or torch's
    combine: str = "auto"  # the form of ours in low latency, as UCCL_EP_LOW_LATENCY_COMBINE says it
    seed: int = 0

    def shaped(self, shape: str) -> BenchOptions:
        """This measurement in DeepSeek-V3's shapes ("v3": 4,096 or 128 tokens x 7168, top-8 of 256), or as it is.

        Raises:
            InvalidArgument: a shape that there is not.
        """
        if shape not in SHAPES:
            refuse("--shape", shape, one_of(SHAPES))
        if shape == "small":
            return self
        tokens = MOST_LOW_LATENCY_TOKENS if self.mode == "low-latency" else 4096
        return replace(self, tokens=tokens, hidden=7168, topk=8, experts=256)

    def check(self) -> None:
        """Refuses what cannot run.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        if self.mode not in MODES:
            refuse("--mode", self.mode, one_of(MODES))
        if not 2 <= self.ranks <= 64:
            refuse("--ranks", self.ranks, "2 to 64")
        if not 1 <= self.ranks_per_node <= self.ranks:
            refuse("--ranks-per-node", self.ranks_per_node, f"1 to --ranks ({self.ranks})")
        if self.experts % self.ranks:
            refuse("--experts", self.experts, f"a multiple of --ranks ({self.ranks})")
        if not 1 <= self.topk <= min(32, self.experts):
            refuse("--topk", self.topk, "1 to 32, and not above --experts")
        if self.hidden < 128 or self.hidden % 128:
            refuse("--hidden", self.hidden, "a multiple of 128")
        for name, value in (("--tokens", self.tokens), ("--rounds", self.rounds)):
            if value < 1:
                refuse(name, value, "1 or more")
        if self.outputs not in OUTPUTS:
            refuse("--outputs", self.outputs, one_of(OUTPUTS))
        if self.combine not in FORMS:
            refuse("--combine", self.combine, one_of(FORMS))
        if self.budget_s <= 0:
            refuse("--seconds", self.budget_s, "more than 0")
        if not self.peers or any(peer not in PEERS for peer in self.peers):
            refuse("--peer", Described(", ".join(self.peers) or "nothing"), "one or more of " + ", ".join(PEERS))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: bf16."""
        return 2 * self.hidden

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks are spread over."""
        return -(-self.ranks // self.ranks_per_node)
