"""Random cases: repeatable, within their sizes, and each kind of traffic is what its name says."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.errors import InvalidArgument
from uccl_ep.reference import TRAFFIC, CaseShape, random_case

SHAPE = CaseShape(num_ranks=5, num_experts=10, num_topk=4, hidden=128, max_tokens=9)


@pytest.mark.parametrize("traffic", ["mixed", *TRAFFIC])
@pytest.mark.parametrize("seed", range(3))
def test_a_case_has_its_shape_and_repeats(seed: int, traffic: str) -> None:
    case, again = random_case(seed, SHAPE, traffic), random_case(seed, SHAPE, traffic)
    assert case.shape == SHAPE and case.traffic == again.traffic and len(case.traffic) == 5
    for rank in range(5):
        tokens = case.x[rank].shape[0]
        assert tokens <= 9
        assert case.x[rank].shape == (tokens, 128) and case.x[rank].dtype == torch.bfloat16
        assert case.topk_idx[rank].shape == (tokens, 4) and case.topk_idx[rank].dtype == torch.int64
        assert case.topk_weights[rank].shape == (tokens, 4) and case.topk_weights[rank].dtype == torch.float32
        for field in ("x", "topk_idx", "topk_weights"):
            assert torch.equal(getattr(case, field)[rank], getattr(again, field)[rank])


def all_ids(traffic: str) -> list[torch.Tensor]:
    return [ids for seed in range(10) for ids in random_case(seed, SHAPE, traffic).topk_idx]


def test_uniform_names_distinct_experts() -> None:
    ids = torch.cat(all_ids("uniform"))
    assert bool(((ids >= 0) & (ids < 10)).all())
    assert all(len(set(row)) == 4 for row in ids.tolist())
    assert set(ids.flatten().tolist()) == set(range(10))


def test_unused_choices() -> None:
    some = torch.cat(all_ids("some_unused"))
    assert 0.2 < (some == -1).float().mean().item() < 0.6
    assert bool((torch.cat(all_ids("all_unused")) == -1).all())


def test_duplicates_repeat_within_a_token() -> None:
    assert all(len(set(row)) < 4 for row in torch.cat(all_ids("duplicates")).tolist())


def test_hot_expert_is_wanted_once_by_every_token() -> None:
    for ids in all_ids("hot_expert"):
        if ids.numel():
            hot = ids[0, 0]
            assert bool(((ids == hot).sum(1) == 1).all())


def test_out_of_range_goes_beyond_the_experts() -> None:
    ids = torch.cat(all_ids("out_of_range"))
    assert bool((ids >= 10).any()) and bool((ids < 10).any())


def test_token_counts_are_uneven_and_reach_both_ends() -> None:
    counts = {ids.shape[0] for ids in all_ids("uniform")}
    assert {0, 9} <= counts
    assert all(ids.shape[0] == 0 for ids in all_ids("no_tokens"))


def test_seeds_differ_and_mixed_draws_several_kinds() -> None:
    assert len({kind for seed in range(10) for kind in random_case(seed, SHAPE).traffic}) >= 4
    first, second = random_case(1, SHAPE, "uniform"), random_case(2, SHAPE, "uniform")
    assert [t.tolist() for t in first.topk_idx] != [t.tolist() for t in second.topk_idx]


def test_more_choices_than_experts_leaves_the_rest_unused() -> None:
    case = random_case(0, CaseShape(num_ranks=1, num_experts=2, num_topk=3, max_tokens=50), "uniform")
    assert bool((case.topk_idx[0][:, 2] == -1).all()) and case.topk_idx[0].shape[0] > 0


def test_unknown_traffic_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="traffic must be .*hot_expert.*; got 'rush'."):
        random_case(0, SHAPE, "rush")
