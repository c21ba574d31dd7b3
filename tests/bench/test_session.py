"""A whole session with parts made up: failures do not stop it, time ends it, and the report names all."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import typer
from rich.console import Console
from typer.testing import CliRunner

from bench.__main__ import main
from bench.parts import Failed, Part
from bench.session import report, run_parts
from tests.uccl_ep.tools.bench.sample import ring_result

TARGET = {"name": "speed", "where": "here", "measured": 5.5, "wanted": 5.0, "at_least": True, "met": True}


def good(folder: Path, limit_s: float) -> None:
    (folder / "ring.json").write_text(json.dumps({**ring_result(), "targets": [TARGET, {**TARGET, "met": False}]}))


def bad(folder: Path, limit_s: float) -> None:
    raise Failed("valgrind is not installed")


def broken(folder: Path, limit_s: float) -> None:
    raise ValueError("no JSON")


def test_bench_session_goes_on_after_a_failure(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, width=160)
    parts = [
        Part("bad", "a bad part", 9.0, bad),
        Part("broken", "", 9.0, broken),
        Part("good", "a good part", 9.0, good),
    ]
    folder, since = tmp_path / "results", time.time() - 1.0
    outcomes = run_parts(parts, folder, 1.0, console)
    assert [bool(outcome.why) for outcome in outcomes] == [True, True, False]
    assert report(outcomes, folder, since, console) == 1
    said = text.getvalue()
    for words in ("no result a bad part", "done a good part", "valgrind is not installed", "ValueError: no JSON"):
        assert words in said, words
    assert "met: here: speed: 5.5" in said and "NOT MET: here" in said and "1 of 2 targets met" in said
    assert "The command ring" in said


def test_bench_session_of_good_parts_ends_with_0(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    since = time.time() - 1.0
    (tmp_path / "old.json").write_text("{")  # of another day: not looked at
    os.utime(tmp_path / "old.json", (1.0, 1.0))
    assert report(run_parts([Part("good", "", 9.0, good)], tmp_path, 1.0, console), tmp_path, since, console) == 0


def test_bench_session_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    limits: list[float] = []
    parts = [Part("one", "", 9.0, lambda folder, limit_s: limits.append(limit_s))] * 2
    outcomes = run_parts(parts, tmp_path, 0.0, Console(file=io.StringIO()))
    assert limits == [] and all("time for all parts is over" in outcome.why for outcome in outcomes)
    run_parts(parts[:1], tmp_path, 0.05, Console(file=io.StringIO()))
    assert len(limits) == 1 and 1.0 <= limits[0] <= 3.0  # its own limit, cut to what is left


def test_bench_session_command_lists_parts_and_refuses_unknown_ones(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    listed = CliRunner().invoke(app, ["--list"])
    assert listed.exit_code == 0 and "proxy" in listed.output and "throughput-8x1" in listed.output
    refused = CliRunner().invoke(app, ["--only", "magic", "--out", str(tmp_path / "never")])
    assert refused.exit_code == 2 and "magic" in refused.output and not (tmp_path / "never").exists()
