"""The checks of V2.5: green on ours, red where a slot, a sum or a place is wrong, skipped where nothing is offered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import assert_red, module_with, run
from uccl_ep.tools.conformance.runner import PASSED, SKIPPED

CHECKS = ["lb_prefetch_fills_assigned_slots", "lb_reduce_adds_gradients", "bucket_collectives"]
OURS = {name: getattr(uccl_ep, name) for name in ("EPBuffer", "BufferAllocator", "BucketBuffer")}


@pytest.mark.parametrize("per_node", [4, 2])
def test_balance_ours_pass(variables: Any, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node, TIMEOUT_S=10)
    outcomes = run(module_with(**OURS), CHECKS, per_node=per_node)
    assert {o.status for o in outcomes.values()} == {PASSED}, outcomes


class _WritesAll(uccl_ep.EPBuffer):
    def lb_prefetch_weights(self, slots: Any, *rest: Any, **more: Any) -> Any:
        event = super().lb_prefetch_weights(slots, *rest, **more)
        slots[0].masked_fill_(slots[0] == -7.0, 0.0)
        return event


class _Overwrites(uccl_ep.EPBuffer):
    def lb_reduce_grads(self, slots: Any, grads: Any, *rest: Any, **more: Any) -> Any:
        return super().lb_reduce_grads(slots, grads.zero_(), *rest, **more)


class _Elsewhere(uccl_ep.BucketBuffer):
    def all_reduce(self, srcs: Any, *rest: Any, **more: Any) -> Any:
        handle = super().all_reduce(srcs, *rest, **more)
        results = handle.wait()
        handle.register_hook_after_wait(lambda: results.clone())
        return handle


class _Adds(uccl_ep.BucketBuffer):
    def all_gather(self, srcs: Any, *rest: Any, **more: Any) -> Any:
        return super().all_gather(srcs.add_(1) if isinstance(srcs, torch.Tensor) else srcs, *rest, **more)


@pytest.mark.parametrize(
    ("wrong", "red", "words"),
    [
        ({"EPBuffer": _WritesAll}, CHECKS[0], "of expert -1"),
        ({"EPBuffer": _Overwrites}, CHECKS[1], "expert_grads"),
        ({"BucketBuffer": _Elsewhere}, CHECKS[2], "where all_reduce leaves"),
        ({"BucketBuffer": _Adds}, CHECKS[2], "all_gather"),
    ],
)
def test_balance_is_red_where_it_is_wrong(variables: Any, wrong: Any, red: str, words: str) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)
    assert_red(module_with(**{**OURS, **wrong}), red, words)


def test_balance_is_skipped_where_it_is_not_offered(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    assert {o.status for o in run(module_with(), CHECKS).values()} == {SKIPPED}
