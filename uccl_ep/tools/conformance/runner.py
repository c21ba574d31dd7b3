"""Runs checks on one rank: every rank runs the same ones in the same order, and all agree on each outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uccl_ep.errors import refuse
from uccl_ep.tools.conformance.registry import Check, Skipped
from uccl_ep.tools.conformance.world import World

PASSED, FAILED, SKIPPED = "pass", "fail", "skip"
_MAX_DETAIL = 600


@dataclass(frozen=True)
class Outcome:
    """What became of a check, over all ranks.

    Attributes: `name`, `part`, `required`, `summary` of the check; `status`: "pass", "fail" or "skip"; `detail`: the
    problems with the ranks that saw them, or the reason of a skip; `seconds`: of the slowest rank.
    """

    name: str
    part: str
    required: bool
    summary: str
    status: str
    detail: str
    seconds: float

    @classmethod
    def of(cls, check: Check, status: str, detail: str, seconds: float) -> Outcome:
        """The outcome of `check`."""
        return cls(check.name, check.part, check.required, check.summary, status, detail[:_MAX_DETAIL], seconds)

    @property
    def broken(self) -> bool:
        """Whether it decides against the module."""
        return self.required and self.status == FAILED


Told = Callable[[str, Any], None]
"""Is told ("begin", the check's name) and ("end", its Outcome) as they come."""


def is_ours(module: Any) -> bool:
    """Whether a module's Buffer is this package's, under whatever name it was imported."""
    return str(getattr(getattr(module, "Buffer", None), "__module__", "")).startswith("uccl_ep")


def run_checks(world: World, checks: Sequence[Check], told: Told = lambda event, value: None) -> list[Outcome]:
    """Runs `checks` on this rank and returns their outcomes, the same on all ranks. Collective."""
    outcomes = []
    for check in checks:
        told("begin", check.name)
        outcome, interrupted = _run_one(world, check)
        outcomes.append(outcome)
        told("end", outcome)
        if interrupted:
            _forget_buffers(world)
    _forget_buffers(world)
    return outcomes


def _run_one(world: World, check: Check) -> tuple[Outcome, bool]:
    """The outcome, and whether a rank left the check in the middle."""
    world.check_name, world.problems = check.name, []
    began, skipped, interrupted = time.monotonic(), "", False
    try:
        if check.collective or world.rank == 0:
            check.body(world)
    except Skipped as reason:
        skipped = str(reason)
    except Exception as error:  # whatever a library raises is a finding
        interrupted = True
        world.problems.insert(0, f"{type(error).__name__}: {' '.join(str(error).split())}")
    found = world.gather((tuple(world.problems), skipped, interrupted, time.monotonic() - began))
    seconds = max(entry[3] for entry in found)
    lines: dict[str, list[int]] = {}
    for rank, problems in enumerate(_causes(found)):
        for problem in problems:
            lines.setdefault(problem, []).append(rank)
    if lines:
        detail = "; ".join(f"{_ranks(ranks, world.size)}{text}" for text, ranks in lines.items())
        return Outcome.of(check, FAILED, detail, seconds), any(entry[2] for entry in found)
    reasons = [entry[1] for entry in found if entry[1]]
    if reasons:
        return Outcome.of(check, SKIPPED, reasons[0], seconds), False
    return Outcome.of(check, PASSED, "", seconds), False


def _causes(found: Sequence[Any]) -> list[tuple[str, ...]]:
    """Each rank's problems; where a rank failed by itself, the others' lost and late peers are left out."""
    consequences = [entry[2] and entry[0][0].startswith(("PeerLost", "PeerTimeout")) for entry in found]
    own = any(entry[2] and not consequence for entry, consequence in zip(found, consequences, strict=True))
    return [() if own and consequence else entry[0] for entry, consequence in zip(found, consequences, strict=True)]


def _ranks(ranks: list[int], size: int) -> str:
    if len(ranks) == size:
        return ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: "


def _forget_buffers(world: World) -> None:
    """All ranks are here, and none of them uses its buffers any more."""
    world.gather(None)
    try:
        world.drop_buffers()
    except Exception:  # of a buffer that is broken already; what broke it has been told
        pass
    world.gather(None)


def check_nodes(module: Any, nodes: int) -> None:
    """Refuses more than one node for a module that cannot be told of them.

    Raises:
        InvalidArgument: `nodes` is above 1 and the module is not ours.
    """
    if nodes > 1 and not is_ours(module):
        why = f"1 for {module.__name__}, which is not uccl_ep and counts nodes its own way"
        refuse("--nodes", nodes, why, "Start it with more ranks on several hosts instead.")
