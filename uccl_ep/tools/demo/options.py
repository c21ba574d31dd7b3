# What a user may choose for the demo, the sizes that follow from it, and the refusals with their reasons.
# Imports neither torch nor the native module, so that `uccl-ep demo --help` answers at once.
from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path

from uccl_ep.errors import InvalidArgument

GATES = ("sigmoid", "softmax")
PROXIES = ("thread", "process")
TRANSPORTS = ("auto", "shared_memory", "tcp")
FP8_BLOCK = 128
"""Channels that share one FP8 scale: the hidden size must be a multiple of it when rows travel as FP8."""

LOSS_TOLERANCE = 1e-3
"""How far the two final losses may lie apart, in nats per byte."""


@dataclass(frozen=True)
class DemoOptions:
    """Everything that defines a run. Two runs with equal options train on the same bytes from the same weights."""

    steps: int = 60
    ranks: int = 4
    ranks_per_node: int = 2
    experts: int = 16
    topk: int = 4
    hidden: int = 256
    layers: int = 2
    heads: int = 4
    sequence: int = 128
    """Bytes of text in one sequence."""
    batch: int = 4
    """Sequences in one rank's micro-batch."""
    gate: str = "sigmoid"
    balance: float = 1e-2
    """Weight of the load-balancing term in the loss."""
    learning_rate: float = 2e-3
    fp8: bool = False
    proxy: str = "thread"
    transport: str = "tcp"
    seed: int = 1
    validation_batches: int = 4
    """Batches per rank in the validation loss."""
    kill: str = ""
    """RANK@stepN: that rank is killed in the middle of step N (from 1) and the others go on; empty: nobody."""

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    @property
    def local_experts(self) -> int:
        return self.experts // self.ranks

    @property
    def expert_width(self) -> int:
        """Inner width of a routed expert: narrow ("fine-grained"), since top-k of them serve every token."""
        return self.hidden // 2

    @property
    def tokens_per_rank(self) -> int:
        return self.batch * self.sequence

    @property
    def tokens_per_step(self) -> int:
        return self.ranks * self.tokens_per_rank

    @property
    def doom(self) -> tuple[int, int] | None:
        """(rank, step counted from 0) of --kill."""
        found = re.fullmatch(r"(\d+)@step(\d+)", self.kill)
        return (int(found[1]), int(found[2]) - 1) if found else None

    @property
    def survivors(self) -> list[int]:
        """Ranks that --kill leaves."""
        return [rank for rank in range(self.ranks) if self.doom is None or rank != self.doom[0]]

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node

    def check(self) -> None:
        """Raises InvalidArgument for the first value that cannot work."""
        for name in ("steps", "ranks", "ranks_per_node", "experts", "topk", "hidden"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1")
        if self.seed < 0:
            raise InvalidArgument(f"--seed is {self.seed}; it must be 0 or more")
        if self.experts % self.ranks:
            raise InvalidArgument(
                f"--experts is {self.experts}; it must be a multiple of --ranks ({self.ranks}), "
                f"for example {self.ranks * max(1, round(self.experts / self.ranks))}"
            )
        if self.topk > self.experts:
            raise InvalidArgument(f"--topk is {self.topk}; it must not exceed --experts ({self.experts})")
        step = FP8_BLOCK if self.fp8 else 8 * self.heads
        if self.hidden % step:
            why = "one FP8 scale covers 128 channels" if self.fp8 else f"{self.heads} attention heads"
            raise InvalidArgument(f"--hidden is {self.hidden}; it must be a multiple of {step} ({why})")
        for name, allowed in (("gate", GATES), ("proxy", PROXIES), ("transport", TRANSPORTS)):
            if getattr(self, name) not in allowed:
                raise InvalidArgument(f"--{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")

        if self.kill:
            doom = self.doom
            if doom is None or not (doom[0] < self.ranks and 0 <= doom[1] < self.steps) or self.ranks < 2:
                raise InvalidArgument(
                    f"--kill is {self.kill!r}; it must be RANK@stepN with a rank below {self.ranks} of at least 2 and "
                    f"a step from 1 to {self.steps}, for example 1@step{max(1, self.steps * 2 // 3)}"
                )

    def environment(self) -> dict[str, str]:
        """The UCCL_EP_* variables that make `uccl_ep` build the chosen world on one host."""
        return {
            "UCCL_EP_RANKS_PER_NODE": str(self.ranks_per_node),
            "UCCL_EP_TRANSPORT": self.transport,
            "UCCL_EP_PROXY": self.proxy,
        }

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> DemoOptions:
        return DemoOptions(**json.loads(path.read_text(encoding="utf-8")))
