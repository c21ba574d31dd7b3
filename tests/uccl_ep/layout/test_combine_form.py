"""Which form a combine takes, and the reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.group.topology import split_into_nodes
from uccl_ep.layout.combine_form import FORMS, CombineForm, by_model, form_of_call, room_for_sums
from uccl_ep.layout.combine_formats import RowFormat
from uccl_ep.settings import Settings, describe

NODES = split_into_nodes(["host"] * 4, 2, 64)


def with_form(form: str) -> Settings:
    return replace(Settings(), low_latency_combine=form)


def test_combine_form_room_is_made_where_rows_can_be_summed() -> None:
    direct = room_for_sums(with_form("direct"), NODES)
    assert not direct.reduces and direct.name == "direct" and "UCCL_EP_LOW_LATENCY_COMBINE=direct" in direct.reason
    assert room_for_sums(Settings(), NODES) == direct  # the default
    for form in ("node", "auto"):
        room = room_for_sums(with_form(form), NODES)
        assert room.reduces and room.name == "node" and form in room.reason
        alone = room_for_sums(with_form(form), split_into_nodes(["host"] * 4, 4, 64))
        assert not alone.reduces and "one node" in alone.reason
        apart = room_for_sums(with_form(form), replace(NODES, apart=True))
        assert not apart.reduces and "enable_shrink" in apart.reason


def test_combine_form_of_a_call_with_encoded_rows_needs_a_second_row() -> None:
    node, direct = CombineForm(True, "asked for"), CombineForm(False, "asked for")
    assert form_of_call(node, RowFormat.BF16, 1) == node
    assert form_of_call(direct, RowFormat.BF16, 1) == direct
    for rows, name in ((RowFormat.LOGFMT, "logfmt"), (RowFormat.FP8, "fp8"), (RowFormat.NVFP4_ROW, "nvfp4")):
        assert form_of_call(node, rows, 2) == node
        form = form_of_call(node, rows, 1)
        assert not form.reduces and name in form.reason and "UCCL_EP_LOW_LATENCY_TOPK=1" in form.reason
        assert form_of_call(direct, rows, 1) == form_of_call(direct, rows, 2) == direct


@pytest.mark.parametrize("family, expected", [("verbs", True), ("efa", True), ("tcp", True)])
def test_combine_form_by_model_of_the_usual_job(family: str, expected: bool) -> None:
    form = by_model((128, 7168, 256), split_into_nodes(["host"] * 32, 8, 64), 8, family)
    assert form.reduces is expected
    assert "top-8 of 256, 128 tokens x 7168" in form.reason and family in form.reason
    assert [line.split(":")[0] for line in form.over] == ["direct", "node"] and "us = latency" in form.over[0]


def test_combine_form_by_model_of_a_call_with_few_rows_is_direct() -> None:
    """Another step of the network costs more than what it saves."""
    assert not by_model((1, 128, 4), NODES, 1, "verbs").reduces


def test_combine_form_settings_allow_these() -> None:
    row = next(v for v in describe() if v.name == "UCCL_EP_LOW_LATENCY_COMBINE")
    assert row.allowed == " | ".join(FORMS) and row.default == "direct"
