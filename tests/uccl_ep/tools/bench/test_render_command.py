"""The command line of `uccl-ep bench render`: tables on standard output or in a file, pictures on demand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.uccl_ep.tools.bench.sample import peers_result, ring_result
from uccl_ep.cli import app


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, result in (("peers", peers_result()), ("ring", ring_result())):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    return [str(tmp_path / "peers.json"), str(tmp_path / "ring.json")]


def test_bench_render_command_prints_tables(files: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", "render", *files])
    assert done.exit_code == 0 and "## Beside peers" in done.output and "## The command ring" in done.output


def test_bench_render_command_writes_files(files: list[str], tmp_path: Path) -> None:
    out, plots = tmp_path / "new" / "tables.md", tmp_path / "pictures"
    done = CliRunner().invoke(app, ["bench", "render", *files, "--out", str(out), "--plots", str(plots)])
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("## Beside peers")
    assert sorted(path.name for path in plots.iterdir()) == ["peers-throughput.png", "ring.png"]


def test_bench_render_command_teaches() -> None:
    text = CliRunner().invoke(app, ["bench", "render", "--help"]).output
    assert "uccl-ep bench render" in text and "--plots" in text
