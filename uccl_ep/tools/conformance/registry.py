"""A check: a small function with a docstring, the part of DeepEP's contract that it is about, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uccl_ep.tools.conformance.world import World

PARTS = {
    "A.1": "names of the module",
    "A.2": "Buffer's constructor",
    "A.3": "Buffer's helpers",
    "A.4": "Config",
    "A.5": "throughput: layout, dispatch, combine",
    "A.6": "low latency: dispatch, combine, masks",
    "A.7": "events",
    "B": "numerics",
    "C.1": "V2: ElasticBuffer's constructor and helpers",
    "C.2": "V2: dispatch",
    "C.3": "V2: combine",
    "C.4": "V2: EPHandle",
    "C.6": "V2.5: redundant experts and buckets",
    "D": "what integrators rely on",
}
"""The parts that checks cite, in words."""

Body = Callable[["World"], None]


class Skipped(Exception):
    """Raised by a check that cannot say anything here; its text is the reason."""


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        name: unique; the function's name.
        part: a key of `PARTS`.
        required: False where the contract leaves the behaviour open: told, but it decides nothing.
        collective: all ranks run it together; else rank 0 alone, since one rank sees all there is to see.
        body: raises, or notes problems in the World.
    """

    name: str
    part: str
    required: bool
    collective: bool
    body: Body

    @property
    def summary(self) -> str:
        """The first line of the docstring, without the parts that it cites."""
        return re.sub(r"\s*Parts? [A-D](\.\d)?\b.*$", "", (self.body.__doc__ or "").strip().splitlines()[0])


CHECKS: list[Check] = []
"""Every check, in the order of definition; uccl_ep.tools.conformance.catalogue loads them all."""


def check(part: str, required: bool = True, collective: bool = True) -> Callable[[Body], Body]:
    """Registers the function below it as a check of a contract's part."""
    if part not in PARTS:
        raise ValueError(f"part {part!r}: one of {', '.join(PARTS)}")

    def register(body: Body) -> Body:
        name = body.__name__
        if not (body.__doc__ or "").strip():
            raise ValueError(f"{name}: a check says in its docstring what must hold")
        if name in (existing.name for existing in CHECKS):
            raise ValueError(f"{name}: there is a check of this name already")
        CHECKS.append(Check(name, part, required, collective, body))
        return body

    return register
