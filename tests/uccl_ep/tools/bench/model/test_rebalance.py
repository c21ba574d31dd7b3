"""`uccl-ep bench rebalance`: what is refused, placements from files, and what the defaults come to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.uccl_ep.ranks import assert_refused
from uccl_ep.tools.bench.model.rebalance import RebalanceOptions, rebalance

SMALL = RebalanceOptions(ranks=4, ranks_per_node=2, tokens=16, hidden=512, topk=2, experts=8, redundant=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(SMALL, redundant=3), ["--redundant", "equally; got 3."]),
        (replace(SMALL, redundant=-4), ["--redundant", "equally; got -4."]),
        (replace(SMALL, redundant=28), ["--redundant", "equally; got 28."]),
        (replace(SMALL, row_us=-1.0), ["--row-us", "0 to 1e6"]),
        (replace(SMALL, mode="both"), ["--mode"]),
        (replace(SMALL, network="x"), ["--network"]),
        (replace(SMALL, before=Path("nowhere.json")), ["--before", "a JSON list", "No such file"]),
    ],
)
def test_rebalance_refuses(options: RebalanceOptions, words: list[str]) -> None:
    assert_refused(lambda: rebalance(options), words)


@pytest.mark.parametrize("mode", ["low-latency", "throughput"])
def test_rebalance_balances_what_is_skewed(mode: str) -> None:
    found = rebalance(replace(SMALL, mode=mode, row_us=1.0))
    assert found["slots"] == 12 and found["expert_bytes"] == 3 * 512 * 2048
    before, after = found["before"], found["after"]
    assert before["mean_rows"] == after["mean_rows"] == 16 * 2 == 4 * 16 * 2 / 4
    assert after["busiest_rows"] < before["busiest_rows"] and after["us"] < before["us"]
    assert found["saved_us"] == pytest.approx(before["us"] - after["us"])
    moved = found["moves"]
    total = moved["inside_bytes"] + moved["between_bytes"]
    assert moved["copies"] * found["expert_bytes"] <= total <= 2 * moved["copies"] * found["expert_bytes"]
    assert found["pays_after"] >= 1


def test_rebalance_of_placements_in_files(tmp_path: Path) -> None:
    same = tmp_path / "same.json"
    same.write_text(json.dumps([*range(8)]))
    options = replace(SMALL, redundant=0, before=same, after=same)
    found = rebalance(options)
    assert found["moves"]["copies"] == 0 and found["move_us"] == 0 and found["pays_after"] is None
    assert found["before"] == found["after"]
    assert found["options"]["before"] == str(same)
    for wrong in ("[0, 1, 2.5]", '{"a": 1}', "[0,"):
        same.write_text(wrong)
        assert_refused(lambda: rebalance(options), ["--before", "a JSON list"])
    same.write_text(json.dumps([0, 1, 2, 3, 4, 5, 6, 6]))
    assert_refused(lambda: rebalance(options), ["--before", "no slot for expert 7"])
