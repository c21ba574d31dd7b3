"""Two processes of the command: one waits and says what to type, the other does so."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from uccl_ep.cli import app

LITTLE = ("--rounds", "1", "--megabytes", "1", "--json")


def test_check_two_processes_print_the_same_report() -> None:
    command = [sys.executable, "-m", "uccl_ep", "check", "--listen", "127.0.0.1", *LITTLE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        try:
            assert other.stderr is not None and other.stdout is not None
            said = re.search(r"uccl-ep check (\S+) --code (\S+)", other.stderr.readline())
            assert said is not None
            done = CliRunner().invoke(app, ["check", said[1], "--code", said[2], *LITTLE])
            assert done.exit_code == 0, done.output
            theirs = json.loads(other.stdout.read())
            assert other.wait(60) == 0
        finally:
            other.kill()
    mine = json.loads(done.stdout)
    assert (mine["rank"], theirs["rank"]) == (0, 1) and mine["sides"] == theirs["sides"]
    assert mine["family"] == "tcp" and {f["name"] for f in mine["findings"]} >= {"bandwidth", "immediates", "losses"}


@pytest.mark.parametrize(
    "words, says",
    [
        (["10.0.0.5"], "PEER must be HOST:PORT"),
        (["10.0.0.5:70000", "--code", "x"], "PEER must be HOST:PORT"),
        (["10.0.0.5:7000"], "--code must be the code"),
        (["--rounds", "0"], "--rounds must be 1 or more"),
    ],
)
def test_check_refuses(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["check", *words])
    assert done.exit_code != 0 and says in str(done.exception)
