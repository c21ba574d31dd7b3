"""The layouts as Python sees them: the arithmetic of the C++ structs, at their limits too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import _native
from uccl_ep.sizes import round_up

BF16, FP8, UE8M0 = range(3)


def made(kind: Any, **fields: int) -> Any:
    layout = kind()
    for name, value in fields.items():
        setattr(layout, name, value)
        assert getattr(layout, name) == value
    return layout


@given(ranks=st.integers(1, 4096), channels=st.integers(1, 64))
def test_layouts_control_words_lie_apart_and_inside(ranks: int, channels: int) -> None:
    control = made(_native.ControlLayout, num_ranks=ranks, num_channels=channels)
    words = [control.departed(r) for r in (0, ranks - 1)] + [
        control.progress(p, r) for p in range(3) for r in (0, ranks - 1)
    ]
    words += [control.flag_time(r) for r in (0, ranks - 1)]
    assert control.bytes() % 4096 == 0
    assert all(word % 8 == 0 and 256 <= word <= control.bytes() - 8 for word in words)
    assert len(set(words)) == len(words) - (5 if ranks == 1 else 0)


@given(ranks=st.integers(1, 300), channels=st.integers(1, 64), readers=st.integers(1, 64))
def test_layouts_signals_grow_with_each_size(ranks: int, channels: int, readers: int) -> None:
    def size(r: int, c: int, m: int) -> int:
        return int(made(_native.SignalLayout, num_ranks=r, num_channels=c, max_readers=m).bytes())

    assert size(ranks, channels, readers) % 4096 == 0
    assert size(ranks + 300, channels, readers) > size(ranks, channels, readers)
    assert size(ranks, channels + 64, readers + 64) > size(ranks, channels, readers)


@pytest.mark.parametrize(
    "hidden, wanted", [(128, (256, 144, 144)), (7168, (14336, 7392, 7232)), (512, (1024, 528, 528))]
)
def test_layouts_row_bytes(hidden: int, wanted: tuple[int, ...]) -> None:
    assert tuple(_native.LowLatencyLayout.row_bytes(hidden, f) for f in (BF16, FP8, UE8M0)) == wanted


@given(
    tokens=st.integers(1, 65536), hidden=st.integers(1, 1024).map(lambda h: h * 8), topk=st.integers(1, 32),
    hosted=st.integers(0, 600), staging=st.integers(0, 256), ranks=st.integers(1, 4096),
)  # fmt: skip
def test_layouts_low_latency_parts_add_up(
    tokens: int, hidden: int, topk: int, hosted: int, staging: int, ranks: int
) -> None:
    layout = made(
        _native.LowLatencyLayout, max_tokens=tokens, hidden=hidden, max_topk=topk, num_landing_slots=hosted,
        staging_rows=staging, num_ranks=ranks, base=4096,
    )  # fmt: skip
    assert layout.combine_row_bytes() == round_up(16 + 2 * hidden, 16)
    assert layout.slots_bytes() == round_up(tokens * topk * layout.combine_row_bytes(), 128)
    assert layout.staging_bytes() == round_up(staging * layout.combine_row_bytes(), 128)
    rows = round_up(tokens * _native.LowLatencyLayout.row_bytes(hidden, BF16), 128)
    routing = round_up(round_up(16 + 2 * tokens * topk, 16), 128)
    assert layout.source_bytes() == rows + routing
    headers = round_up(ranks * 3 * 48, 128)  # an ExpectHeader, its identity with it
    assert layout.set_bytes() == (1 + hosted) * layout.source_bytes() + layout.slots_bytes() + headers
    assert layout.bytes() == 2 * layout.set_bytes() + layout.staging_bytes()


def test_layouts_row_shape() -> None:
    shape = made(_native.RowShape, payload_bytes=256, scale_bytes=8, topk=3, has_ids=1, has_weights=1)
    whole = shape.bytes()
    assert whole % 16 == 0 and whole >= 256 + 8 + 3 * 4 + 3 * 4
    shape.has_ids = shape.has_weights = 0
    assert 256 + 8 <= shape.bytes() < whole


@given(unit=st.integers(0, 1 << 22), channels=st.integers(1, 64), row=st.integers(1, 4096).map(lambda r: r * 16))
def test_layouts_stream_geometry_stays_inside_its_unit(unit: int, channels: int, row: int) -> None:
    g = _native.StreamGeometry.make(unit, channels, row)
    assert (g.unit_bytes, g.num_channels, g.row_bytes) == (unit, channels, row)
    if g.num_slots:
        assert g.rows_per_chunk >= 1
        assert channels * g.num_slots * g.rows_per_chunk * row <= unit
    else:
        assert unit < channels * (8 * row + 128)  # refused only where eight rows do not fit
    same = _native.StreamGeometry.make(unit, channels, row)
    assert g == same and not (g != same)
    assert g != _native.StreamGeometry.make(unit, channels, row + 16)
    assert g != None and g != 5  # noqa: E711 - the operator itself is the subject


def test_layouts_throughput_units() -> None:
    def layout(**fields: int) -> Any:
        base = {"num_ranks": 4, "num_cells": 1, "num_landing_slots": 0, "max_readers": 4, "max_local_experts": 64}
        return made(_native.ThroughputLayout, **{**base, "base": 8192, "unit_bytes": 1 << 16, **fields})

    one = layout()
    two = layout(num_cells=2, num_landing_slots=2)
    assert two.num_units() > one.num_units() >= 1
    for each in (one, two):
        assert each.bytes() >= each.num_units() * (1 << 16)
        bigger = layout(num_cells=each.num_cells, num_landing_slots=each.num_landing_slots, unit_bytes=1 << 17)
        assert bigger.bytes() - each.bytes() == each.num_units() * (1 << 16)
