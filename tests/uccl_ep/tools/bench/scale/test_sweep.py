"""Ours beside upstream, healthy and disturbed: rows are whole, and disturbances do what they must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.uccl_ep.tools.bench.scale.sizes import demand
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.scale import calibrate
from uccl_ep.tools.bench.scale.phase import Outcome
from uccl_ep.tools.bench.scale.platforms import PLATFORMS
from uccl_ep.tools.bench.scale.sweep import (
    DISTURBANCES,
    HEALTHY,
    SIDES,
    ScaleOptions,
    affected_ranks,
    conditions_for,
    scale,
    who_waits,
)

SMALL = ScaleOptions(
    platforms=("p5en",), ranks=(16,), disturbed=(32,), tokens=64, throughput_tokens=64, hidden=2048, experts=64
)


@pytest.fixture(scope="module")
def result() -> Any:
    """One small run, without the calibration's rows."""
    with pytest.MonkeyPatch.context() as patch:
        some = [r for r in calibrate.ROWS if r.platform == "p5en" and r.mode == "low-latency" and r.ranks == 16]
        patch.setattr(calibrate, "ROWS", some[:2])
        steps: list[int] = []
        found = scale(SMALL, lambda: steps.append(1))
        assert len(steps) == SMALL.steps
    return found


def test_sweep_has_every_row(result: Any) -> None:
    expected = {
        (mode, ranks, kind, side, phase)
        for ranks, kinds in ((16, (HEALTHY,)), (32, (HEALTHY, *DISTURBANCES)))
        for kind in kinds
        for mode, sides in SIDES.items()
        for side in sides
        for phase in ("dispatch", "combine")
    }
    assert {(r["mode"], r["ranks"], r["condition"], r["side"], r["phase"]) for r in result["rows"]} == expected
    assert len(result["rows"]) == len(expected) and result["simulated"] is True
    assert len(result["calibration"]) == 2 and set(result["constants"]) == {"p5en"}


def test_sweep_ratios_are_of_rounds(result: Any) -> None:
    entry = next(r for r in result["ratios"] if r["mode"] == "low-latency" and r["ranks"] == 32)
    times = {(r["side"], r["phase"]): r["us"] for r in result["rows"]
             if (r["mode"], r["ranks"], r["condition"]) == ("low-latency", 32, HEALTHY)}  # fmt: skip
    assert entry["upstream_us"] == pytest.approx(times["upstream", "dispatch"] + times["upstream", "combine"])
    assert entry["ours_ratio"] == pytest.approx(entry["ours_us"] / entry["upstream_us"])
    assert entry["node_us"] == pytest.approx(times["ours", "dispatch"] + times["ours, by node", "combine"])
    assert times["ours, by node", "dispatch"] == times["ours", "dispatch"]
    assert all("node_us" not in r for r in result["ratios"] if r["mode"] == "throughput")


def test_sweep_disturbances_cost_something(result: Any) -> None:
    for row in result["disturbances"]:
        assert row["us"] > 0 and 0 <= row["blamed"] <= 1 and 0 <= row["others_delayed"] <= 1
        if row["condition"] == "slow rank":
            # All wait for it, also in the phase that suffers less.
            assert row["cost_us"] == pytest.approx(SMALL.late_us, rel=0.2) and row["times_healthy"] > 1.5
            assert row["others_us"] > 0.5 * SMALL.late_us
        if row["condition"] == "slow rail":
            # Nothing where a pair of ranks is the limit and not the NIC; never a gain, and the rail's own ranks lead.
            assert row["cost_us"] >= 0 and row["affected_us"] >= row["others_us"] - 1e-6
    rail = [row for row in result["disturbances"] if row["condition"] == "slow rail"]
    assert any(row["affected_us"] > 1 for row in rail)


def test_sweep_who_waits_by_hand() -> None:
    def outcome(done: list[float], last: list[int]) -> Outcome:
        return Outcome(np.asarray(done), np.asarray(last), 0, 0, 0, 0)

    found = who_waits(outcome([20, 10, 16, 11], [1, 0, 0, 2]), outcome([10, 10, 10, 10], [1, 0, 0, 2]), np.asarray([0]))
    assert found == {
        "cost_us": 10, "affected_us": 10, "others_us": pytest.approx(7 / 3), "others_delayed": pytest.approx(2 / 3),
        "blamed": 0.5,
    }  # fmt: skip
    everyone = who_waits(outcome([20, 20], [0, 0]), outcome([10, 10], [0, 0]), np.asarray([0, 1]))
    assert everyone["others_us"] == 0 and everyone["others_delayed"] == 0


def test_sweep_conditions() -> None:
    one = PLATFORMS["p5en"]
    rail = conditions_for("slow rail", one, 16, 9.0)
    assert np.flatnonzero((rail.nic_share == 0.5).all(axis=1)).tolist() == [0, 8] and not rail.late_us.any()
    assert conditions_for("slow rank", one, 16, 9.0).late_us.tolist() == [9.0] + [0.0] * 15
    assert (conditions_for("incast", one, 16, 9.0).nic_share == 1).all()
    jobs = demand(16, 8, kind="skewed")
    assert affected_ranks("slow rail", one, jobs).tolist() == [0, 8]
    assert affected_ranks("slow rank", one, jobs).tolist() == [0]
    node = affected_ranks("incast", one, jobs)
    assert jobs.crossing[:, node].sum() * 2 >= jobs.crossing.sum()


@pytest.mark.parametrize("change, words", [
    ({"platforms": ("p4d",)}, "--platform"), ({"modes": ("both",)}, "--mode"), ({"ranks": (1,)}, "--ranks"),
    ({"disturbed": (5000,)}, "--disturbed"), ({"tokens": 0}, "--tokens"), ({"throughput_tokens": 1 << 17}, "--through"),
    ({"experts": 0}, "--experts"), ({"topk": 33}, "--topk"), ({"hidden": 100}, "--hidden"),
    ({"row_format": "nvfp4"}, "--format"), ({"late_us": -1.0}, "--late-us"),
])  # fmt: skip
def test_sweep_refuses(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        replace(ScaleOptions(), **change).check()
    ScaleOptions().check()
