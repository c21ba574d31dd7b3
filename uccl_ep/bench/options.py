"""What is measured: shapes of an exchange, ranks, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep.errors import refuse

MODES = ("throughput", "low-latency")


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
    rounds: int = 12  # timed pairs, after two that are not
    transport: str = "auto"
    seed: int = 0

    def check(self) -> None:
        """Refuses what cannot run.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        if self.mode not in MODES:
            refuse("--mode", self.mode, " or ".join(MODES))
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
