"""Training: ranks as threads give the losses of one process to the bit; gradients are averaged, not summed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.tools.demo.worlds import World, on_ranks, small, text
from uccl_ep.tools.demo.one_process import OneProcess
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.trainer import Trainer


def one_process(options: DemoOptions) -> Trainer:
    return Trainer(options, text(), range(options.ranks), OneProcess(options), lambda values: None)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fp8": True},
        {"gate": "softmax", "topk": 1},
        {"ranks": 3, "experts": 9, "ranks_per_node": 2},
        {"ranks": 1, "ranks_per_node": 1, "topk": 8},
    ],
)
def test_ranks_train_as_one_process_does(changes: dict[str, Any]) -> None:
    options = small(**changes)
    world = World(options)

    def rank_work(rank: int) -> list[float]:
        trainer = world.trainer(rank, world.buffer(rank), text())
        return [*(trainer.step(step) for step in range(options.steps)), trainer.validate()]

    ours = on_ranks(options.ranks, rank_work)
    alone = one_process(options)
    theirs = [*(alone.step(step) for step in range(options.steps)), alone.validate()]
    for losses in ours:
        assert losses == theirs
    assert theirs[options.steps - 1] < theirs[0]


def test_gradient_is_that_of_the_mean_loss() -> None:
    """Four ranks with the same text have the gradient of one: neither dense nor expert gradients grow with ranks."""

    def gradients(ranks: int) -> list[torch.Tensor]:
        options = small(ranks=ranks, ranks_per_node=ranks)
        trainer = one_process(options)
        trainer.ranks = [0] * ranks  # every rank draws rank 0's batch
        kept: list[torch.Tensor] = []

        def keep(*_: object) -> None:
            kept.extend(p.grad.clone() for p in [*trainer.dense.parameters(), *trainer.expert_parameters])

        trainer.optimizer.step = keep  # type: ignore[method-assign,assignment]
        trainer.step(0)
        return kept

    one, four = gradients(1), gradients(4)
    assert len(one) == len(four)
    for left, right in zip(one, four, strict=True):
        # Rows are rounded to bf16 at other places when experts are shared out: 8 significant bits.
        assert float((left - right).norm()) <= 0.03 * float(right.norm()) + 1e-7


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    trainer = one_process(small(steps=100, learning_rate=1.0))
    rates = [trainer.learning_rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) > 0.95
    assert 0.1 <= rates[-1] < 0.11
    assert rates.index(max(rates)) in range(8, 12)


def test_seeds_change_the_run_and_nothing_else_does() -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = one_process(small(seed=seed))
        runs.append([trainer.step(step) for step in range(2)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_validation_reads_other_text_and_leaves_no_gradient() -> None:
    trainer = one_process(small())
    first = trainer.validate()
    assert trainer.validate() == first
    assert all(p.grad is None for p in trainer.dense.parameters())
    trainer.corpus = text(seed=4)
    assert trainer.validate() != first
