"""Checks of the mask calls: each is red on a Buffer that gets just that wrong."""

from __future__ import annotations

from typing import Any

import pytest

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import Wrong, assert_red, module_with, run
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED, SKIPPED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".masks")]
UPDATE, LEFT_OUT, NEED = "mask_update_query_clean", "mask_leaves_a_rank_out", "mask_calls_need_enable_shrink"


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


class DefaultMasks(Wrong):
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = True) -> None:
        super().low_latency_update_mask_buffer(rank_to_mask, mask)


class CleansNothing(Wrong):
    def low_latency_clean_mask_buffer(self) -> None: ...


class Inverted(Wrong):
    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        super().low_latency_query_mask_buffer(mask_status)
        mask_status.neg_().add_(1)


class Renormalises(Wrong):
    """Gives what is left the weight of what is missing."""

    def low_latency_combine(self, x: Any, ids: Any, weights: Any, handle: Any, **arguments: Any) -> Any:
        masked = self.runtime.mask.bool()[ids.clamp(min=0) // 3] & (ids >= 0)  # type: ignore[union-attr]
        left = (weights * ~masked).sum(1, keepdim=True).clamp(min=1e-6)
        return super().low_latency_combine(x, ids, weights * weights.sum(1, keepdim=True) / left, handle, **arguments)


class MasksAnyway(Wrong):
    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        if self.enable_shrink:
            super().low_latency_query_mask_buffer(mask_status)


WRONG: list[tuple[str, Any, str, list[str]]] = [
    (UPDATE, DefaultMasks, "after update(rank)", [LEFT_OUT]),
    (UPDATE, CleansNothing, "after clean", [LEFT_OUT]),
    (UPDATE, Inverted, "at first", [LEFT_OUT]),
    (LEFT_OUT, Renormalises, "combined_x", [UPDATE, NEED]),
    (NEED, MasksAnyway, "low_latency_query_mask_buffer: accepted", [LEFT_OUT]),
]


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("red, buffer, words, green", WRONG)
def test_masks_say_what_is_wrong(red: str, buffer: Any, words: str, green: list[str]) -> None:
    assert_red(module_with(Buffer=buffer), red, words, green)


def test_masks_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


@pytest.mark.parametrize("ranks, per_node", [(3, 0), (4, 1)])
def test_masks_are_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}


def test_masks_that_are_always_there() -> None:
    always = type("Always", (Wrong,), {})
    made = type(
        "Always",
        (always,),
        {"__init__": lambda self, *a, **k: Wrong.__init__(self, *a, **{**k, "enable_shrink": True})},
    )  # noqa: E501
    assert run(module_with(Buffer=made), [NEED])[NEED].status == SKIPPED
