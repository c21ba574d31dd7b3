"""The command: help teaches, options arrive, output is JSON or tables, files are written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.uccl_ep.tools.bench.scale.test_report import sample
from uccl_ep.cli import app
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.scale.sweep import ScaleOptions

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["bench", "scale", *words], env=WIDE)
    assert done.exit_code == 0, done.output
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ScaleOptions]:
    found: list[ScaleOptions] = []

    def record(options: ScaleOptions, advance: Any) -> dict[str, Any]:
        found.append(options)
        advance()
        return sample()

    monkeypatch.setattr("uccl_ep.tools.bench.scale.sweep.scale", record)
    return found


def test_command_teaches() -> None:
    text = run("--help")
    for words in ("uccl-ep bench scale", "Nothing here is measured", "--disturbed", "mi355x-pollara", "predictions"):
        assert words in text, text


def test_command_options_arrive(asked: list[ScaleOptions]) -> None:
    run("--json")
    words = (
        "--platform p6-b200 --ranks 16 --ranks 32 --disturbed 16 --mode throughput --tokens 7 --throughput-tokens 9 "
    )
    words += "--hidden 1024 --topk 2 --experts 64 --format bf16 --late-us 12 --seed 3 --refit --json"
    run(*words.split())
    run("--disturbed", "0")
    assert asked[0] == ScaleOptions()
    assert asked[1] == ScaleOptions(
        ("p6-b200",), (16, 32), (16,), ("throughput",), 7, 9, 1024, 2, 64, "bf16", 12.0, 3, True
    )
    assert asked[2] == ScaleOptions(disturbed=())


def test_command_writes_json_tables_and_a_picture(asked: list[ScaleOptions], tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "scale.json", tmp_path / "scale.png"
    text = run("--json", "--out", str(out), "--plot", str(plot))
    assert json.loads(text) == json.loads(out.read_text()) and plot.stat().st_size > 1000
    assert "All times here are simulated" in run() and asked


def test_command_refuses_before_it_works(asked: list[ScaleOptions]) -> None:
    done = CliRunner().invoke(app, ["bench", "scale", "--platform", "p4d"], env=WIDE)
    assert isinstance(done.exception, InvalidArgument) and not asked
    text = str(done.exception)
    assert text.startswith("--platform must be p5en, p6-b200, ") and text.endswith("; got 'p4d'.")
