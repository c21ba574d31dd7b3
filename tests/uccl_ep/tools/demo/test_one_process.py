"""The yardstick's rounding rule on numbers worked by hand, and its gradients against plain autograd."""

from __future__ import annotations

import pytest
import torch

from tests.uccl_ep.tools.demo.worlds import small
from uccl_ep.tools.demo.model import Experts, Routed
from uccl_ep.tools.demo.one_process import OneProcess, add_by_node


def add(values: list[float], ranks_per_node: int) -> float:
    """One token, one channel, a part from every rank."""
    options = small(ranks=len(values), ranks_per_node=ranks_per_node)
    parts = [torch.tensor([[value]], dtype=torch.bfloat16) for value in values]
    return float(add_by_node(parts, [torch.tensor([0])] * len(values), 1, options))


def test_sums_are_rounded_per_node_and_then_in_total() -> None:
    # bf16 has 8 significant bits: above 256 only even numbers. 257 ties to 256, 259 ties to 260.
    assert add([256, 1, 1, 1], ranks_per_node=2) == 258.0  # (257 -> 256) + 2
    assert add([256, 1, 1, 1], ranks_per_node=4) == 260.0  # 259 -> 260
    assert add([256, 1, 1, 1], ranks_per_node=1) == 260.0  # nothing to round inside a node
    assert add([256, 1, 256, 1], ranks_per_node=2) == 512.0
    assert add([256, 1, 256, 1], ranks_per_node=4) == 512.0  # 514 ties to 512


def test_an_uneven_last_node_is_a_node() -> None:
    assert add([1, 1, 256, 1, 1], ranks_per_node=2) == 260.0  # 2 + (257 -> 256) + 1 = 259 -> 260


def test_tokens_of_a_rank_land_on_their_own_rows() -> None:
    options = small(ranks=2, ranks_per_node=1)
    parts = [torch.tensor([[1.0], [2.0]]).bfloat16(), torch.tensor([[10.0]]).bfloat16()]
    result = add_by_node(parts, [torch.tensor([0, 3]), torch.tensor([3])], 5, options)
    assert result.flatten().tolist() == [1.0, 0.0, 0.0, 12.0, 0.0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_values_and_gradients_are_those_of_a_plain_layer_up_to_bf16(ranks: int) -> None:
    options = small(ranks=ranks, ranks_per_node=min(2, ranks))
    experts = Experts(options, 0, 0, options.experts)
    generator = torch.Generator().manual_seed(ranks)
    batches, leaves = [], []
    for count in range(3, 3 + ranks):  # uneven micro-batches
        rows = torch.randn(count, 128, generator=generator).bfloat16().requires_grad_()
        weights = torch.rand(count, 3, generator=generator).requires_grad_()
        idx = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(count)])
        batches.append(Routed(rows, idx, weights))
        leaves += [rows, weights]
    results = OneProcess(options)(batches, experts)
    assert [len(result) for result in results] == [len(batch.rows) for batch in batches]
    probe = [torch.randn(result.shape, generator=generator) for result in results]
    ours = torch.autograd.grad(sum((r.float() * p).sum() for r, p in zip(results, probe, strict=True)), leaves)
    plain = [experts(*batch, 0, options.experts) for batch in batches]
    theirs = torch.autograd.grad(sum((r.float() * p).sum() for r, p in zip(plain, probe, strict=True)), leaves)
    for left, right in zip([*results, *ours], [*plain, *theirs], strict=True):
        left, right = left.detach().float(), right.detach().float()
        assert float((left - right).norm() / right.norm()) < 0.02
