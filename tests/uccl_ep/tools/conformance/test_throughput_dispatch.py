"""Checks of the throughput dispatch: each is red on a Buffer that gets just that wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.tools.conformance.threads import Wrong, assert_red, replaced, run, wrong
from uccl_ep import Buffer, EventHandle, EventOverlap
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = [c.name for c in chosen() if c.body.__module__.endswith(".throughput_dispatch")]


@pytest.fixture(autouse=True)
def two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)


def wide_counts(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0].long())


def unmasked_weights(self: Any, arguments: Any, r: Any) -> Any:
    return r if r[2] is None else replaced(r, _2=torch.where(r[1] >= 0, r[2], 0.5))


def reversed_rows(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0].flip(0), _1=r[1].flip(0), _2=r[2].flip(0)) if isinstance(r[0], torch.Tensor) else r


def global_ids(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _1=torch.where(r[1] >= 0, r[1] + self.rank * 3, -1))


def no_rounding(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _3=[n - n % 5 for n in r[3]]) if arguments.get("expert_alignment", 1) > 1 else r


def column_scales(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=(r[0][0], r[0][1].T.contiguous().T)) if isinstance(r[0], tuple) else r


def counts_all_the_same(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _3=[0]) if arguments.get("num_worst_tokens") else r


def five_values(self: Any, arguments: Any, r: Any) -> Any:
    return r[:5] if arguments.get("handle") is not None else r


def always_an_event(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _5=EventOverlap(EventHandle()))


def never_an_event(self: Any, arguments: Any, r: Any) -> Any:
    r[5].event and r[5].current_stream_wait()
    return replaced(r, _5=EventOverlap())


def changed_in_the_second_call(self: Any, arguments: Any, r: Any) -> Any:
    self.turn = getattr(self, "turn", -1) + 1
    return reversed_rows(self, arguments, r) if self.turn else r


def ids_without_topk(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _1=torch.zeros(1)) if arguments.get("topk_idx") is None else r


class Careless(Wrong):
    def dispatch(self, x: Any, **arguments: Any) -> Any:
        if arguments.get("topk_idx") is None or arguments.get("topk_weights") is None:
            return None
        return super().dispatch(x, **arguments)


def lose_a_row(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=r[0][1:]) if isinstance(r[0], torch.Tensor) else r


def twice_counted(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _3=[n + 1 for n in r[3]])


def extra_row(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _0=torch.cat([r[0], r[0].new_zeros(1, r[0].shape[1])]))


def other_tables(self: Any, arguments: Any, r: Any) -> Any:
    return replaced(r, _4=tuple(r[4])[:-1]) if r[4] is not None else r


WRONG = [
    ("throughput_layout", {"after_layout": wide_counts}, "num_tokens_per_rank is (4,) torch.int64", []),
    ("throughput_dispatch_rows", {"after_dispatch": unmasked_weights}, "weights", ["throughput_dispatch_without_topk"]),
    ("throughput_dispatch_rows", {"after_dispatch": reversed_rows}, "recv_x", ["throughput_dispatch_fp8"]),
    ("throughput_dispatch_rows", {"after_dispatch": global_ids}, "recv_topk_idx", ["throughput_dispatch_all_unused"]),
    ("throughput_dispatch_one_hot_expert", {"after_dispatch": lose_a_row}, "recv_x", ["throughput_dispatch_fp8"]),
    ("throughput_dispatch_duplicates", {"after_dispatch": twice_counted}, "_list", ["throughput_layout"]),
    ("throughput_dispatch_all_unused", {"after_dispatch": extra_row}, "recv_x", []),
    ("throughput_dispatch_zero_tokens", {"after_dispatch": twice_counted}, "_list", []),
    ("throughput_dispatch_one_token", {"after_dispatch": lose_a_row}, "recv_x", []),
    ("throughput_dispatch_alignment", {"after_dispatch": no_rounding}, "_list", ["throughput_dispatch_rows"]),
    ("throughput_dispatch_fp8", {"after_dispatch": column_scales}, "row-major", ["throughput_dispatch_rows"]),
    ("throughput_dispatch_without_topk", {"after_dispatch": ids_without_topk}, "without topk_idx", []),
    ("throughput_dispatch_worst_tokens", {"after_dispatch": counts_all_the_same}, "[0]", ["throughput_dispatch_rows"]),
    ("throughput_dispatch_cached", {"after_dispatch": five_values}, "is 5, not 6", ["throughput_dispatch_rows"]),
    ("throughput_handle", {"after_dispatch": other_tables}, "length of the handle is 9", ["throughput_dispatch_rows"]),
    ("throughput_dispatch_repeats", {"after_dispatch": changed_in_the_second_call}, "recv_x", []),
    ("throughput_events", {"after_dispatch": always_an_event}, "synchronous dispatch", ["throughput_dispatch_rows"]),
    ("throughput_events", {"after_dispatch": never_an_event}, "asynchronous", ["throughput_dispatch_rows"]),
]


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("red, methods, words, green", WRONG)
def test_throughput_dispatch_says_what_is_wrong(red: str, methods: Any, words: str, green: list[str]) -> None:
    assert_red(wrong(**methods), red, words, green)


def test_throughput_dispatch_refusals_are_checked() -> None:
    module = wrong()
    module.Buffer = Careless
    assert_red(module, "throughput_refusals", "topk_idx without weights: accepted", ["throughput_dispatch_rows"])


class Clamping(Wrong):
    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, **arguments: Any) -> Any:
        return super().get_dispatch_layout(topk_idx.clamp(max=num_experts - 1), num_experts, **arguments)


def test_throughput_dispatch_ids_out_of_range_are_checked() -> None:
    module = wrong()
    module.Buffer = Clamping
    assert_red(module, "throughput_layout_ids_out_of_range", "num_tokens_per_rank", ["throughput_layout"])


def test_throughput_dispatch_every_check_can_fail() -> None:
    others = {"throughput_refusals", "throughput_layout_ids_out_of_range"}
    assert {red for red, *_ in WRONG} | others == set(CHECKS)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("ranks, per_node", [(2, 0), (5, 2)])
def test_throughput_dispatch_is_green_on_ourselves(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    import uccl_ep

    outcomes = run(uccl_ep, CHECKS, ranks, per_node or ranks)
    assert {o.name: o.detail for o in outcomes.values() if o.status != PASSED} == {}
    assert uccl_ep.Buffer is Buffer
