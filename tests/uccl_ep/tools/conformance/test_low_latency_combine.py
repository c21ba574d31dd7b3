"""Checks of the low-latency combine: each is red on a Buffer that gets just that wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import Wrong, assert_red, module_with, replaced, run, wrong
from uccl_ep import EventHandle, EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".low_latency_combine")]
SUM = "low_latency_combine_sum"


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


class Base(Wrong):
    def low_latency_combine(self, x: Any, ids: Any, weights: Any, handle: Any, **arguments: Any) -> Any:
        return uccl_ep.Buffer.low_latency_combine(self, *self.given(x, ids, weights, handle, arguments), **arguments)

    def given(self, x: Any, ids: Any, weights: Any, handle: Any, arguments: Any) -> Any:
        return x, ids, weights, handle


class EqualWeights(Base):
    def given(self, x: Any, ids: Any, weights: Any, handle: Any, arguments: Any) -> Any:
        return x, ids, torch.ones_like(weights), handle


class SendsX(Base):
    def given(self, x: Any, ids: Any, weights: Any, handle: Any, arguments: Any) -> Any:
        arguments["zero_copy"] = False
        return x, ids, weights, handle


class PoorLogfmt(Base):
    def given(self, x: Any, ids: Any, weights: Any, handle: Any, arguments: Any) -> Any:
        return x.sign() * 0.05 if arguments.get("use_logfmt") else x, ids, weights, handle


class AnyShape(Base):
    def given(self, x: Any, ids: Any, weights: Any, handle: Any, arguments: Any) -> Any:
        short = x.shape[1] % 2
        return torch.nn.functional.pad(x, (0, 0, 0, short)) if short else x, ids, weights, handle


class OneMemory(Wrong):
    """Every combine writes the same memory: the next one overwrites what the last one returned."""

    def low_latency_combine(self, x: Any, ids: Any, weights: Any, handle: Any, **arguments: Any) -> Any:
        self.turn = getattr(self, "turn", -1) + 1
        return super().low_latency_combine(x, ids, weights * (1 + self.turn), handle, **arguments)


class NoClean(Wrong):
    def clean_low_latency_buffer(self, *sizes: int) -> None:
        raise RuntimeError("no such kernel")


def another_out(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0].clone())


def ones_for_nothing(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.where((arguments["ids"] < 0).all(1, keepdim=True), 1.0, r[0]).bfloat16())


def no_hook(self: Any, arguments: Any, r: Any) -> Any:
    r[2] and r[2]()
    return replaced(r, _2=None)


def hook_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=r[2] or (lambda: None))


def event_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _1=EventOverlap(EventHandle()))


def no_event(self: Any, arguments: Any, r: Any) -> Any:
    r[1].event and r[1].current_stream_wait()
    return replaced(r, _1=EventOverlap())


INTO = "low_latency_combine_into"
WRONG: list[tuple[str, Any, str, list[str]]] = [
    (SUM, module_with(Buffer=EqualWeights), "combined_x", []),
    (SUM, wrong(after_low_latency_combine=event_anyway), "synchronous combine", []),
    (SUM, wrong(after_low_latency_combine=hook_anyway), "the hook is not None", []),
    ("low_latency_combine_traffic", wrong(after_low_latency_combine=ones_for_nothing), "combined_x", []),
    (INTO, wrong(after_low_latency_combine=another_out), "where combined_x lies", [SUM]),
    ("low_latency_combine_hook", wrong(after_low_latency_combine=no_hook), "the hook is None", [SUM]),
    ("low_latency_combine_asynchronous", wrong(after_low_latency_combine=no_event), "is None", [SUM]),
    ("low_latency_combine_two_at_once", module_with(Buffer=OneMemory), "micro-batch 1", []),
    ("low_latency_combine_zero_copy", module_with(Buffer=SendsX), "combined_x", [SUM]),
    ("low_latency_combine_logfmt", module_with(Buffer=PoorLogfmt), "relative error", [SUM]),
    ("low_latency_combine_refusals", module_with(Buffer=AnyShape), "another shape: accepted", [SUM]),
    ("low_latency_after_throughput", module_with(Buffer=NoClean), "no such kernel", [SUM]),
]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("red, module, words, green", WRONG)
def test_low_latency_combine_says_what_is_wrong(red: str, module: Any, words: str, green: list[str]) -> None:
    assert_red(module, red, words, green)


def test_low_latency_combine_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ranks, per_node", [(2, 0), (5, 2)])
def test_low_latency_combine_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
