"""The command line: help that teaches and loads no torch, versions, the variables' table, errors as one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from uccl_ep import cli
from uccl_ep.errors import PeerTimeout
from uccl_ep.tools.demo import run as demo_run
from uccl_ep.tools.demo.launch import RankFailed
from uccl_ep.tools.launch import Stopped

runner = CliRunner()
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_help_of_the_command_lists_commands() -> None:
    result = runner.invoke(cli.app, ["--help"], env=WIDE)
    assert result.exit_code == 0
    for command in ("demo", "env", "version"):
        assert command in plain(result.stdout)


def test_help_of_the_demo_teaches() -> None:
    result = runner.invoke(cli.app, ["demo", "--help"], env=WIDE)
    assert result.exit_code == 0
    text = plain(result.stdout)
    for option in ("steps", "ranks", "ranks-per-node", "experts", "topk", "hidden", "fp8", "proxy", "transport", "seed",
                   "out", "json"):  # fmt: skip
        assert f"--{option}" in text
    for word in ("kernel, ring, proxy", "within 1e-3", "uccl-ep demo --fp8", "status 0"):
        assert word in text


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"], ["version"], ["env"]])
def test_answers_without_loading_torch(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from uccl_ep.cli import main\n"
        f"sys.argv = ['uccl-ep', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "heavy = sorted({'torch', 'matplotlib'} & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr


def test_python_m_is_the_command() -> None:
    ended = subprocess.run([sys.executable, "-m", "uccl_ep", "version"], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0
    assert f"python {sys.version.split()[0]}" in ended.stdout


def test_versions_in_every_form() -> None:
    ours = cli.versions()["uccl-ep"]
    assert runner.invoke(cli.app, ["--version"]).stdout == f"uccl-ep {ours}\n"
    assert json.loads(runner.invoke(cli.app, ["version", "--json"]).stdout) == cli.versions()
    assert f"uccl-ep {ours}\n" in runner.invoke(cli.app, ["version"]).stdout


def test_versions_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert cli.versions() == {"uccl-ep": None, "torch": None, "python": sys.version.split()[0]}
    assert "torch not installed as a package" in runner.invoke(cli.app, ["version"]).stdout


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["uccl-ep", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_bad_option_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "demo", "--experts", "6") == 2
    error = plain(capsys.readouterr().err)
    assert error == "uccl-ep: --experts is 6; it must be a multiple of --ranks (4), for example 8\n"


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (PeerTimeout(rank=1, peer=3, phase="dispatch", expected=128, seen=96), 2, ["dispatch", "128", "96"]),
        (RankFailed("rank 2: PeerLost: rank 3 lost", "the trace"), 2, ["rank 2: PeerLost", "--trace"]),
        (Stopped(2), 130, ["stopped by SIGINT"]),
        (KeyboardInterrupt(), 130, ["stopped by SIGINT"]),
    ],
)
def test_errors_end_readably(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    status: int,
    words: list[str],
) -> None:
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr(demo_run, "run_demo", fail)
    assert run_main(monkeypatch, "demo") == status
    error = plain(capsys.readouterr().err)
    for word in words:
        assert word in error
    assert "Traceback" not in error and "the trace" not in error


def test_trace_shows_the_failed_ranks_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise RankFailed("rank 2: KeyError", "the trace")

    monkeypatch.setattr(demo_run, "run_demo", fail)
    assert run_main(monkeypatch, "demo", "--trace") == 2
    assert "the trace" in capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 1])
def test_the_demos_verdict_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    seen = []

    def verdict(options: object, *_: object) -> int:
        seen.append(options)
        return status

    monkeypatch.setattr(demo_run, "run_demo", verdict)
    assert run_main(monkeypatch, "demo", "--ranks", "8", "--fp8", "--topk", "2") == status
    assert (seen[0].ranks, seen[0].fp8, seen[0].topk) == (8, True, 2)  # type: ignore[attr-defined]
