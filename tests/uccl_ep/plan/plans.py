"""Jobs on recorded machines, for the tests of plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.uccl_ep.fabric.machines import Recorded
from uccl_ep.cost_model.expected_bytes import Load
from uccl_ep.group.handshake import Hello
from uccl_ep.layout.arrangement import Whole, arrange
from uccl_ep.plan.fill import Agreed
from uccl_ep.plan.record import GroupPlan
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import Job
from uccl_ep.tools.plan.make import make_plan

Change = Callable[[Hello], Hello]
SMALL = Load(tokens=16, hidden=512, experts=64, topk=4)


def job(*machines: Recorded, ranks: int = 16, per_host: int = 8, load: Load = SMALL, **rest: Any) -> Job:
    """A job whose hosts are these machines; the last stands for all further ones. Experts are padded."""
    load = replace(load, experts=-(-load.experts // max(1, ranks)) * max(1, ranks))
    trees = tuple(machine.tree() for machine in machines)
    return Job(ranks, per_host, load, trees=trees, **rest)


def plan(*machines: Recorded, settings: Settings | None = None, **rest: Any) -> GroupPlan:
    """Its plan."""
    return make_plan(job(*machines, **rest), settings or Settings())


def kinds(made: GroupPlan) -> list[str]:
    """Of its cautions."""
    return [caution.kind for caution in made.cautions]


def agree(told: list[Hello], settings: Settings) -> Agreed:
    """What ranks that said this would agree on."""
    return Agreed(told, settings, arrange(settings, told, Whole([i.host_id for i in told]), 0))


def with_portrait(**values: Any) -> Change:
    """Changes what a rank says of itself."""
    return lambda i: replace(i, self_description={**i.self_description, **values})
