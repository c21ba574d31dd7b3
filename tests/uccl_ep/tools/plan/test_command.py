"""`uccl-ep plan`: what it prints, and the status it ends with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from uccl_ep import cli
from uccl_ep.errors import InvalidArgument

WIDE = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["plan", *arguments], env=WIDE)


def test_command_help_teaches() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("--help").stdout)
    for word in ("--ranks-per-node", "--topk", "--mode", "--format", "--shrink", "--sysfs", "--why", "--strict",
                 "--json", "UCCL_EP_EXPLAIN=1", "uccl-ep plan --ranks 16 --ranks-per-node 8"):  # fmt: skip
        assert word in text, word


def test_command_takes_ranks_a_host_from_its_gpus(variables: Any, tmp_path: Path) -> None:
    variables(DEVICE="auto")
    result = run("--sysfs", machines.slingshot().write(tmp_path), "--ranks", "8", "--json")
    values = json.loads(result.stdout)
    assert result.exit_code == 0 and (values["num_hosts"], values["transport"]) == (2, "tcp")


def test_command_says_what_it_assumes(variables: Any, tmp_path: Path) -> None:
    variables(DEVICE="auto")
    tree = machines.dgx_h100().write(tmp_path / "a")
    words = "8 rank(s) on each host, since the first host has 8 GPU(s); --ranks-per-node says"
    assert words in run("--sysfs", tree, "--ranks", "16").stdout
    assert words in json.loads(run("--sysfs", tree, "--ranks", "16", "--json").stdout)["assumed"]
    assert "Assumed: 4 rank(s)" in run("--sysfs", tree, "--ranks", "4").stdout
    bare = Recorded().write(tmp_path / "b")
    assert "8 rank(s) on each host, since no GPU says otherwise" in run("--sysfs", bare, "--ranks", "16", "-q").stdout
    said = ("--sysfs", tree, "--ranks", "16", "--ranks-per-node", "8")
    assert "Assumed" not in run(*said).stdout and json.loads(run(*said, "--json").stdout)["assumed"] == ""


def test_command_on_this_machine(variables: Any) -> None:
    variables(TRANSPORT="tcp")
    result = run("--ranks", "4", "--ranks-per-node", "2", "--why", "1")
    assert result.exit_code == 0 and "4 ranks on 2 host(s)" in result.stdout and "rank 1, and why" in result.stdout


def test_command_strict(variables: Any, tmp_path: Path) -> None:
    variables(DEVICE="auto")
    tree = machines.roce_many_gids().write(tmp_path / "a")
    assert run("--sysfs", tree, "--ranks", "2", "--ranks-per-node", "1", "--strict").exit_code == 0
    crowded = run("--sysfs", tree, "--ranks", "4", "--ranks-per-node", "2", "--strict")
    assert crowded.exit_code == 1 and "WARNING: shared NIC" in crowded.stdout


def test_command_refusals(variables: Any, tmp_path: Path) -> None:
    variables(DEVICE="auto")
    for arguments, says in (
        (["--ranks", "7"], "--experts"),
        (["--why", "16"], "--why"),
        (["--sysfs", str(tmp_path / "none")], "--sysfs"),
        (["--mode", "quick"], "--mode"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, InvalidArgument) and says in str(result.exception)
