"""uccl_ep.examples.serve_members: the whole story in short, with real processes, and its parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from uccl_ep import Buffer
from uccl_ep.examples import serve_members as story
from uccl_ep.examples.small_moe import EXPERTS, Experts


@pytest.mark.timeout(240)
def test_examples_serve_members_make_the_same_tokens_whoever_dies_joins_leaves_or_sleeps(variables: Any) -> None:
    variables(TIMEOUT_S=60)
    found = story.play(steps=8)
    print(found.table())
    assert found.wrong() == []
    assert sorted(r.seat for r in found.reports) == list(range(8))  # that of the seat that died is its replacement's
    assert {seat for seat, *_ in found.texts} == set(range(8))
    for report in found.reports:
        happened = [what for what, *_ in report.steps]
        assert (story.DEATH in happened) == (report.seat not in (story.DIES, 6, 7))
        assert (story.CHANGES["replaced"] in happened) == (report.seat not in (story.DIES, 6, 7))
        assert (story.CHANGES["grown"] in happened) == (report.seat < 6)
        assert story.CHANGES["smaller"] in happened
        assert (story.SLEEP in happened) == (report.seat != story.LEAVES)
        for what in set(happened) & {*story.CHANGES.values()}:
            more = report.memory[f"while {what}"] > report.memory[f"before {what}"]
            assert more == (report.seat != story.LEAVES or what != story.CHANGES["smaller"])
    wrong = (0, 1, [*found.texts[0][2][:-1], -1])
    assert story.Story([wrong], found.reports).wrong() == [(0, 1)]


@pytest.mark.parametrize("ranks", range(3, 9))
def test_examples_serve_members_route_every_expert_to_a_rank_that_lives(ranks: int) -> None:
    for lost in range(ranks):
        for rank in set(range(ranks)) - {lost}:
            layer = story.Replicated(Experts())
            layer.place(cast(Buffer, SimpleNamespace(rank=rank, group_size=ranks)), [lost])
            share = layer.slots(ranks) // ranks
            assert [slot % EXPERTS for slot in layer.route.tolist()] == list(range(EXPERTS))
            assert all(slot // share != lost for slot in layer.route.tolist())
