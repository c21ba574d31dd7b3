"""Rows as servers exchange them: each rank gets its own experts' ids, and sums are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.uccl_ep.ranks import same
from uccl_ep import InvalidArgument, ThreadGroup, run_ranks
from uccl_ep.drop_in.row_exchange import RowExchange

HIDDEN, EXPERTS, TOPK = 64, 8, 3
TOKENS = (5, 0, 1, 7)  # a rank that has none takes part all the same


def scales() -> Tensor:
    """What each expert multiplies a row by: powers of two, so that no product is rounded."""
    return torch.tensor([1.0, 2.0, 4.0, 0.5, 8.0, 0.25, 16.0, 0.125])


def experts(rows: Tensor, weights: Tensor, ids: Tensor, mine: Tensor) -> Tensor:
    """A kernel that counts every id, as vLLM's on CPUs does."""
    assert rows.shape[0] >= 1 and int(ids.min()) >= 0 and int(ids.max()) < len(mine)
    return (rows.float() * (weights * mine[ids.long()]).sum(1, keepdim=True)).to(torch.bfloat16)


def drawn(rank: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(tokens, HIDDEN, generator=generator).to(torch.bfloat16)
    ids = torch.rand(tokens, EXPERTS, generator=generator).topk(TOPK).indices
    weights = torch.rand(tokens, TOPK, generator=generator)
    return rows, weights, ids.to(dtype)


@pytest.mark.parametrize("per_node, dtype", [(4, torch.int64), (2, torch.int32)])
def test_row_exchange_adds_up_as_one_process(variables: Any, per_node: int, dtype: torch.dtype) -> None:
    variables(RANKS_PER_NODE=per_node)
    local = EXPERTS // len(TOKENS)

    def body(group: ThreadGroup) -> None:
        exchange = RowExchange(group, HIDDEN, EXPERTS)
        own = scales()[group.rank() * local :][:local]
        for turn in range(2):
            rows, weights, ids = drawn(group.rank() + 10 * turn, TOKENS[group.rank()], dtype)
            received = exchange.dispatch(rows, weights, ids)
            assert received[2].dtype == dtype and received[1].dtype == torch.float32
            out = torch.empty_like(rows) if turn else None
            result = exchange.combine(experts(*received, own), out)
            assert out is None or result is out
            assert same(result, wanted(rows, weights, ids, per_node))
        group.barrier()
        exchange.buffer.destroy()

    run_ranks(len(TOKENS), body)


def wanted(rows: Tensor, weights: Tensor, ids: Tensor, per_node: int) -> Tensor:
    """Each rank's sum rounded, each node's, and the total."""
    local, total = EXPERTS // len(TOKENS), torch.zeros(rows.shape)
    for node in range(0, len(TOKENS), per_node):
        inside = torch.zeros(rows.shape)
        for rank in range(node, node + per_node):
            here = ids.long() // local == rank
            factors = (weights * here * scales()[ids.long()]).sum(1, keepdim=True)
            inside += (rows.float() * factors).to(torch.bfloat16).float()
        total += inside.to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


def test_row_exchange_gives_a_rank_without_rows_one_of_zeros(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        exchange = RowExchange(group, HIDDEN, EXPERTS)
        rows = torch.ones(2, HIDDEN, dtype=torch.bfloat16)
        received, weights, ids = exchange.dispatch(rows, torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64))
        if group.rank() == 1:  # expert 0 is rank 0's
            assert received.shape == (1, HIDDEN) and not received.any() and not weights.any() and not ids.any()
        else:
            assert received.shape == (4, HIDDEN)
        combined = exchange.combine(torch.full_like(received, 3.0))
        assert same(combined, torch.full_like(rows, 3.0))  # nothing of the row of zeros
        group.barrier()
        exchange.buffer.destroy()

    run_ranks(2, body)


def test_row_exchange_refuses_experts_that_cannot_be_shared_evenly() -> None:
    def body(group: ThreadGroup) -> None:
        with pytest.raises(InvalidArgument, match="num_experts must be a multiple of the 3 ranks"):
            RowExchange(group, HIDDEN, EXPERTS)

    run_ranks(3, body)


def test_row_exchange_refuses_a_combine_without_a_dispatch(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        exchange = RowExchange(group, HIDDEN, EXPERTS)
        with pytest.raises(InvalidArgument, match="called once after each dispatch"):
            exchange.combine(torch.zeros(1, HIDDEN, dtype=torch.bfloat16))
        exchange.buffer.destroy()

    run_ranks(1, body)
