"""The table of errors and bytes: its sums without any rounding, its bytes, and the order of formats in both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import combine_errors
from bench.combine_errors import Row


@pytest.fixture(scope="module", name="rows")
def measured() -> list[Row]:
    return combine_errors.measure(512)


def of(rows: list[Row], name: str, form: str) -> Row:
    return next(row for row in rows if (row.rows, row.form) == (name, form))


def test_combine_errors_are_those_of_sums_that_nothing_rounds() -> None:
    """Values of few bits: bf16 rows and their sums are exact, and so is every error 0."""
    rows = [torch.full_like(made, 0.5) for made in combine_errors.outputs("normal", 1, 512)]
    by_form = {(name, form): error for name, form, error in combine_errors.errors(rows, 1)}
    assert by_form["bf16", "direct"].worst == by_form["mxfp8", "node"].worst == 0


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("tail", combine_errors.TAILS)
@pytest.mark.parametrize("topk", combine_errors.TOPKS)
def test_combine_errors_grow_as_rows_shrink(rows: list[Row], tail: str, topk: int) -> None:
    for form in ("direct", "node"):
        bf16, fp8, mxfp8, nvfp4 = (of(rows, n, form).errors[tail][topk] for n in ("bf16", "fp8", "mxfp8", "nvfp4"))
        assert (bf16.rms > 1e-4) == (topk > 1)  # the row of one expert, whose weight is 1, is the sum
        assert bf16.rms < 0.004 < fp8.rms < 0.04 < nvfp4.rms < 0.15
        assert 0.5 < mxfp8.rms / fp8.rms < 1.5
        for error in (fp8, mxfp8, nvfp4):
            assert error.rms < error.worst < 2


def test_combine_errors_count_the_bytes_of_32_ranks(rows: list[Row]) -> None:
    assert round(of(rows, "bf16", "direct").wire_bytes / 1000, 1) == 86.4
    assert round(of(rows, "bf16", "node").wire_bytes / 1000, 1) == 39.1
    for form in ("direct", "node"):
        sizes = [of(rows, name, form).wire_bytes for name in ("bf16", "logfmt", "fp8", "nvfp4")]
        assert sizes == sorted(sizes, reverse=True)
        assert of(rows, "mxfp8", form).wire_bytes == of(rows, "fp8", form).wire_bytes


def test_combine_errors_table_has_a_line_for_each(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = combine_errors.table(rows).splitlines()
    assert len(lines) == 2 + 10 and len({line.count("|") for line in lines}) == 1
    monkeypatch.setattr(combine_errors, "measure", lambda: rows)
    assert combine_errors.main(["--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert {row["rows"] for row in found["rows"]} == {"bf16", "logfmt", "fp8", "mxfp8", "nvfp4"}
    assert found["rows"][0]["errors"]["normal"]["8"]["rms"] == rows[0].errors["normal"][8].rms
