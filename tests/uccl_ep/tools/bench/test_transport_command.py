"""The command line of `uccl-ep bench transport`: options arrive, help teaches, `uccl-ep bench` stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.tools.bench.transport_options import TransportOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TransportOptions, Path | None, bool]]:
    calls: list[tuple[TransportOptions, Path | None, bool]] = []

    def record(options: TransportOptions, out: Path | None, as_json: bool, console: Any) -> None:
        calls.append((options, out, as_json))

    monkeypatch.setattr("uccl_ep.tools.bench.transport.run_transport", record)
    return calls


def test_bench_transport_command_defaults(asked: list[Any]) -> None:
    assert CliRunner().invoke(app, ["bench", "transport"]).exit_code == 0
    assert asked == [(TransportOptions(), None, False)]


def test_bench_transport_command_options(asked: list[Any]) -> None:
    words = ["bench", "transport", "--network", "tcp", "--network", "libfabric shm", "--size", "64", "--rounds", "2"]
    done = CliRunner().invoke(app, [*words, "--megabytes", "3", "--out", "x.json", "--json"])
    assert done.exit_code == 0, done.output
    options = TransportOptions(networks=("tcp", "libfabric shm"), sizes=(64,), rounds=2, megabytes=3)
    assert asked == [(options, Path("x.json"), True)]


def test_bench_transport_command_teaches() -> None:
    text = CliRunner().invoke(app, ["bench", "transport", "--help"]).output
    assert "uccl-ep bench transport" in text and "--network" in text and "libfabric shm" in text


def test_bench_command_still_measures_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []
    monkeypatch.setattr("uccl_ep.tools.bench.run.run_bench", lambda options, *rest: modes.append(options.mode))
    assert CliRunner().invoke(app, ["bench", "--mode", "throughput"]).exit_code == 0
    assert modes == ["throughput"]
