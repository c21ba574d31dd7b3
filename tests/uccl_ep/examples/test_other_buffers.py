"""uccl_ep.examples.other_buffers with plain experts on ranks that are threads: values and gradients of one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uccl_ep.examples.test_expert_parallel import (
    BF16,
    EXPERTS,
    HIDDEN,
    RANKS,
    TOKENS,
    Experts,
    inputs,
    matrices,
    relative,
)
from uccl_ep import run_ranks
from uccl_ep.examples.other_buffers import Name, make_layers


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("used", [EXPERTS, 2])  # with 2, only rank 0 has experts that get rows
@pytest.mark.parametrize("name", ["elastic", "ep", "hybrid"])
def test_examples_other_buffers_compute_what_one_process_does(variables: Any, name: Name, used: int) -> None:
    variables(RANKS_PER_NODE=2)
    share = EXPERTS // RANKS

    def body(group: Any) -> None:
        rank = group.rank()
        buffer, layer_of = make_layers(name, group, HIDDEN, EXPERTS, max(TOKENS))
        mine = slice(rank * share, (rank + 1) * share)
        local, everybody = Experts(matrices()[mine]), Experts(matrices())
        layer = layer_of(local, buffer, EXPERTS)
        for _ in range(2):
            x, idx, weights = inputs(rank, used)
            x.requires_grad_(), weights.requires_grad_()
            got = layer(x, idx, weights)
            got.square().sum().backward()
            for other in (r for r in range(RANKS) if TOKENS[r]):
                x2, idx2, weights2 = inputs(other, used)
                x2.requires_grad_(), weights2.requires_grad_()
                wanted = everybody(x2, idx2, weights2)
                wanted.square().sum().backward()
                if other == rank:
                    assert x.grad is not None and weights.grad is not None
                    assert x2.grad is not None and weights2.grad is not None
                    assert relative(got, wanted) <= BF16
                    assert relative(x.grad, x2.grad) <= BF16 and relative(weights.grad, weights2.grad) <= BF16
            assert everybody.matrices.grad is not None
            of_experts = local.matrices.grad if local.matrices.grad is not None else 0 * local.matrices.detach()
            assert relative(of_experts, everybody.matrices.grad[mine]) <= BF16  # of both steps together
        group.barrier()
        if hasattr(buffer, "destroy"):
            buffer.destroy()

    run_ranks(RANKS, body)
