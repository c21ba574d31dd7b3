"""What a conformance run can be told. Loads no torch, so that help answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep.errors import one_of, refuse

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class ConformanceOptions:
    """One run.

    Attributes:
        module: name of the module that is checked, as `import` takes it.
        ranks: processes to start.
        nodes: nodes that they are spread over (UCCL_EP_RANKS_PER_NODE); other libraries than ours take 1.
        device: where tensors are; "auto" is a GPU if torch sees one.
        only: a check runs if its name has one of these in it; empty: all run.
        seed: chooses tokens and routes.
        check_seconds: how long one check may take before its ranks are ended.
    """

    module: str = "deep_ep"
    ranks: int = 4
    nodes: int = 1
    device: str = "auto"
    only: tuple[str, ...] = ()
    seed: int = 1
    check_seconds: float = 300.0

    def check(self) -> None:
        """Refuses what cannot run.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        if not 2 <= self.ranks <= 64:
            refuse("--ranks", self.ranks, "2 to 64")
        if not 1 <= self.nodes <= self.ranks:
            refuse("--nodes", self.nodes, f"1 to {self.ranks}, the number of ranks")
        if self.device not in DEVICES:
            refuse("--device", self.device, one_of(DEVICES))
        if self.check_seconds <= 0:
            refuse("check_seconds", self.check_seconds, "a number of seconds above 0")

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a node; the last one may have fewer."""
        return -(-self.ranks // self.nodes)
