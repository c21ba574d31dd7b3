"""The plan of a group that is starting, from what its ranks have just said of themselves; printed by its first rank.

With UCCL_EP_EXPLAIN=1 all of it; without, only what nobody should have to ask for: fallbacks, mismatches, shared NICs.
Nothing here may fail a start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from uccl_ep.fabric.choice import explain
from uccl_ep.layout.plan import MemoryBill
from uccl_ep.plan import cautions
from uccl_ep.plan.fill import Agreed, fill
from uccl_ep.plan.lines import lines_of, warning
from uccl_ep.plan.record import GroupPlan

_AT_START = "at the start"
_MOST_RANKS = 256  # that are described when all is explained
_MOST_LOOKED_AT = 16  # ranks whose NICs are looked at when nothing is: those of the first host
_said: set[str] = set()


def plan_of(agreed: Agreed, bill: MemoryBill, most_ranks: int = _MOST_RANKS) -> GroupPlan:
    """The plan that a group has just agreed on, with its cautions.

    Args:
        bill: of one rank.
    """
    return cautions.find_cautions(fill(agreed, _AT_START, bill, most_ranks), agreed)


def _decisions(agreed: Agreed, device: str) -> list[tuple[str, str]]:
    """(choice, why) of the whole group, and of the first rank's network."""
    return [
        (f"device {device}", f"{agreed.topology.num_ranks} ranks on {agreed.topology.num_nodes} node(s)"),
        (f"{agreed.topology.num_nodes} node(s)", agreed.arrangement.nodes_reason),
        (f"transport {agreed.fabric.family}", agreed.fabric.whole_reason),
        (f"rows in {agreed.placement.where} memory", agreed.placement.reason),
        *agreed.fabric.notes,
    ]


def show_start(agreed: Agreed, bill: Callable[[], MemoryBill], device: str, stream: TextIO | None = None) -> None:
    """Prints what the settings ask for. Never raises: the start does not depend on it.

    Args:
        agreed: its `fabric` is the choice of the first rank, which prints.
        bill: asked for that rank's memory where all is explained.
        device: where the first rank's kernels run, for people.
    """
    out = stream or sys.stderr
    try:
        if agreed.settings.explain:
            explain(_decisions(agreed, device), out)
            lines = [f"uccl-ep: {line}\n" for line in lines_of(plan_of(agreed, bill()))]
            out.write("".join(lines))  # at once, so that lines of other processes do not come in between
            return
        for caution in cautions.find_loud(fill(agreed, _AT_START, None, _MOST_LOOKED_AT), agreed):
            text = "".join(f"uccl-ep: {line}\n" for line in warning(caution))
            if text not in _said:
                _said.add(text)  # a process that makes many Buffers says the same once
                out.write(text)
    except Exception as error:
        out.write(f"uccl-ep: the plan cannot be shown: {type(error).__name__}: {error}\n")
