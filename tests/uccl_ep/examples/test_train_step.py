"""uccl_ep.examples.train_step: what is averaged and what counts as equal; tests/integrations runs it with models."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from uccl_ep.examples import train_step
from uccl_ep.examples.train_step import EQUAL, Gradients, average_dense, batch_of, difference


class Group:
    def size(self) -> int:
        return 4


def test_examples_train_step_averages_dense_gradients_and_divides_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = torch.nn.Module()
    model.dense, model.experts, model.idle = (torch.nn.Linear(2, 1, bias=False) for _ in range(3))
    model.dense.weight.grad, model.experts.weight.grad = torch.ones(1, 2), torch.ones(1, 2)

    def all_reduce(gradient: torch.Tensor, group: Any) -> None:
        gradient.add_(11)  # what the other ranks have

    monkeypatch.setattr(train_step.distributed, "all_reduce", all_reduce)
    average_dense(model, cast(Any, [model.experts, model.idle]), Group())
    assert model.dense.weight.grad.tolist() == [[3.0, 3.0]]  # (1 + 11) / 4
    assert model.experts.weight.grad.tolist() == [[0.25, 0.25]]
    assert model.idle.weight.grad.tolist() == [[0.0, 0.0]]  # its experts got no row


def test_examples_train_step_equal_means_dense_and_experts() -> None:
    assert Gradients(EQUAL, EQUAL, 1.0, (0.0, 0.0)).equal
    assert not Gradients(EQUAL * 1.01, 0.0, 0.0, (0.0, 0.0)).equal
    assert not Gradients(0.0, EQUAL * 1.01, 0.0, (0.0, 0.0)).equal
    assert Gradients(EQUAL * 1.5, 0.0, 0.0, (0.0, 0.0), 2 * EQUAL).equal
    assert difference(torch.tensor([1.0, -3.0]), torch.tensor([1.0, -4.0])) == 0.25


def test_examples_train_step_ranks_have_batches_of_their_own() -> None:
    assert torch.equal(batch_of(1), batch_of(1)) and not torch.equal(batch_of(0), batch_of(1))
