"""The command: options reach what they are for; wrong ones are one line and status 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.tools.top import top as top_module
from uccl_ep.tools.top.views import TopOptions


def test_top_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TopOptions] = []

    def run(options: TopOptions, console: Any) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(top_module, "run_top", run)
    runner = CliRunner()
    assert runner.invoke(app, ["top"]).exit_code == 0
    words = "top --pid 7 --rank 3 --once --json --wide --interval 2.5".split()
    assert runner.invoke(app, words).exit_code == 0
    assert runner.invoke(app, ["top", "--dir", "/tmp/seen"]).exit_code == 0
    assert seen == [
        TopOptions(),
        TopOptions(pid=7, rank=3, once=True, as_json=True, interval=2.5, wide=True),
        TopOptions(directory="/tmp/seen"),
    ]


def test_top_command_help_teaches() -> None:
    shown = CliRunner().invoke(app, ["top", "--help"], env={"COLUMNS": "160", "TERM": "dumb"}).output
    assert "Examples:" in shown and "uccl-ep top --once --json --interval 5" in shown and "Whose ranks" in shown


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uccl_ep", "top", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_top_command_wrong_options_are_one_line() -> None:
    done = run("--pid", str(2**22 + 5), "--once")
    assert done.returncode == 2 and "no process 4194309" in done.stderr and "Traceback" not in done.stderr


def test_top_command_live_views_end_with_an_interrupt() -> None:
    """Views of a process without ranks, line by line, until Ctrl-C."""
    command = [sys.executable, "-m", "uccl_ep", "top", "--pid", str(os.getpid()), "--json", "--interval", "0.05"]

    def heed() -> None:  # a shell's background jobs ignore Ctrl-C, and so would what they start
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            for _ in range(2):
                assert "jobs" in json.loads(child.stdout.readline())
            child.send_signal(signal.SIGINT)
            assert child.wait(20) == 0
            assert child.stderr.read() == ""
        finally:
            child.kill()
