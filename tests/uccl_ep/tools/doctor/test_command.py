"""`uccl-ep doctor`: what it prints, and the status it ends with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.uccl_ep.fabric import machines
from uccl_ep import cli
from uccl_ep.errors import InvalidArgument

WIDE = {"COLUMNS": "160", "TERM": "dumb", "NO_COLOR": "1"}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["doctor", *arguments], env=WIDE)


def test_command_help_teaches() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("--help").stdout)
    for word in ("--path", "--require", "--sysfs", "--all", "--json", "uccl-ep doctor --require cuda --require efa"):
        assert word in text


def test_command_on_this_machine() -> None:
    result = run("--path", "host")
    assert result.exit_code == 0 and "host: " in result.stdout and "peers' memory" in result.stdout
    assert "cpu" not in result.stdout


def test_command_json_and_status(tmp_path: Path) -> None:
    tree = machines.mi300x_thor2().write(tmp_path)
    result = run("--sysfs", tree, "--path", "verbs", "--require", "efa", "--json")
    values = json.loads(result.stdout)
    assert result.exit_code == 1 and values["satisfied"] is False
    assert list(values["paths"]) == ["verbs", "efa"] and values["paths"]["efa"]["words"] == "no EFA device"
    assert json.loads(run("--path", "host", "--require", "host", "--json").stdout)["satisfied"] is True


def test_command_says_which_requirement_is_not_met(tmp_path: Path) -> None:
    result = run("--sysfs", str(tmp_path), "--require", "efa", "--path", "efa")
    assert result.exit_code == 1 and "--require efa: it cannot be used here" in result.stdout


def test_command_refuses_what_is_none(tmp_path: Path) -> None:
    for arguments in (["--path", "roce"], ["--require", "x"], ["--sysfs", str(tmp_path / "none")]):
        result = run(*arguments)
        assert isinstance(result.exception, InvalidArgument) and arguments[0] in str(result.exception)
