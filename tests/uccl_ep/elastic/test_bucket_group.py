"""BucketContext: shards of all ranks side by side, and sums by ascending rank, whatever tensors they lie in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.test_bucket import drawn, summed
from tests.uccl_ep.ranks import same
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.elastic.bucket_group import BucketContext


def test_bucket_group_sum_is_not_what_another_order_would_give() -> None:
    """Else no test could see the order."""
    addends = [drawn(1, r, 8191) for r in range(4)]
    assert not same(summed(addends, 1.0), summed(addends[::-1], 1.0))


@pytest.mark.parametrize("ranks, per_node", [(1, 0), (2, 0), (4, 2)])
def test_bucket_group_gathers_and_reduces(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)

    def run(group: ThreadGroup) -> None:
        context, rank = BucketContext(group, "cpu"), group.rank()
        assert context.get_physical_domain_size() == (2 if per_node else 1, min(ranks, 2))
        shards = [[drawn(turn, r, 700 + turn) for r in range(ranks)] for turn in range(2)]
        wholes = [torch.full((ranks, 700), 7.0), torch.full((ranks * 701,), 7.0)]
        context.gather([shards[0][rank], shards[1][rank]], wholes, 4)
        assert same(wholes[0], torch.stack(shards[0])) and same(wholes[1], torch.cat(shards[1]))
        parts = [[drawn(5 + turn, r, ranks, 90 + turn) for r in range(ranks)] for turn in range(2)]
        for dtype, scale in ((torch.float32, 1.0), (torch.bfloat16, 0.5)):
            total = context.reduce([parts[0][rank], parts[1][rank]], dtype, scale, 4)
            want = [summed([part[r][rank].to(dtype) for r in range(ranks)], scale) for part in parts]
            assert same(total, torch.cat(want))
        group.barrier()
        context.buffer.destroy()

    run_ranks(ranks, run)
