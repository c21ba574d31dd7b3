"""A rank's side of --kill: the step is done again without the dead, and equals one process that drops the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import distributed

from tests.end_to_end.world import World, as_threads
from tests.uccl_ep.tools.demo.worlds import small, text
from uccl_ep import Buffer, ThreadGroup
from uccl_ep.tools.demo.one_process import OneProcess
from uccl_ep.tools.demo.survive import READY_TO_DIE, GradientGroup, MortalExchange, StoreGroup, SurvivingTrainer
from uccl_ep.tools.demo.trainer import Trainer

VICTIM, KILLED_IN = 1, 2


def test_store_group_gathers_and_gradients_add_up() -> None:
    store = distributed.HashStore()
    found: dict[int, Any] = {}

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        mine = StoreGroup(store, rank, 3)
        assert (mine.rank(), mine.size()) == (rank, 3)
        found[rank] = [mine.all_gather_object(b"%d %d" % (rank, i)) for i in range(3)]
        gradients = GradientGroup(store, rank)
        for life, members in enumerate(([0, 1, 2], [0, 2])):
            if rank in members:
                gradients.meet(life, members)
                values = torch.tensor([1.0 + rank, 10.0], dtype=torch.float64)
                gradients.sum(values)
                assert values.tolist() == [sum(1.0 + m for m in members), 10.0 * len(members)]

    as_threads(World(3), body)
    assert found == {rank: [[b"%d %d" % (r, i) for r in range(3)] for i in range(3)] for rank in range(3)}


class Killed(Exception):
    """In the place of a kill."""


class DyingStore:
    """Kills who says that it is ready to die: its buffer then leaves, which is the end of a rank that is a thread."""

    def set(self, key: str, value: bytes) -> None:
        assert key == READY_TO_DIE
        raise Killed


@pytest.mark.mostly_slow
@pytest.mark.parametrize("fp8", [False, True])
def test_survivors_train_on_as_one_process_that_drops_the_same(fp8: bool) -> None:
    options = small(steps=4, ranks=3, ranks_per_node=2, experts=9, fp8=fp8, kill=f"{VICTIM}@step{KILLED_IN}")
    corpus, store = text(), distributed.HashStore()
    exchange = OneProcess(options)
    single = Trainer(options, corpus, range(3), exchange, lambda values: None)
    wanted = []
    for step in range(options.steps):
        if step == KILLED_IN - 1:
            single.go_on_with(options.survivors)
            exchange.alive = options.survivors
        wanted.append(single.step(step))
    wanted.append(single.validate())

    def body(group: ThreadGroup) -> Any:
        rank = group.rank()
        buffer = Buffer(group, 4 << 20, explicitly_destroy=True)
        gradients = GradientGroup(store, rank)
        gradients.meet(0, range(3))
        mortal = MortalExchange(buffer, options, DyingStore())
        trainer = SurvivingTrainer(Trainer(options, corpus, [rank], mortal, gradients.sum), mortal, gradients, buffer)
        found = []
        try:
            for step in range(options.steps):
                found.append(trainer.step(step))
            found.append(trainer.validate())
            (told,) = trainer.interruptions
            assert (told["step"], told["lost"]) == (KILLED_IN, [VICTIM])
            assert f"rank {VICTIM} " in told["error"] and told["resumed_at"] > 0 < told["recover_s"]
        except Killed:
            assert (rank, len(found)) == (VICTIM, KILLED_IN - 1)
        buffer.destroy()
        return found

    results = as_threads(World(3, 2, "tcp"), body)
    for rank in options.survivors:
        assert results[rank] == wanted
    assert results[VICTIM] == wanted[: KILLED_IN - 1]
    assert threading.active_count() < 50
