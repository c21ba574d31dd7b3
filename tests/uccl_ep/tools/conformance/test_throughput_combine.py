"""Checks of the throughput combine: each is red on a Buffer that gets just that wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import Wrong, assert_red, module_with, replaced, run, wrong
from uccl_ep import EventHandle, EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".throughput_combine")]


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


class LosesARow(Wrong):
    def combine(self, x: Any, handle: Any, **arguments: Any) -> Any:
        return super().combine(torch.cat([torch.zeros_like(x[:1]), x[1:]]), handle, **arguments)


class BiasAfterRounding(Wrong):
    def combine(self, x: Any, handle: Any, bias: Any = None, **arguments: Any) -> Any:
        combined, weights, event = super().combine(x, handle, **arguments)
        for part in (bias,) if isinstance(bias, torch.Tensor) else bias or ():
            combined = combined + part
        return combined, weights, event


class FirstBiasOnly(Wrong):
    def combine(self, x: Any, handle: Any, bias: Any = None, **arguments: Any) -> Any:
        return super().combine(x, handle, bias=bias[0] if isinstance(bias, tuple) else bias, **arguments)


class CutsRows(Wrong):
    def combine(self, x: Any, handle: Any, **arguments: Any) -> Any:
        return super().combine(x.bfloat16()[: handle.routing.num_rows].contiguous(), handle, **arguments)


class NeverEnds(Wrong):
    def destroy(self) -> None:
        super().destroy()
        self.runtime = 0  # type: ignore[assignment]

    def __del__(self) -> None: ...


class OtherRowsAgain(Wrong):
    def after_dispatch(self, arguments: Any, r: Any) -> Any:
        return replaced(r, _0=r[0].flip(0)) if arguments.get("handle") is not None else r


def ones_for_nothing(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.where(r[0] == 0, 1.0, r[0]).bfloat16())


def half_weights(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[1] is None else replaced(r, _1=r[1] * 0.5)


def weights_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[1] is not None else replaced(r, _1=torch.zeros(1))


def no_event(self: Any, arguments: Any, r: Any) -> Any:
    r[2].event and r[2].current_stream_wait()
    return replaced(r, _2=EventOverlap())


def always_an_event(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=EventOverlap(EventHandle()))


def a_row_more(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.cat([r[0], r[0][:1]]) if r[0].shape[0] == 1 else r[0])


SUM = "throughput_combine_sum"
WRONG: list[tuple[str, Any, str, list[str]]] = [
    (SUM, module_with(Buffer=LosesARow), "combined_x", ["throughput_combine_without_weights"]),
    (SUM, wrong(after_combine=always_an_event), "synchronous combine", ["throughput_combine_one_bias"]),
    ("throughput_combine_one_bias", module_with(Buffer=BiasAfterRounding), "combined_x", [SUM]),
    ("throughput_combine_two_biases", module_with(Buffer=FirstBiasOnly), "combined_x", ["throughput_combine_one_bias"]),
    ("throughput_combine_weights_come_back", wrong(after_combine=half_weights), "combined_topk_weights", []),
    ("throughput_combine_without_weights", wrong(after_combine=weights_anyway), "without topk_weights", [SUM]),
    ("throughput_combine_no_destination", wrong(after_combine=ones_for_nothing), "combined_x", []),
    ("throughput_combine_zero_tokens", wrong(after_combine=a_row_more), "combined_x", [SUM]),
    ("throughput_combine_asynchronous", wrong(after_combine=no_event), "asynchronous combine", [SUM]),
    ("throughput_backward", module_with(Buffer=OtherRowsAgain), "gradients", [SUM]),
    ("throughput_combine_refusals", module_with(Buffer=CutsRows), "a row too many: accepted", [SUM]),
    ("buffer_attributes_and_destroy", module_with(Buffer=NeverEnds), "after destroy()", []),
]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("red, module, words, green", WRONG)
def test_throughput_combine_says_what_is_wrong(red: str, module: Any, words: str, green: list[str]) -> None:
    assert_red(module, red, words, green)


def test_throughput_combine_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


@pytest.mark.parametrize("ranks, per_node", [(3, 0), (5, 2)])
def test_throughput_combine_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
