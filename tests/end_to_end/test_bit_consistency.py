"""A token's result has the same bits whatever else is in the batch and wherever it stands, in each run: over seeds, in
every mode and format, on one node and on two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import uccl_ep
from tests.end_to_end.world import World, as_threads
from uccl_ep.reference import CaseShape, RandomCase, random_case
from uccl_ep.tools.conformance.batches import remixed, work

RANKS, LOCAL = 4, 2
SHAPE = CaseShape(num_ranks=RANKS, num_experts=RANKS * LOCAL, num_topk=4, hidden=512, max_tokens=12)
SEEDS = 12
TRAFFIC = ("uniform", "some_unused", "hot_expert")
Tensor = torch.Tensor
Sums = Callable[[Any, RandomCase, int], Tensor]


@contextmanager
def throughput_buffer(group: Any) -> Iterator[Any]:
    buffer = uccl_ep.Buffer(group, num_nvl_bytes=16 << 20, explicitly_destroy=True)
    yield buffer
    group.barrier()
    buffer.destroy()


def throughput(buffer: Any, case: RandomCase, rank: int, fp8: bool = False) -> Tensor:
    idx = case.topk_idx[rank]
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, SHAPE.num_experts)
    x = uccl_ep.reference.cast_fp8(case.x[rank]) if fp8 else case.x[rank]
    rows, *_, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=idx,
        topk_weights=case.topk_weights[rank],
    )
    rows = uccl_ep.reference.dequantise(*rows) if fp8 else rows
    return buffer.combine(work(rows, rank), handle)[0]


@contextmanager
def low_latency_buffer(group: Any) -> Iterator[Any]:
    size = uccl_ep.Buffer.get_low_latency_rdma_size_hint(SHAPE.max_tokens, SHAPE.hidden, RANKS, SHAPE.num_experts)
    buffer = uccl_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, explicitly_destroy=True)
    yield buffer
    group.barrier()
    buffer.destroy()


def low_latency(buffer: Any, case: RandomCase, rank: int, fp8: bool = False, **how: Any) -> Tensor:
    ids, weights = case.topk_idx[rank], case.topk_weights[rank]
    sizes = SHAPE.max_tokens, SHAPE.num_experts
    rows, _, handle, _, _ = buffer.low_latency_dispatch(case.x[rank], ids, *sizes, use_fp8=fp8)
    rows = uccl_ep.reference.dequantise(*rows) if fp8 else rows
    made = torch.stack([work(of_expert, rank * LOCAL + e) for e, of_expert in enumerate(rows)])
    return buffer.low_latency_combine(made, ids, weights, handle, **how)[0].clone()


@contextmanager
def elastic_buffer(group: Any, many_sums: bool = True) -> Iterator[Any]:
    buffer = uccl_ep.ElasticBuffer(
        group, num_max_tokens_per_rank=SHAPE.max_tokens, hidden=SHAPE.hidden, num_topk=SHAPE.num_topk,
        allow_multiple_reduction=many_sums, explicitly_destroy=True,
    )  # fmt: skip
    yield buffer
    group.barrier()
    buffer.destroy()


def once_buffer(group: Any) -> Any:
    return elastic_buffer(group, many_sums=False)


def elastic(buffer: Any, case: RandomCase, rank: int) -> Tensor:
    ids = case.topk_idx[rank]
    rows, _, _, handle, _ = buffer.dispatch(case.x[rank], ids, num_experts=SHAPE.num_experts, do_expand=True)
    return buffer.combine(work(rows, rank), handle)[0]


WAYS: dict[str, tuple[Any, Sums]] = {
    "throughput": (throughput_buffer, throughput),
    "throughput fp8": (throughput_buffer, lambda *a: throughput(*a, fp8=True)),
    "low latency": (low_latency_buffer, low_latency),
    "low latency fp8": (low_latency_buffer, lambda *a: low_latency(*a, fp8=True)),
    "low latency logfmt": (low_latency_buffer, lambda *a: low_latency(*a, use_logfmt=True)),
    "low latency fp8 combine": (low_latency_buffer, lambda *a: low_latency(*a, use_fp8=True)),
    "low latency mxfp8 combine": (low_latency_buffer, lambda *a: low_latency(*a, use_mxfp8=True)),
    "low latency nvfp4 combine": (low_latency_buffer, lambda *a: low_latency(*a, use_nvfp4=True)),
    "V2": (elastic_buffer, elastic),
    "V2, summed once": (once_buffer, elastic),
}


def sums_in_batches(ranks_per_node: int, way: str) -> list[list[tuple[Tensor, ...]]]:
    """For each rank and seed: a whole batch, the same again, and rows of some tokens in it and in another batch."""
    made, sums = WAYS[way]

    def one_rank(group: Any) -> list[tuple[Tensor, ...]]:
        rank, results = group.rank(), list[tuple[Tensor, ...]]()
        with made(group) as buffer:
            for seed in range(SEEDS):
                case = random_case(seed, SHAPE, TRAFFIC[seed % len(TRAFFIC)])
                batch, taken, places = remixed(case, random_case(1000 + seed, SHAPE, "uniform"), seed)
                whole, again = sums(buffer, case, rank), sums(buffer, case, rank)
                results.append((whole, again, whole[taken[rank]], sums(buffer, batch, rank)[places[rank]]))
        return results

    return as_threads(World(ranks=RANKS, ranks_per_node=ranks_per_node, shuffle_seed=5), one_rank)


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("ranks_per_node", [0, 2], ids=["one_node", "two_nodes"])
@pytest.mark.parametrize("way", WAYS)
def test_bits_of_a_token_do_not_depend_on_its_batch(way: str, ranks_per_node: int) -> None:
    compared = 0
    for rank, of_seeds in enumerate(sums_in_batches(ranks_per_node, way)):
        for seed, (whole, again, here, there) in enumerate(of_seeds):
            assert torch.equal(whole, again), f"rank {rank}, seed {seed}: another run"
            assert torch.equal(here, there), f"rank {rank}, seed {seed}: another batch"
            compared += int(torch.count_nonzero(here))
    assert compared > 20 * SHAPE.hidden  # not only empty batches
