"""Checks of the low-latency dispatch: each is red on a Buffer that gets just that wrong, in any row order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import Wrong, assert_red, module_with, replaced, run, wrong
from uccl_ep import EventHandle, EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".low_latency_dispatch")]
ROWS = "low_latency_dispatch_bf16"


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


class AnyOrder(Wrong):
    """Right, in another order than ours: sources descending, each one's tokens descending."""

    def after_low_latency_dispatch(self, arguments: Any, r: Any) -> Any:
        src_info, layout_range = r[2][0].clone(), r[2][1].clone()
        x = r[0].clone()
        for expert, n in enumerate(r[1].tolist()):
            x[expert, :n], src_info[expert, :n] = r[0][expert, :n].flip(0), r[2][0][expert, :n].flip(0)
            begin, count = layout_range[expert] >> 32, layout_range[expert] & 0xFFFFFFFF
            layout_range[expert] = (n - begin - count) << 32 | count
        return replaced(r, _0=x, _2=(src_info, layout_range, *r[2][2:]))


class IgnoresScale(Wrong):
    """Without round_scale, without the order of exponents."""

    def low_latency_dispatch(self, x: Any, ids: Any, m: int, experts: int, **arguments: Any) -> Any:
        if not arguments.get("use_ue8m0"):
            return super().low_latency_dispatch(x, ids, m, experts, **{**arguments, "round_scale": False})
        r = super().low_latency_dispatch(x, ids, m, experts, **arguments)
        swapped = r[0][1].transpose(1, 2).contiguous().view(torch.uint8).unflatten(-1, (-1, 4)).flip(-1).flatten(-2)
        return replaced(r, _0=(r[0][0], swapped.view(torch.int32).transpose(1, 2)))


class LaterOverwrites(Wrong):
    last: Any = None

    def after_low_latency_dispatch(self, arguments: Any, r: Any) -> Any:
        before, self.last = self.last, r[0]
        return r if before is None else replaced(r, _4=r[4] and (lambda: (r[4](), before.zero_())))


class EmptyHook(Wrong):
    def after_low_latency_dispatch(self, arguments: Any, r: Any) -> Any:
        return replaced(r, _1=r[1].zero_(), _4=lambda: None) if r[4] is not None else r


class Overwrites(Wrong):
    def low_latency_dispatch(self, x: Any, ids: Any, m: int, experts: int, **arguments: Any) -> Any:
        stats = arguments.get("cumulative_local_expert_recv_stats")
        if stats is not None:
            stats.zero_()
        return super().low_latency_dispatch(x, ids, m, experts, **arguments)


class TakesFloats(Wrong):
    def low_latency_dispatch(self, x: Any, ids: Any, m: int, experts: int, **arguments: Any) -> Any:
        return super().low_latency_dispatch(x.bfloat16(), ids, m, experts, **arguments)


class OtherView(Wrong):
    def get_local_buffer_tensor(self, *arguments: Any, **names: Any) -> Any:
        return super().get_local_buffer_tensor(*arguments, **names).clone()


def row_major(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=(r[0][0], r[0][1].contiguous())) if isinstance(r[0], tuple) else r


def other_scale(self: Any, arguments: Any, r: Any) -> Any:
    scales = r[0][1]
    return replaced(r, _0=(r[0][0], torch.where(scales < 1e-6, 1.0, scales))) if scales.dtype == torch.float32 else r


def one_more(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _1=r[1] + 1)


def other_tokens(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=(r[2][0] + 1, *r[2][1:]))


def gap(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _2=(r[2][0], r[2][1] + (1 << 32), *r[2][2:]))


def other_row(self: Any, arguments: Any, r: Any) -> Any:
    x = r[0].clone()
    for expert, n in enumerate(r[1].tolist()):
        x[expert, n // 2] += 1
    return replaced(r, _0=x)


def hook_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _4=r[4] or (lambda: None))


def event_anyway(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _3=EventOverlap(EventHandle()))


def no_event(self: Any, arguments: Any, r: Any) -> Any:
    r[3].event and r[3].current_stream_wait()
    return replaced(r, _3=EventOverlap())


WRONG: list[tuple[str, Any, str, list[str]]] = [
    (ROWS, wrong(after_low_latency_dispatch=one_more), "recv_count", []),
    (ROWS, wrong(after_low_latency_dispatch=other_tokens), "src_info", []),
    (ROWS, wrong(after_low_latency_dispatch=gap), "do not fill", []),
    (ROWS, wrong(after_low_latency_dispatch=other_row), "recv_x", []),
    (ROWS, wrong(after_low_latency_dispatch=hook_anyway), "the hook is not None", []),
    (ROWS, wrong(after_low_latency_dispatch=event_anyway), "synchronous dispatch", []),
    ("low_latency_dispatch_fp8", wrong(after_low_latency_dispatch=row_major), "column-major", [ROWS]),
    ("low_latency_dispatch_round_scale", module_with(Buffer=IgnoresScale), "scales", ["low_latency_dispatch_fp8"]),
    ("low_latency_dispatch_ue8m0", module_with(Buffer=IgnoresScale), "scales", [ROWS]),
    ("low_latency_dispatch_small_values", wrong(after_low_latency_dispatch=other_scale), "scales",
     ["low_latency_dispatch_fp8"]),
    ("low_latency_dispatch_traffic", wrong(after_low_latency_dispatch=other_row), "recv_x", []),
    ("low_latency_dispatch_duplicates", wrong(after_low_latency_dispatch=one_more), "recv_count", []),
    ("low_latency_dispatch_hook", module_with(Buffer=EmptyHook), "recv_count", [ROWS]),
    ("low_latency_dispatch_asynchronous", wrong(after_low_latency_dispatch=no_event), "is None", [ROWS]),
    ("low_latency_dispatch_two_at_once", module_with(Buffer=LaterOverwrites), "recv_x", [ROWS]),
    ("low_latency_dispatch_statistics", module_with(Buffer=Overwrites), "cumulative", [ROWS]),
    ("low_latency_refusals", module_with(Buffer=TakesFloats), "float32 rows: accepted", [ROWS]),
    ("low_latency_raw_memory", module_with(Buffer=OtherView), "where the view", [ROWS]),
]  # fmt: skip


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("red, module, words, green", WRONG)
def test_low_latency_dispatch_says_what_is_wrong(red: str, module: Any, words: str, green: list[str]) -> None:
    assert_red(module, red, words, green)


def test_low_latency_dispatch_takes_any_order_of_rows() -> None:
    outcomes = run(module_with(Buffer=AnyOrder), [ROWS, "low_latency_after_throughput"])
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}


def test_low_latency_dispatch_every_check_can_fail() -> None:
    assert {red for red, *_ in WRONG} == set(CHECKS)


@pytest.mark.parametrize("ranks, per_node", [(2, 0), (5, 2)])
def test_low_latency_dispatch_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
