"""The search finds constants that made the rows; the kept constants are what it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.tools.bench.scale import fit as module
from uccl_ep.tools.bench.scale.calibrate import simulated_us
from uccl_ep.tools.bench.scale.fit import CONSTANTS, constant, fit, fitted_rows, loss, with_constant
from uccl_ep.tools.bench.scale.platforms import PLATFORMS, Platform
from uccl_ep.tools.bench.scale.published import Row, is_fitted


def test_fit_names_constants_of_every_testbed() -> None:
    assert CONSTANTS.keys() == PLATFORMS.keys()
    for name, one in PLATFORMS.items():
        assert len(CONSTANTS[name]) < len(fitted_rows(one))  # fewer constants than rows
        for key in CONSTANTS[name]:
            assert constant(with_constant(one, key, 12.5), key) == 12.5
            assert with_constant(one, key, constant(one, key)) == one
        assert all(is_fitted(row, one.ranks_per_node) for row in fitted_rows(one))


def test_fit_finds_what_made_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows made by the simulation with other constants: the search must come back to these."""
    kept = PLATFORMS["mi300x-cx7"]
    shapes = [("low-latency", 16, "dispatch"), ("low-latency", 16, "combine"), ("low-latency", 8, "dispatch")]
    rows = [Row(kept.name, *shape, "fp8", 1.0) for shape in shapes]
    truth = with_constant(with_constant(kept, "gpu.start_us", 60.0), "gpu.node_gb_per_s", 150.0)
    made = [replace(row, us=simulated_us(row, truth)) for row in rows]
    monkeypatch.setattr(module, "ROWS", made)
    monkeypatch.setitem(CONSTANTS, kept.name, ("gpu.start_us", "gpu.node_gb_per_s"))
    trials: list[int] = []
    found = fit(kept, lambda: trials.append(1))
    assert constant(found, "gpu.start_us") == pytest.approx(60, rel=0.05)
    assert constant(found, "gpu.node_gb_per_s") == pytest.approx(150, rel=0.1)
    assert loss(found, made) < 1e-3 < loss(kept, made) and trials


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PLATFORMS)
def test_fit_the_kept_constants_are_what_it_finds(name: str) -> None:
    kept: Platform = PLATFORMS[name]
    found = fit(kept)
    rows = fitted_rows(kept)
    print(name, {key: (constant(kept, key), constant(found, key)) for key in CONSTANTS[name]})
    # Not the constants themselves: two of them can make up for each other. The kept ones must be as good.
    assert loss(kept, rows) <= loss(found, rows) + 0.002 * len(rows)
