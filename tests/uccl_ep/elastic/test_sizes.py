"""Hints of an ElasticBuffer: they grow with what they are for, and a buffer of that size works."""

from __future__ import annotations

from typing import Any

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.config import DEFAULT_NUM_SMS
from uccl_ep.elastic import sizes
from uccl_ep.elastic.sizes import Bandwidths


def test_sizes_of_memory(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    plain = sizes.buffer_size(4, 128, 2048, 8)
    assert plain % sizes.GRANULE == 0 and 0 < plain
    assert sizes.buffer_size(8, 128, 2048, 8) > plain and sizes.buffer_size(4, 128, 7168, 8) > plain
    assert sizes.buffer_size(4, 8, 2048, 8) < plain
    assert sizes.buffer_size(4, 128, 2048, 0) >= plain  # as for top-k 32


@pytest.mark.parametrize(
    "experts, topk, ranks, wanted", [(4, 1, 4, 1.0), (4, 4, 4, 4.0), (8, 8, 2, 2.0), (4, 2, 2, 5 / 3)]
)
def test_sizes_expected_ranks(experts: int, topk: int, ranks: int, wanted: float) -> None:
    assert sizes.expected_ranks(experts, topk, ranks) == pytest.approx(wanted)


def test_sizes_num_sms() -> None:
    unknown = Bandwidths(0, 0, 200, 50)
    assert sizes.num_sms(256, 8, 8, 1, unknown) == DEFAULT_NUM_SMS
    slow, fast = (sizes.num_sms(256, 8, 32, 4, Bandwidths(rdma, 0, 200, 50)) for rdma in (50, 400))
    assert slow % 2 == fast % 2 == 0 and 4 <= slow < fast
    assert sizes.num_sms(256, 8, 8, 1, Bandwidths(0, 450, 200, 50)) > sizes.num_sms(
        256, 8, 8, 1, Bandwidths(0, 100, 200, 50)
    )
    assert sizes.num_sms(8, 1, 8, 1, Bandwidths(0, 1e-3, 200, 50)) == 4
    assert sizes.num_sms(8, 1, 8, 1, Bandwidths(0, 1e9, 200, 50)) == 128
    assert all(sizes.num_sms(256, 8, 32, 4, Bandwidths(rdma, 0, 200, 50)) % 2 == 0 for rdma in range(50, 400, 7))
    with pytest.raises(InvalidArgument, match="num_topk must be .*; got 0."):
        sizes.num_sms(8, 0, 8, 1, unknown)


def test_sizes_num_qps() -> None:
    assert [sizes.num_qps(sms, 0) for sms in (0, 4, 24)] == [1, 4, 9]
    assert sizes.num_qps(24, 5) == 5 and sizes.num_qps(4, 5) == 4
