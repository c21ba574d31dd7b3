"""The model's parts: experts against a loop, causality, the gate, weights that depend on names alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.uccl_ep.tools.demo.worlds import small
from uccl_ep.tools.demo.model import Block, Dense, Experts, fresh, losses, swiglu
from uccl_ep.tools.demo.one_process import OneProcess


def test_experts_equal_a_loop_over_rows_and_choices() -> None:
    options = small()
    experts = Experts(options, 0, 0, 8)
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(23, 128, generator=generator).bfloat16()
    idx = torch.stack([torch.randperm(4, generator=generator)[:3] for _ in range(23)])
    idx[::3, 1] = -1
    idx[7] = -1
    weights = torch.rand(23, 3, generator=generator)
    result = experts(rows, idx, weights, 2, 6)
    expected = torch.zeros(23, 128)
    for i in range(23):
        for k in range(3):
            if idx[i, k] >= 0:
                e = 2 + int(idx[i, k])
                expected[i] += weights[i, k] * swiglu(rows[i].float(), experts.up[e], experts.down[e])
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-2)
    assert result[7].abs().max() == 0


def test_experts_take_no_rows_and_rows_for_nobody() -> None:
    experts = Experts(small(), 0, 0, 8)
    for count in (0, 3):
        rows = torch.ones(count, 128, dtype=torch.bfloat16)
        result = experts(rows, torch.full((count, 3), -1), torch.zeros(count, 3), 0, 8)
        assert result.shape == (count, 128)
        assert result.float().abs().sum() == 0


def test_weights_depend_on_name_and_seed_alone() -> None:
    alone, among = Experts(small(), 1, 5, 1), Experts(small(), 1, 4, 4)
    assert torch.equal(alone.up[0], among.up[1])
    assert torch.equal(alone.down[0], among.down[1])
    assert not torch.equal(among.up[0], among.up[1])
    assert not torch.equal(fresh("a", (4, 4), 4, small()), fresh("a", (4, 4), 4, small(seed=2)))


def test_attention_sees_no_later_byte() -> None:
    block = Block(small(), 0)
    x = torch.randn(1, 16, 128, generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[0, 9:] += 1.0
    before, after = block.attend(x), block.attend(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_gate_names_distinct_experts_and_weights_add_to_one(gate: str) -> None:
    block = Block(small(gate=gate), 0)
    x = torch.randn(2, 16, 128, generator=torch.Generator().manual_seed(1))
    routed, shared, balance = block.route(x)
    assert routed.topk_idx.shape == routed.topk_weights.shape == (32, 3)
    assert all(len(set(row)) == 3 for row in routed.topk_idx.tolist())
    torch.testing.assert_close(routed.topk_weights.sum(1), torch.ones(32))
    assert shared.shape == (32, 128)
    assert 0.5 < balance.item() < 8.0


def test_balancing_term_is_one_for_an_even_gate_and_higher_for_a_lopsided_one() -> None:
    block = Block(small(topk=1), 0)
    x = torch.randn(4, 16, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        usual = block.route(x)[2].item()
        block.gate *= 0.0
        even = block.route(x)[2].item()
        block.experts_norm.fill_(1.0)
        block.gate[:, 0] = 4.0 * torch.sign(x.mean((0, 1)))
        lopsided = block.route(x)[2].item()
    assert even == pytest.approx(1.0, abs=1e-5)
    assert lopsided > max(usual, 1.0)


def test_replicas_share_weights_but_not_gradients() -> None:
    dense = Dense(small())
    other = dense.replica()
    other.head.sum().backward()
    assert dense.head.grad is None and other.head.grad is not None
    with torch.no_grad():
        dense.head += 1.0
    assert torch.equal(dense.head, other.head)


def test_untrained_loss_is_near_that_of_a_guess_and_includes_the_balancing_term() -> None:
    options = small(ranks=1, ranks_per_node=1, balance=0.5)
    dense = Dense(options)
    experts = [Experts(options, layer, 0, 8) for layer in range(options.layers)]
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))
    (loss,) = losses([dense], experts, OneProcess(options), [(tokens, tokens.roll(-1, 1))])
    guess = float(functional.cross_entropy(torch.zeros(1, 256), torch.zeros(1, dtype=torch.long)))
    assert guess * 0.7 < loss.cross_entropy.item() < guess * 1.6
    # Two layers, each about 1 when the gate is fresh.
    assert 0.8 < (loss.objective - loss.cross_entropy).item() < 1.6
