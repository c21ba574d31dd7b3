"""Checks of V2's dispatch: each is red on an ElasticBuffer that gets just that wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import WrongElastic, assert_red, module_with, replaced, run, wrong_elastic
from uccl_ep import EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED, SKIPPED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".elastic_dispatch")]


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


def without(name: str) -> Any:
    """An argument that is ignored."""
    return lambda self, arguments: arguments.pop(name, None)


def masked_weights(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[1] is None else replaced(r, _2=torch.where(r[1] >= 0, r[2], 0.0))


def weights_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=torch.zeros(1)) if r[2] is None else r


def other_counts(self: Any, arguments: Any, r: Any) -> Any:
    r[3].num_unaligned_recv_tokens_per_expert = r[3].num_unaligned_recv_tokens_per_expert + 1
    return r


def other_expanded_rows(self: Any, arguments: Any, r: Any) -> Any:
    r[3].recv_src_metadata[:, 2:] += 1
    return r


def reversed_rows(self: Any, arguments: Any, r: Any) -> Any:
    return r if isinstance(r[0], tuple) else replaced(r, _0=r[0].flip(0))


def reversed_when_expanded(self: Any, arguments: Any, r: Any) -> Any:
    return reversed_rows(self, arguments, r) if r[1] is None else r


def reversed_scales(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=(r[0][0], r[0][1].flip(0)))


def another_handle(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _3=copy.copy(r[3]))


def reversed_every_other_time(self: Any, arguments: Any, r: Any) -> Any:
    self.turn = getattr(self, "turn", 0) + 1
    return reversed_rows(self, arguments, r) if self.turn % 2 else r


def a_row_too_many(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.cat([r[0], r[0].new_zeros(1, r[0].shape[1])]))


def narrow_ids(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[1] is None else replaced(r, _1=r[1].int())


def never_an_event(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _4=EventOverlap())


WRONG = [
    ("elastic_keywords", {"combine": lambda self, x, handle: None}, "combine does not take topk_weights", []),
    ("elastic_buffer_attributes", {"get_theoretical_num_sms": lambda self, **sizes: 3}, "gives 3", []),
    ("elastic_dispatch_rows", {"after_dispatch": masked_weights}, "recv_topk_weights", ["elastic_dispatch_expanded"]),
    ("elastic_dispatch_without_weights", {"after_dispatch": weights_anyway}, "not None", ["elastic_dispatch_rows"]),
    ("elastic_handle", {"after_dispatch": other_counts}, "num_unaligned", ["elastic_dispatch_rows"]),
    ("elastic_handle", {"after_dispatch": other_expanded_rows}, "expanded rows", []),
    ("elastic_dispatch_expanded", {"after_dispatch": reversed_when_expanded}, "real rows", ["elastic_dispatch_rows"]),
    ("elastic_dispatch_zero_padding", {"before_dispatch": without("do_zero_padding")}, "padding", []),
    ("elastic_dispatch_fp8", {"after_dispatch": reversed_scales}, "scales", []),
    ("elastic_dispatch_column_major_scales", {"before_dispatch": without("use_tma_aligned_col_major_sf")}, "stri", []),
    ("elastic_dispatch_without_cpu_sync", {"before_dispatch": without("do_cpu_sync")}, "rows of recv_x is", []),
    ("elastic_dispatch_cached", {"after_dispatch": another_handle}, "another handle", ["elastic_dispatch_rows"]),
    ("elastic_dispatch_repeats", {"after_dispatch": reversed_every_other_time}, "between equal calls", []),
    ("elastic_dispatch_one_token", {"after_dispatch": reversed_rows}, "recv_x", []),
    ("elastic_dispatch_all_unused", {"after_dispatch": a_row_too_many}, "rows of recv_x is 1, not 0", []),
    ("elastic_dispatch_zero_tokens", {"after_dispatch": narrow_ids}, "int32", []),
    ("elastic_dispatch_duplicates", {"after_dispatch": reversed_when_expanded}, "real rows", []),
    ("elastic_dispatch_counts_tokens", {"before_dispatch": without("cumulative_local_expert_recv_stats")}, "cumu", []),
    ("elastic_events", {"after_dispatch": never_an_event}, "asynchronous dispatch is None", ["elastic_dispatch_rows"]),
    ("elastic_dispatch_refusals", {"before_dispatch": without("do_zero_padding")}, "not expanded: accepted", []),
]


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("red, methods, words, green", WRONG)
def test_elastic_dispatch_says_what_is_wrong(red: str, methods: Any, words: str, green: list[str]) -> None:
    assert_red(wrong_elastic(**methods), red, words, green)


def test_elastic_dispatch_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


def test_elastic_dispatch_is_skipped_where_it_is_not_offered() -> None:
    names = [c.name for c in chosen() if ".elastic_" in c.body.__module__]
    outcomes = run(module_with(), names, ranks=2, per_node=2)
    assert {(o.status, o.detail) for o in outcomes.values()} == {
        (SKIPPED, "not offered: the module has no ElasticBuffer")
    }


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ranks, per_node", [(2, 0), (5, 2)])
def test_elastic_dispatch_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
    assert issubclass(WrongElastic, uccl_ep.ElasticBuffer)
