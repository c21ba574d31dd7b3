"""The four commands: options arrive, help teaches, output is JSON or a table, files are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.tools.bench.model.compare import CompareOptions
from uccl_ep.tools.bench.model.memory import MemoryOptions

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["bench", *words], env=WIDE)
    assert done.exit_code == 0, done.output
    return re.sub(r"\x1b\[[0-9;]*m", "", done.output)


@pytest.mark.parametrize("name, words", [
    ("bytes", ("uccl-ep bench bytes", "--network", "group-limited", "reduced in the node")),
    ("memory", ("uccl-ep bench memory", "enable_shrink", "--ranks-per-node")),
    ("rebalance", ("uccl-ep bench rebalance", "--redundant", "EPLB", "after how many steps it pays")),
    ("growth", ("uccl-ep bench growth", "--counted-only", "exponent 1 is linear")),
])  # fmt: skip
def test_model_commands_teach(name: str, words: tuple[str, ...]) -> None:
    text = run(name, "--help")
    assert all(word in text for word in words), text


def test_model_bytes_options_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CompareOptions] = []

    def record(options: CompareOptions) -> dict[str, Any]:
        asked.append(options)
        return {}

    monkeypatch.setattr("uccl_ep.tools.bench.model.compare.compare", record)
    run("bytes", "--json")
    words = "bytes --ranks 16 --ranks 32 --ranks-per-node 4 --mode throughput --routing skewed --tokens 7 --json "
    words += "--throughput-tokens 9 --hidden 1024 --topk 2 --experts 64 --format bf16 --network efa --seed 3"
    words += " --combine-format fp8"
    run(*words.split())
    assert asked[0] == CompareOptions()
    assert asked[1] == CompareOptions(
        (16, 32), 4, ("throughput",), ("skewed",), 7, 9, 1024, 2, 64, "bf16", "fp8", "efa", 3
    )


def test_model_bytes_writes_json_and_a_picture(tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "bytes.json", tmp_path / "bytes.png"
    text = run(*"bytes --ranks 16 --tokens 8 --throughput-tokens 8 --routing random --json".split(),
               "--out", str(out), "--plot", str(plot))  # fmt: skip
    assert json.loads(text) == json.loads(out.read_text())
    assert json.loads(text)["benchmark"] == "bytes" and plot.stat().st_size > 1000


def test_model_memory_prints_a_table_or_json() -> None:
    found = json.loads(run("memory", "--ranks", "8", "--experts", "64", "--json"))
    assert found["options"] == {**MemoryOptions(ranks=(8,), experts=(64,)).__dict__, "ranks": [8], "experts": [64]}
    assert "a rank a node" in run("memory", "--ranks", "8")


def test_model_growth_counts_without_running_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a job was run")

    monkeypatch.setattr("uccl_ep.tools.bench.model.measure.measure", never)
    monkeypatch.setattr("uccl_ep.tools.bench.model.growth.SWEEPS", {"hidden": (1024, 2048)})
    found = json.loads(run("growth", "--counted-only", "--axis", "hidden", "--json"))
    assert found["measured"] == [] and [e["sizes"] for e in found["counted"]] == [[1024, 2048]]
    assert "machine" not in found


def test_model_growth_measures_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def fake(shapes: list[Any], count: int) -> list[dict[str, float]]:
        rounds.append(count)
        return [{"low latency: dispatch time": 0.001 * shape.hidden} for shape in shapes]

    monkeypatch.setattr("uccl_ep.tools.bench.model.measure.measure", fake)
    monkeypatch.setattr("uccl_ep.tools.bench.model.growth.SWEEPS", {"hidden": (1024, 2048)})
    found = json.loads(run("growth", "--axis", "hidden", "--rounds", "2", "--json"))
    assert rounds == [2] and found["measured"][0]["fits"]["low latency: dispatch time"]["growth"] == "linear"
    assert found["machine"]["cores"] >= 1


def test_model_rebalance_prints_a_table_and_json() -> None:
    small = "rebalance --ranks 4 --ranks-per-node 2 --tokens 16 --hidden 512 --topk 2 --experts 8 --redundant 4".split()
    text = run(*small, "--row-us", "0.5")
    for words in ("8 experts in 12 slots", "between nodes, busiest rank", "moved once: ", "it pays after "):
        assert words in text, text
    assert "only bytes count" not in text and "only bytes count" in run(*small)
    found = json.loads(run(*small, "--state-bytes", "16", "--weight-bytes", "2", "--json"))
    assert found["expert_bytes"] == 18 * 3 * 512 * 2048 and found["options"]["state_bytes"] == 16
