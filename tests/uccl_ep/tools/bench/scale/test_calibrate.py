"""Upstream's traffic on simulated testbeds beside what was published: the whole table, printed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from uccl_ep.tools.bench.scale.calibrate import calibrate, rows_of, simulated_us, summary
from uccl_ep.tools.bench.scale.platforms import PLATFORMS
from uccl_ep.tools.bench.scale.published import ROWS, TABLE, Row
from uccl_ep.tools.bench.scale.report import calibration_tables


def test_calibrate_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [r for r in ROWS if r.platform == "mi300x-cx7" and r.mode == "low-latency" and r.ranks <= 16]
    monkeypatch.setattr("uccl_ep.tools.bench.scale.calibrate.ROWS", some)
    steps: list[int] = []
    found = calibrate([PLATFORMS["mi300x-cx7"]], advance=lambda: steps.append(1))
    assert len(found) == len(steps) == len(some) == 4
    for row in found:
        assert row["error"] == pytest.approx(row["simulated_us"] / row["published_us"] - 1)
        assert row["fitted"] and row["within"] and abs(row["error"]) < 0.1
    assert rows_of(["p5en"]) == [] and rows_of(["mi300x-cx7"], ("throughput",)) == []


def test_calibrate_a_measurement_of_both_phases_is_their_sum() -> None:
    b200 = PLATFORMS["p6-b200"]
    parts = [Row("p6-b200", "low-latency", 16, phase, "fp8", 1.0) for phase in ("dispatch", "combine", "both")]
    dispatch, combine, both = (simulated_us(row, b200) for row in parts)
    assert both == pytest.approx(dispatch + combine)


def test_calibrate_summary_tells_fitted_from_predicted() -> None:
    def row(error: float, fitted: bool, of: str = TABLE) -> dict[str, object]:
        return {"error": error, "within": abs(error) <= 0.2, "fitted": fitted, "of": of}

    lines = summary([row(0.1, True), row(-0.3, False), row(0.1, False), row(0.5, False, "blog")])
    assert [(line["count"], line["within"], line["median_error"]) for line in lines] == [
        (1, 1, 0.1), (2, 1, pytest.approx(0.2)), (1, 0, 0.5),
    ]  # fmt: skip
    assert "predicted" in lines[1]["rows"] and len(summary([row(0.1, True)])) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calibrate_every_published_row() -> None:
    """Prints the table (pytest -s). Rows of the table that are off by more than 20 % are named here, so that neither
    a change of the model nor of a constant can add one in silence."""
    found = calibrate(list(PLATFORMS.values()))
    text = io.StringIO()
    Console(file=text, width=100).print(*calibration_tables(found))
    print(text.getvalue(), *summary(found), sep="\n")
    assert len(found) == len(ROWS)
    outside = {
        (r["platform"], r["mode"], r["ranks"], r["phase"]) for r in found if r["of"] == TABLE and not r["within"]
    }
    assert outside == OUTSIDE
    predicted = next(line for line in summary(found) if line["rows"].startswith("table, predicted"))
    assert predicted["median_error"] < 0.08


OUTSIDE = {
    ("p6-b200", "throughput", 8, "combine"),  # a fixed cost of fp8 dispatch that no constant here stands for
    ("p6-b200", "low-latency", 32, "combine"),
}
