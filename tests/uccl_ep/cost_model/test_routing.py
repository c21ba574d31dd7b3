"""Gates of the model: what they draw is allowed, repeatable, and as skewed or grouped as they say."""

from __future__ import annotations

import numpy as np
import pytest

from uccl_ep.cost_model.routing import CHOSEN_GROUPS, GROUPS, KINDS, make_routing
from uccl_ep.errors import InvalidArgument


@pytest.mark.parametrize("kind", KINDS)
def test_routing_draws_without_repetition_and_repeatably(kind: str) -> None:
    first, again = (make_routing(kind, 3, 200, 8, 64, seed=5) for _ in range(2))
    assert len(first) == 3
    for ids, same in zip(first, again, strict=True):
        assert ids.shape == (200, 8) and ids.min() >= 0 and ids.max() < 64
        assert (np.diff(np.sort(ids, axis=1), axis=1) > 0).all()
        assert np.array_equal(ids, same)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], make_routing(kind, 1, 200, 8, 64, seed=6)[0])


def test_routing_random_is_even_and_skewed_is_not() -> None:
    shares = {}
    for kind in ("random", "skewed"):
        counts = np.bincount(np.concatenate([r.ravel() for r in make_routing(kind, 4, 1000, 4, 32)]), minlength=32)
        shares[kind] = counts.max() / counts.sum()
    assert shares["random"] < 1.15 / 32 and shares["skewed"] > 4 / 32


def test_routing_group_limited_stays_in_four_of_eight_groups() -> None:
    ids = make_routing("group-limited", 1, 500, 8, 256)[0]
    groups = [len(set(row)) for row in (ids // (256 // GROUPS)).tolist()]
    assert max(groups) == CHOSEN_GROUPS and min(groups) >= 1
    assert len(np.unique(ids)) > 250  # all groups are chosen by someone


def test_routing_takes_every_expert_when_it_must() -> None:
    assert np.array_equal(np.sort(make_routing("skewed", 1, 20, 8, 8)[0], axis=1), np.tile(np.arange(8), (20, 1)))
    assert make_routing("random", 2, 0, 2, 4)[0].shape == (0, 2)


def test_routing_refuses() -> None:
    with pytest.raises(InvalidArgument, match="routing"):
        make_routing("round-robin", 1, 1, 1, 8)
    with pytest.raises(InvalidArgument, match="topk"):
        make_routing("group-limited", 1, 1, 9, 16)
