"""Columns go whole, in their order; numbers have the unit of their head."""

from __future__ import annotations

import pytest

from tests.uccl_ep.tools.top.jobs import text_of
from uccl_ep.tools.top.columns import Column, Line, fitted, mebibytes

COLUMNS = (Column("rank"), Column("host", goes=1, left=True), Column("out", "MiB/s", goes=2), Column("waits"))
LINES = [Line(["0", "alpha", "1.5", "30"]), Line(["10", "a", "1536", "4"], "dim")]


def shown(width: int | None) -> list[str]:
    return [line.rstrip() for line in text_of(fitted("t", COLUMNS, LINES, width), width or 200).splitlines()]


def test_columns_all_have_room() -> None:
    lines = shown(None)
    assert [line.split() for line in lines if "alpha" in line] == [["0", "alpha", "1.5", "30"]]
    assert lines == shown(34) and not [line for line in lines if "no room" in line]


def test_columns_go_in_their_order() -> None:
    widths = [next((w for w in range(80, 0, -1) if f"no room for: {names}" in " ".join(shown(w))), 0) for names in
              ("host (", "host, out (")]  # fmt: skip
    assert 80 > widths[0] > widths[1] > 0
    for width in range(15, 80):
        assert any(line.split()[:1] == ["10"] and line.split()[-1] == "4" for line in shown(width)), width


@pytest.mark.parametrize(
    ("num_bytes", "words"), [(0, "0"), (4 << 10, "0.004"), (5 << 19, "2.5"), (1 << 20, "1.0"), (3 << 29, "1536")]
)
def test_columns_mebibytes(num_bytes: int, words: str) -> None:
    assert mebibytes(num_bytes) == words
