"""A plan as lines of text, for the standard error of a job: one a decision, and warnings that stand out in a log."""

from __future__ import annotations

from collections.abc import Iterator

from uccl_ep.plan.record import Caution, GroupPlan, RankPlan
from uccl_ep.sizes import format_bytes

_MARK = "!!!"


def lines_of(plan: GroupPlan) -> Iterator[str]:
    """Ranks, memory, warnings; not the decisions of the whole group, which a session shows by itself."""
    for choice in plan.choices:
        for over in choice.over:
            yield f"not taken for {choice.what}: {over}"
    for rank in plan.ranks:
        yield from _rank(rank)
    if len(plan.ranks) < plan.num_ranks:
        yield f"ranks {len(plan.ranks)} to {plan.num_ranks - 1} are not shown: uccl-ep plan --json shows all"
    if plan.bill:
        items = ", ".join(f"{line.name} {format_bytes(line.num_bytes)}" for line in plan.bill if not line.reserved)
        yield f"memory of a rank {format_bytes(plan.total_bytes)}: {items}"
    for caution in plan.cautions:
        yield from warning(caution)


def _rank(rank: RankPlan) -> Iterator[str]:
    parts = [rank.where, *(f"{choice.what} {choice.chosen}" for choice in rank.choices[1:])]
    yield f"plan of rank {rank.rank} on {rank.host}, node {rank.node}: {'; '.join(parts)}"
    for choice in rank.choices[1:]:
        over = f" (rather than {'; '.join(choice.over)})" if choice.over else ""
        yield f"  rank {rank.rank}, {choice.what}: {choice.why}{over}"


def warning(caution: Caution) -> Iterator[str]:
    """Two lines that are found by eye and by grep."""
    yield f"{_MARK} WARNING, {caution.kind}: {caution.text}"
    yield f"{_MARK}   fix: {caution.fix}"
