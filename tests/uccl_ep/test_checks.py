"""Argument checks: what passes comes back unchanged, what does not is named with its value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused
from uccl_ep import Buffer, EventHandle, EventOverlap, _native, checks

BF16 = (torch.bfloat16,)


def test_checks_matrix_returns_the_tensor_itself() -> None:
    for value in (torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(0, 4, dtype=torch.bfloat16)):
        assert checks.check_matrix("x", value, BF16, 4) is value


@pytest.mark.parametrize(
    "value, words",
    [
        (None, ["; got None.", "torch.bfloat16"]),
        ([[1.0]], ["; got [[1.0]]."]),
        (torch.zeros(3, dtype=torch.bfloat16), ["(3,)", "2-D"]),
        (torch.zeros(3, 4), ["(3, 4), torch.float32", "torch.bfloat16", "Call .to(torch.bfloat16) on it."]),
        (torch.zeros(4, 3, dtype=torch.bfloat16).T, ["strides (1, 3)", "contiguous"]),
        (torch.zeros(3, 5, dtype=torch.bfloat16), ["(3, 5)", "4 columns"]),
    ],
)
def test_checks_matrix_refuses(value: Any, words: list[str]) -> None:
    assert_refused(lambda: checks.check_matrix("x", value, BF16, 4), ["x=", *words])


def test_checks_matrix_names_every_dtype() -> None:
    wanted = ["topk_idx", "torch.int64 or torch.int32"]
    assert_refused(lambda: checks.check_matrix("topk_idx", torch.zeros(1, 1), (torch.int64, torch.int32)), wanted)


def test_checks_unused_int_takes_a_float_that_is_whole() -> None:
    """rtp-llm divides: `num_qps_per_rank=num_experts / num_ranks`."""
    got = checks.check_unused_int("num_qps_per_rank", 8.0, 1, 24)
    assert got == 8 and type(got) is int and checks.check_unused_int("num_qps_per_rank", 8, 1, 24) == 8
    for value in (8.5, float("nan"), float("inf"), 0.0, 25.0, True, "8", None):
        assert_refused(lambda v=value: checks.check_unused_int("num_qps_per_rank", v, 1, 24), ["num_qps_per_rank="])
    assert_refused(lambda: checks.check_int("num_experts", 8.0, 1, 24), ["num_experts=8.0"])


def test_checks_aligned_copies_only_what_is_not() -> None:
    storage = torch.arange(64, dtype=torch.bfloat16)
    assert storage.data_ptr() % 16 == 0
    assert checks.aligned(storage[8:]).data_ptr() == storage[8:].data_ptr()
    moved = checks.aligned(storage[3:])
    assert moved.data_ptr() % 16 == 0 and torch.equal(moved, storage[3:])


def test_checks_row_ids_widens_and_keeps() -> None:
    ids = torch.tensor([[0, -1], [3, 2]])
    assert checks.row_ids("topk_idx", ids, 4) is ids
    widened = checks.row_ids("topk_idx", ids.int(), 4)
    assert widened.dtype == torch.int64 and torch.equal(widened, ids)
    assert checks.row_ids("topk_idx", torch.empty(0, 2, dtype=torch.int64), 4).shape == (0, 2)
    assert checks.row_ids("topk_idx", torch.tensor([[99, -7]])).tolist() == [[99, -7]]  # no number of experts: any id


@pytest.mark.parametrize(
    "value, words",
    [
        (torch.tensor([[0, 4]]), ["ids from 0 to 4", "first 4 at [0, 1]", "-1 (not routed) or 0 to 3"]),
        (torch.tensor([[-2, 3]]), ["ids from -2 to 3", "first -2 at [0, 0]"]),
        (torch.empty(5, 0, dtype=torch.int64), ["(5, 0)", f"1 to {_native.MAX_TOPK} columns"]),
        (torch.zeros(1, _native.MAX_TOPK + 1, dtype=torch.int64), [f"(1, {_native.MAX_TOPK + 1})"]),
        (torch.zeros(1, 1, dtype=torch.int16), ["torch.int16", "torch.int64 or torch.int32"]),
    ],
)
def test_checks_row_ids_refuses(value: torch.Tensor, words: list[str]) -> None:
    assert_refused(lambda: checks.row_ids("topk_idx", value, 4), ["topk_idx=", *words])


def test_checks_row_ids_takes_the_largest_topk() -> None:
    assert checks.row_ids("topk_idx", torch.zeros(1, _native.MAX_TOPK, dtype=torch.int64), 4).shape[1] == 32


def test_checks_weights() -> None:
    value = torch.rand(3, 2)
    assert checks.weights("topk_weights", value, (3, 2)) is value
    assert_refused(
        lambda: checks.weights("topk_weights", value, (2, 3)),
        ["topk_weights=a tensor of shape (3, 2), torch.float32", "of shape (2, 3)"],
    )
    assert_refused(lambda: checks.weights("topk_weights", value.double(), (3, 2)), ["float64", "torch.float32"])
    assert_refused(lambda: checks.weights("topk_weights", None, (3, 2)), ["topk_weights=None"])


def test_checks_vector() -> None:
    value = torch.zeros(4, dtype=torch.int32)
    assert checks.check_vector("stats", value, torch.int32, 4) is value
    assert checks.check_vector("stats", None, torch.int32, 4) is None
    for bad, shown in (
        (torch.zeros(3, dtype=torch.int32), "(3,), torch.int32"),
        (torch.zeros(4), "(4,), torch.float32"),
        (torch.zeros(2, 2, dtype=torch.int32), "(2, 2)"),
        (torch.zeros(8, dtype=torch.int32)[::2], "(4,), torch.int32, strides (2,)"),
        ([0, 0, 0, 0], "[0, 0, 0, 0]"),
    ):
        wanted = ["stats=", shown, "a contiguous torch.int32 tensor of 4 elements, or None"]
        assert_refused(lambda bad=bad: checks.check_vector("stats", bad, torch.int32, 4), wanted)


@pytest.mark.parametrize("value", [True, False, None, 1.0, "3", 0, 9, -(1 << 70), torch.tensor(2.5), torch.zeros(3)])
def test_checks_whole_refuses_what_is_no_number_in_range(value: Any) -> None:
    assert_refused(
        lambda: checks.check_int("num_x", value, 1, 8, "Ask for fewer."), ["num_x=", "1 to 8", "Ask for fewer."]
    )
    assert_refused(lambda: checks.check_int("num_x", torch.empty((), device="meta"), 1, 8), ["num_x=", "1 to 8"])


@pytest.mark.parametrize("value", [1, 8, torch.tensor(5)])
def test_checks_whole_takes_both_ends_and_other_integers(value: Any) -> None:
    assert checks.check_int("num_x", value, 1, 8) == int(value)


def test_checks_sparse_tensors_are_refused() -> None:
    sparse = torch.zeros(3, 4).to_sparse()
    assert_refused(
        lambda: checks.check_matrix("x", sparse, (torch.float32,)),
        ["x=a tensor of shape (3, 4), torch.float32, torch.sparse_coo", "contiguous"],
    )
    assert_refused(
        lambda: checks.check_vector("v", torch.zeros(4).to_sparse(), torch.float32, 4), ["v=", "sparse", "contiguous"]
    )


@pytest.mark.parametrize("value", [None, "no", 1.0, torch.tensor([]), torch.tensor(True), []])
def test_checks_flag_refuses_what_is_neither(value: Any) -> None:
    assert_refused(lambda: checks.check_bool("use_x", value), ["use_x=", "True or False"])


def test_checks_outputs_are_apart_from_what_is_read() -> None:
    memory = torch.zeros(8, 16, dtype=torch.bfloat16)
    out, rest = memory[2:4], memory[4:]
    assert checks.check_out("out", out, (2, 16), torch.bfloat16, x=rest, y=memory[:2], none=None, text="no") is out
    checks.refuse_overlap("out", out, x=memory[:0], y=memory[3:3])  # nothing is in them
    checks.refuse_overlap("out", memory[:0], x=memory)
    every_other = memory.view(4, 32)[:, 16:]  # its last byte is memory's last, its first that of row 1
    for name, read in (("x", memory), ("x", memory[3:]), ("x", memory[:3]), ("x", every_other), ("x[1]", out)):
        words = ["out=a tensor that overlaps " + name, "memory of its own, which the call does not read"]
        assert_refused(lambda n=name, r=read: checks.check_out("out", out, (2, 16), torch.bfloat16, **{n: r}), words)
    for bad, words in (
        (out.float(), ["out=", "torch.bfloat16"]),
        (out[:1], ["out=", "of shape (2, 16)"]),
        (memory.view(-1)[1:33].view(2, 16), ["out=", "on a 16-byte border"]),
    ):
        assert_refused(lambda b=bad: checks.check_out("out", b, (2, 16), torch.bfloat16), words)


def test_checks_flag_takes_booleans_and_numbers() -> None:
    assert [checks.check_bool("use_x", value) for value in (True, False, 1, 0)] == [True, False, True, False]


@pytest.mark.parametrize("value", ["now", 0, False, torch.zeros(1), [Buffer.capture()], EventOverlap("now")])
def test_checks_event_refuses_what_is_none(value: Any) -> None:
    assert_refused(lambda: checks.event("previous_event", value), ["previous_event=", "None, or an event such as cap"])


def test_checks_event_takes_events_bare_and_wrapped() -> None:
    bare = EventHandle()
    for value in (bare, EventOverlap(bare)):
        assert checks.event("e", value) is bare
    assert checks.event("e", None) is None
    assert checks.event("e", EventOverlap()) is None  # of a synchronous call
