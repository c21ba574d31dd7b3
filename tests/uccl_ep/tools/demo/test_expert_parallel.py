"""The exchange through a buffer, on ranks as threads, against the one-process exchange: values and gradients bit by
bit; and for one rank against plain experts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.uccl_ep.tools.demo.plain_buffer import PlainBuffer
from tests.uccl_ep.tools.demo.worlds import World, on_ranks, small
from uccl_ep.tools.demo.expert_parallel import ExpertParallel
from uccl_ep.tools.demo.model import Experts, Routed
from uccl_ep.tools.demo.one_process import OneProcess
from uccl_ep.tools.demo.options import DemoOptions


def routed(options: DemoOptions, rank: int, tokens: int) -> tuple[Routed, Tensor]:
    """A micro-batch and a weight for each number of its result."""
    generator = torch.Generator().manual_seed(100 + rank)
    rows = torch.randn(tokens, options.hidden, generator=generator).bfloat16().requires_grad_()
    idx = torch.stack([torch.randperm(options.experts, generator=generator)[: options.topk] for _ in range(tokens)])
    weights = torch.rand(tokens, options.topk, generator=generator).requires_grad_()
    return Routed(rows, idx, weights), torch.randn(tokens, options.hidden, generator=generator).bfloat16()


def gradients(leaves: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


def test_ranks_without_tokens_and_without_rows_take_part() -> None:
    """Rank 1 has no tokens, and nobody's tokens go to the experts of rank 2."""
    options = small(ranks=3, experts=9, topk=2, ranks_per_node=2)
    world = World(options)

    def rank_work(rank: int) -> tuple[Tensor, Tensor]:
        tokens = [4, 0, 6][rank]
        rows = torch.full((tokens, options.hidden), 0.5 + rank, dtype=torch.bfloat16).requires_grad_()
        idx = torch.tensor([[0, 4]]).repeat(tokens, 1)
        batch = Routed(rows, idx, torch.full((tokens, 2), 0.5))
        experts = Experts(options, 0, rank * options.local_experts, options.local_experts)
        (result,) = ExpertParallel(world.buffer(rank), options.experts, fp8=False)([batch], experts)
        result.float().sum().backward()
        assert rows.grad is not None
        return result.detach(), rows.grad

    found = on_ranks(3, rank_work)
    assert [len(result) for result, _ in found] == [4, 0, 6]
    for rank in (0, 2):
        result, grad = found[rank]
        assert result.abs().sum() > 0 and grad.abs().sum() > 0
        assert torch.equal(result, result[:1].expand_as(result))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("ranks", "ranks_per_node"), [(1, 1), (2, 1), (4, 2), (4, 4), (4, 1)])
def test_ranks_equal_one_process_to_the_bit(ranks: int, ranks_per_node: int, fp8: bool) -> None:
    options = small(ranks=ranks, ranks_per_node=ranks_per_node, fp8=fp8)
    world = World(options)

    def rank_work(rank: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        batch, probe = routed(options, rank, tokens=5 + 3 * rank)
        experts = Experts(options, 0, rank * options.local_experts, options.local_experts)
        buffer = world.buffer(rank)
        (result,) = ExpertParallel(buffer, options.experts, fp8)([batch], experts)
        result.backward(probe)
        assert buffer.cached_dispatches == 1
        return result.detach(), gradients([batch.rows, batch.topk_weights]), gradients(list(experts.parameters()))

    ours = on_ranks(ranks, rank_work)

    pairs = [routed(options, rank, tokens=5 + 3 * rank) for rank in range(ranks)]
    experts = Experts(options, 0, 0, options.experts)
    results = OneProcess(options)([batch for batch, _ in pairs], experts)
    torch.autograd.backward(results, [probe for _, probe in pairs])
    for rank, (batch, _) in enumerate(pairs):
        result, inputs, parameters = ours[rank]
        assert torch.equal(result, results[rank])
        for left, right in zip(inputs, gradients([batch.rows, batch.topk_weights]), strict=True):
            assert torch.equal(left, right)
        begin, end = rank * options.local_experts, (rank + 1) * options.local_experts
        theirs = gradients([*list(experts.up)[begin:end], *list(experts.down)[begin:end]])
        for left, right in zip(parameters, theirs, strict=True):
            assert torch.equal(left, right)


def test_one_rank_is_the_plain_layer() -> None:
    options = small(ranks=1, ranks_per_node=1)
    batch, _ = routed(options, 0, 9)
    experts = Experts(options, 0, 0, options.experts)
    buffer = PlainBuffer(0, 1, 1, lambda item: [item])
    (result,) = ExpertParallel(buffer, options.experts, fp8=False)([batch], experts)
    assert torch.equal(result, experts(*batch, 0, options.experts))


def test_a_lost_row_is_seen() -> None:
    """The comparison above can fail: a buffer that drops the last row's weight changes the result."""

    class Careless(PlainBuffer):
        def dispatch(self, x: object, **rest: object) -> object:  # type: ignore[override]
            received = super().dispatch(x, **rest)  # type: ignore[arg-type]
            received[2][-1] = 0.0
            return received

    options = small(ranks=1, ranks_per_node=1)
    batch, _ = routed(options, 0, 9)
    experts = Experts(options, 0, 0, options.experts)
    (result,) = ExpertParallel(Careless(0, 1, 1, lambda item: [item]), options.experts, False)([batch], experts)
    expected = experts(*batch, 0, options.experts)
    assert torch.equal(result[:-1], expected[:-1])
    assert not torch.equal(result[-1], expected[-1])
