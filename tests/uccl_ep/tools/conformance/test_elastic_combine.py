"""Checks of V2's combine: each is red on an ElasticBuffer that gets just that wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import assert_red, replaced, run, wrong_elastic
from uccl_ep import EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".elastic_combine")]


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


def doubled(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0] * 2)


def without_bias(self: Any, arguments: Any) -> None:
    arguments["bias"] = None


def half_weights(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[1] is None else replaced(r, _1=r[1] * 0.5)


def a_little_off(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=(r[0].float() * 1.03).bfloat16())


def last_bit(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=(r[0].view(torch.int16) ^ 1).view(torch.bfloat16))


def several_reductions(self: Any, arguments: Any) -> None:
    self.allow_multiple_reduction = True


def counts_the_last_row(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0] + arguments["x"][-1] * 0)


def ones_for_zeros(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.where(r[0] == 0, torch.ones_like(r[0]), r[0]))


def never_an_event(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=EventOverlap())


def reversed_when_cached(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0].flip(0)) if "handle" in arguments else r


def whatever_is_given(self: Any, arguments: Any) -> None:
    arguments["x"] = arguments["x"][: arguments["handle"].num_expanded_tokens].bfloat16()


WRONG = [
    ("elastic_combine_sum", {"after_combine": doubled}, "combined_x, expanded=False", []),
    ("elastic_combine_biases", {"before_combine": without_bias}, "combined_x", ["elastic_combine_sum"]),
    ("elastic_combine_roundings", {"after_combine": a_little_off}, "is off by", []),
    ("elastic_combine_two_ranks", {"after_combine": last_bit}, "combined_x", ["elastic_combine_roundings"]),
    ("elastic_combine_once", {"before_combine": several_reductions}, "combined_x", ["elastic_combine_sum"]),
    ("elastic_combine_weights_come_back", {"after_combine": half_weights}, "weights", ["elastic_combine_sum"]),
    ("elastic_combine_without_cpu_sync", {"after_combine": counts_the_last_row}, "combined_x", []),
    ("elastic_combine_no_destination", {"after_combine": ones_for_zeros}, "combined_x", []),
    ("elastic_combine_asynchronous", {"after_combine": never_an_event}, "is None", ["elastic_combine_sum"]),
    ("elastic_backward", {"after_dispatch": reversed_when_cached}, "gradients", ["elastic_combine_sum"]),
    ("elastic_combine_refusals", {"before_combine": whatever_is_given}, "float64 rows: accepted", []),
]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("red, methods, words, green", WRONG)
def test_elastic_combine_says_what_is_wrong(red: str, methods: Any, words: str, green: list[str]) -> None:
    assert_red(wrong_elastic(**methods), red, words, green)


def test_elastic_combine_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ranks, per_node", [(2, 0), (5, 2)])
def test_elastic_combine_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
