"""Carrier: items of any bytes at any ranks, in the order of (source rank, item); in pieces where they are many rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, same, throughput
from uccl_ep import InvalidArgument, ThreadGroup, run_ranks
from uccl_ep.elastic.carrier import Carrier

Tensor = torch.Tensor
RANKS, ITEMS = 4, 5


def items_of(rank: int, seed: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(0, 256, (ITEMS, size), generator=generator, dtype=torch.uint8)


def routes(seed: int, share: float) -> Tensor:
    """bool [RANKS, ITEMS, RANKS]: from whom, which, to whom."""
    return torch.rand(RANKS, ITEMS, RANKS, generator=torch.Generator().manual_seed(seed)) < share


def carried(carrier: Carrier, rank: int, seed: int, sizes: list[int], share: float) -> tuple[Tensor, Tensor]:
    """(what came, what had to come)."""
    all_routes = routes(seed, share)
    parts = list(items_of(rank, seed, sum(sizes)).split(sizes, 1))
    expected = all_routes[:, :, rank].sum(1).tolist()
    got = carrier.carry("x", parts, all_routes[rank], expected)
    sent = [items_of(r, seed, sum(sizes))[all_routes[r, :, rank]] for r in range(RANKS)]
    return got, torch.cat(sent)


@pytest.mark.parametrize("nvl_bytes", [MIB, 16 * MIB])  # rows of a small width, and of the largest
@pytest.mark.parametrize("per_node", [0, 2])
def test_carrier_brings_every_item_whole(variables: Any, per_node: int, nvl_bytes: int) -> None:
    variables(RANKS_PER_NODE=per_node)

    def run(group: ThreadGroup) -> None:
        with throughput(group, nvl_bytes) as buffer:
            carrier = Carrier(buffer)
            sizes: list[list[int]] = [[1], [16], [3, 4096, 5], [8192], [8193], [40_000, 0, 17], [0]]
            for seed, size in enumerate(sizes):
                for share in (0.5, 0.0, 1.0):
                    got, want = carried(carrier, group.rank(), seed, size, share)
                    assert same(got, want)

    run_ranks(RANKS, run)


def test_carrier_cuts_items_of_more_rows_than_a_dispatch_may_have(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(RANKS_PER_NODE=2)
    monkeypatch.setattr("uccl_ep._native.MAX_TOKENS_PER_RANK", 12)
    pieces: list[int] = []
    real = Carrier._carry

    def counting(self: Carrier, name: str, piece: Tensor, *rest: Any) -> Tensor:
        pieces.append(piece.shape[1])
        return real(self, name, piece, *rest)

    monkeypatch.setattr(Carrier, "_carry", counting)

    def run(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            got, want = carried(Carrier(buffer), group.rank(), 3, [30_000, 6_001], 0.5)
            assert same(got, want)

    run_ranks(RANKS, run)
    assert len(pieces) > RANKS and sum(pieces) == RANKS * 36_001


def test_carrier_names_the_rank_that_sends_otherwise(variables: Any) -> None:
    variables()

    def run(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            to = torch.zeros(1, 2, dtype=torch.bool)
            to[0, 0] = group.rank() == 1
            with pytest.raises(InvalidArgument, match=f"mapping.*rank {1 - group.rank()} sends [01] rows"):
                Carrier(buffer).carry(
                    "mapping", [torch.zeros(1, 16, dtype=torch.uint8)], to, [int(group.rank() == 1), 0]
                )

    run_ranks(2, run)


def test_carrier_crosses_the_network_once_for_a_node(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)

    def run(group: ThreadGroup) -> list[int]:
        written = [0]
        with throughput(group) as buffer:
            carrier = Carrier(buffer)
            for ranks in ([1], [2], [2, 3]):  # of the own node, one of the other, both of it
                to = torch.zeros(1, RANKS, dtype=torch.bool)
                to[0, ranks] = group.rank() == 0
                carrier.carry("x", [items_of(0, 1, MIB)[:1]], to, [int(group.rank() in ranks), 0, 0, 0])
                buffer.barrier()
                written.append(buffer.stats()["proxy"]["write_bytes"])
        return [after - before for before, after in zip(written, written[1:], strict=False)]

    near, one, both = run_ranks(RANKS, run)[0]
    assert near < 8192 and MIB < one < 1.02 * MIB and abs(both - one) < 8192
