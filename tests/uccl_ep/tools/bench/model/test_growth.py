"""Fits, and that everything that grows faster than linear is explained."""

from __future__ import annotations

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.model.growth import (
    AXES,
    EXPLANATIONS,
    GrowthShape,
    checked_axes,
    fit_exponent,
    fitted,
    growth,
    judge,
    shape_at,
    steepest,
)

SMALL = GrowthShape(tokens=32, hidden=1024, topk=4, ranks=32, nodes=4, experts=64)


def test_growth_fits_powers() -> None:
    sizes = [1, 2, 4, 8]
    assert fit_exponent(sizes, [3 * s**2 for s in sizes]) == pytest.approx(2.0)
    assert fit_exponent(sizes, [5, 5, 5, 5]) == pytest.approx(0.0)
    assert fit_exponent(sizes, [0, 2, 4, 8]) == pytest.approx(1.0)  # nothing crosses at first
    assert fit_exponent(sizes, [0, 0, 0, 8]) is None and fit_exponent([2, 2], [1, 3]) is None


def test_growth_steepest_is_between_neighbours() -> None:
    exponent, begin, end = steepest([1, 2, 4], [1, 8, 16]) or (0, 0, 0)
    assert (exponent, begin, end) == (pytest.approx(3.0), 1, 2)
    assert steepest([1, 2], [0, 8]) is None


def test_growth_judges() -> None:
    words = [judge("tokens", "x", exponent)["growth"] for exponent in (1.0, 0.6, 0.0, None, 2.0)]
    assert words == ["linear", "less than linear", "does not grow", "nothing to fit", "worse than linear"]
    assert judge("tokens", "x", 1.0)["reason"] == "" and judge("tokens", "x", 2.0)["reason"] == "unexplained"
    assert "break up" in judge("nodes", "low latency: dispatch messages", 1.7)["reason"]
    partly = judge("ranks", "throughput: dispatch bytes", 0.7, (1.5, 2, 4))
    assert partly["growth"] == "less than linear; 1.50 at 2 to 4" and "top-k" in partly["reason"]
    assert judge("tokens", "x", 0.7, (1.5, 2, 4))["reason"] == "unexplained"
    assert judge("tokens", "x", 0.7, (1.1, 2, 4))["reason"] == ""


def test_growth_shapes_change_one_size() -> None:
    assert shape_at(SMALL, "topk", 2) == GrowthShape(32, 1024, 2, 32, 4, 64)
    assert shape_at(SMALL, "ranks", 128).nodes == 16  # nodes keep their size
    assert shape_at(SMALL, "nodes", 8).ranks == 32


def test_growth_leaves_nothing_unexplained() -> None:
    found = {entry["axis"]: entry for entry in growth(SMALL, ("hidden", "topk", "nodes"))}
    for entry in found.values():
        for name, fit in entry["fits"].items():
            assert fit["reason"] != "unexplained", (entry["axis"], name, fit)
    hidden = found["hidden"]["fits"]
    assert hidden["low latency: combine bytes"]["growth"] == "linear"
    assert hidden["low latency: combine messages"]["growth"] == "does not grow"
    assert found["topk"]["fits"]["low latency: dispatch bytes"]["growth"].startswith("less than linear")
    assert found["topk"]["fits"]["low latency: memory"]["growth"] == "does not grow"
    values = found["nodes"]["values"]["low latency: combine bytes"]
    assert values == sorted(values) and len(values) == len(found["nodes"]["sizes"])


def test_growth_explains_only_what_there_is() -> None:
    counted = set(growth(SMALL, ("hidden",))[0]["values"])
    timed = {f"{mode}: {part} time" for mode in ("low latency", "throughput") for part in ("dispatch", "combine")}
    for axes, table in EXPLANATIONS.items():
        assert set(axes) <= set(AXES) and set(table) <= counted | timed


def test_growth_of_measured_values_is_not_judged_between_two_sizes() -> None:
    columns = [{"x": 1.0}, {"x": 1.1}, {"x": 3.0}]
    assert fitted("tokens", SMALL, (1, 4, 8), columns)["fits"]["x"]["reason"] == "unexplained"
    assert fitted("tokens", SMALL, (1, 4, 8), columns, counted=False)["fits"]["x"]["growth"] == "less than linear"


def test_growth_refuses_other_axes() -> None:
    assert checked_axes(["ranks"]) == ("ranks",)
    with pytest.raises(InvalidArgument, match="--axis"):
        checked_axes(["weather"])
