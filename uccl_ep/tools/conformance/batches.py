"""Checks of bit-consistency: a token's combined row has the same bits whatever else is in the batch.

What reinforcement learning rests on: the trainer and the rollout send the same token in different company. The first
batch is a whole case; in the second each rank sends some of those tokens, in another order, among another case's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from uccl_ep.reference import RandomCase
from uccl_ep.tools.conformance import low_latency_combine, low_latency_dispatch, throughput_dispatch
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.world import LOCAL_EXPERTS, World

Tensor = torch.Tensor
Sums = Callable[[RandomCase], Tensor]
_TURNS = 3


def remixed(case: RandomCase, other: RandomCase, seed: int) -> tuple[RandomCase, list[Tensor], list[Tensor]]:
    """Another batch with some of a case's tokens.

    Returns:
        (the batch, and for each rank which tokens of `case` are in it, and in which rows of the batch they are).
    """
    generator = torch.Generator().manual_seed(seed)
    parts: dict[str, list[Tensor]] = {"x": [], "topk_idx": [], "topk_weights": []}
    taken, places = [], []
    for rank, x in enumerate(case.x):
        kept = torch.randperm(len(x), generator=generator)[: int(torch.randint(len(x) + 1, (1,), generator=generator))]
        total = min(len(kept) + len(other.x[rank]), case.shape.max_tokens)
        order = torch.randperm(total, generator=generator)  # `kept` comes first in what is put into this order
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))  # row of each
        for name, into in parts.items():
            own, strange = getattr(case, name)[rank], getattr(other, name)[rank]
            into.append(torch.cat([own[kept], strange])[order])
        taken.append(kept)
        places.append(place[: len(kept)])
    return RandomCase(case.shape, case.traffic, parts["x"], parts["topk_idx"], parts["topk_weights"]), taken, places


def compare_batches(world: World, sums: Sums) -> None:
    """Both batches' rows of the tokens that are in both. Collective."""
    for turn in range(_TURNS):
        case, other = world.case(2 * turn), world.case(2 * turn + 1)
        whole = sums(case)
        batch, taken, places = remixed(case, other, turn)
        again = sums(batch)
        chosen, rows = taken[world.rank], places[world.rank]
        world.equal(f"combined_x of tokens {chosen.tolist()} in another batch", again.cpu()[rows], whole.cpu()[chosen])


def work(rows: Tensor, number: int) -> Tensor:
    """What an expert makes of its rows; a row's own, which a GEMM that splits by the number of rows is not."""
    return (rows.float() * (0.7 + 0.11 * number)).bfloat16()


@check("B")
def throughput_batch_keeps_bits(world: World) -> None:
    """combine gives a token the same bits in another batch, place and company. Part B.1."""

    def sums(case: RandomCase) -> Tensor:
        sent = throughput_dispatch.dispatch(world, case)
        combined: Tensor = world.buffer("throughput").combine(work(sent[0], world.rank), sent[4])[0]
        return combined

    compare_batches(world, sums)


@check("B")
def low_latency_batch_keeps_bits(world: World) -> None:
    """low_latency_combine likewise, of bf16 and of FP8 rows, whose scales are a row's own too. Part B.1."""

    def sums(case: RandomCase, use_fp8: bool = False) -> Tensor:
        got: Any = low_latency_dispatch.dispatch(world, case, use_fp8=use_fp8)
        rows = got[0]
        if use_fp8:
            data, scales = rows
            rows = (data.float() * scales.repeat_interleave(128, dim=2)).bfloat16()
        first = world.rank * LOCAL_EXPERTS
        made = torch.stack([work(of_expert, first + e) for e, of_expert in enumerate(rows)])
        # Rows beyond the counts are undefined, and so is what is computed from them; nobody sums them.
        combined: Tensor = low_latency_combine.combine(world, case, got, made)[0]
        return combined.clone()

    compare_batches(world, sums)
    compare_batches(world, lambda case: sums(case, True))
