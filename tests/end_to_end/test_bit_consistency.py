"""A token's result has the same bits whatever else is in the batch, in each run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.end_to_end.world import World, as_threads

RANKS, TOKENS, HIDDEN, TOPK, EXPERTS = 4, 12, 256, 4, 8


def experts_of(rank: int, rows: torch.Tensor) -> torch.Tensor:
    """An expert's work is a row's own here; what a GEMM does with the batch is the model's side."""
    return (rows.float() * (0.7 + 0.11 * rank)).bfloat16()


def throughput(group: Any, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    buffer = uccl_ep.Buffer(group, num_nvl_bytes=64 << 20, explicitly_destroy=True)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
    rows, *_, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=idx,
        topk_weights=weights,
    )
    out, _, _ = buffer.combine(experts_of(group.rank(), rows), handle)
    group.barrier()
    buffer.destroy()
    return out


def low_latency(group: Any, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    size = uccl_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, RANKS, EXPERTS)
    buffer = uccl_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, explicitly_destroy=True)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, EXPERTS, use_fp8=False)
    out, _, _ = buffer.low_latency_combine(experts_of(group.rank(), rows), idx, weights, handle)
    group.barrier()
    buffer.destroy()
    return out


@pytest.mark.parametrize("ranks_per_node", [0, 2], ids=["one_node", "two_nodes"])
@pytest.mark.parametrize("mode", [throughput, low_latency])
def test_bits_of_a_token_do_not_depend_on_its_batch(mode: Any, ranks_per_node: int) -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(RANKS, TOKENS, HIDDEN, generator=generator).bfloat16()
    idx = torch.rand(RANKS, TOKENS, EXPERTS, generator=generator).topk(TOPK).indices
    weights = torch.rand(RANKS, TOKENS, TOPK, generator=generator)

    def run(chosen: list[list[int]]) -> list[torch.Tensor]:
        """Each rank's results, when it sends these of its tokens in this order."""
        world = World(ranks=RANKS, ranks_per_node=ranks_per_node)
        return as_threads(
            world, lambda group: mode(group, *(t[group.rank()][chosen[group.rank()]] for t in (x, idx, weights)))
        )

    whole = run([list(range(TOKENS))] * RANKS)
    assert all(bool(torch.count_nonzero(out)) for out in whole)
    again = run([list(range(TOKENS))] * RANKS)
    few = [[5], [], [11, 0, 3], list(range(TOKENS - 1, -1, -1))]
    alone = run(few)
    for rank, tokens in enumerate(few):
        assert torch.equal(whole[rank], again[rank])
        assert torch.equal(whole[rank][tokens], alone[rank]), f"rank {rank}: tokens {tokens}"
