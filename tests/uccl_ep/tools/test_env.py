"""The variables: whole names on a terminal, lines that a shell reads in a pipe, an object for machines."""

from __future__ import annotations

import io
import json
import subprocess
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.settings import VARIABLES, Settings, describe
from uccl_ep.tools.env import line_of, table_of

ODD = "a b'c; touch oops"


def lines(*words: str, **environment: str) -> list[str]:
    done = CliRunner().invoke(app, ["env", *words], env={"COLUMNS": "40", **environment})
    assert done.exit_code == 0
    return done.stdout.splitlines()


def test_env_in_a_pipe_is_a_line_each_at_any_width() -> None:
    found = lines(UCCL_EP_RANKS_PER_NODE="77")
    assert [line.partition("=")[0] for line in found] == [row.name for row in describe()]
    assert found[0] == (
        "UCCL_EP_RANKS_PER_NODE=77  # default 0, allowed 0 to 64. "
        "Ranks that reach each other by load and store; 0: all ranks of one host."
    )
    assert "UCCL_EP_CACHE_DIR=  # default empty, allowed a folder" in "\n".join(found)


def test_env_lines_are_what_a_shell_takes() -> None:
    text = "\n".join(line_of(row, {"UCCL_EP_CACHE_DIR": ODD}, {}) for row in describe())
    show = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('UCCL_EP_')}))"
    script = f'set -a\n{text}\nexec python3 -c "{show}"'
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=50, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said.pop("UCCL_EP_CACHE_DIR") == ODD
    assert Settings.from_environment(said) == Settings(), "each default is one that is read as itself"


def test_env_shows_only_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    assert lines("--set") == []
    assert lines("--set", FORCE_COLOR="1") == ["No UCCL_EP_* variable is set."], "a terminal shows no empty table"
    (line,) = lines("--set", UCCL_EP_TIMEOUT_S="3")
    assert line.startswith("UCCL_EP_TIMEOUT_S=3  # default 100.0")


def test_env_names_what_no_job_would_read() -> None:
    wrong = {"UCCL_EP_TRANSPOT": "tcp", "UCCL_EP_RANKS_PER_NODE": "77", "UCCL_EP_PROXY": ""}
    done = CliRunner().invoke(app, ["env", "--set"], env=wrong)
    unknown, refused = done.stderr.splitlines()
    assert unknown.startswith(
        "uccl-ep: unknown environment variable UCCL_EP_TRANSPOT: ignored. Nearest: UCCL_EP_TRANSP"
    )
    assert refused.startswith("uccl-ep: UCCL_EP_RANKS_PER_NODE must be 0 to 64; got '77'.")
    assert [f"uccl-ep: {words}" for words in json.loads("\n".join(lines("--json", **wrong)))["not_read"]] == [
        unknown,
        refused,
    ]


def test_env_json_has_values_as_they_are() -> None:
    found = json.loads("\n".join(lines("--json", UCCL_EP_PROXY="process")))
    rows: dict[str, Any] = {row["name"]: row for row in found["variables"]}
    assert found["schema"] == 1 and list(rows) == [row.name for row in describe()]
    assert (rows["UCCL_EP_PROXY"]["set"], rows["UCCL_EP_PROXY"]["value"]) == (True, "process")
    assert rows["UCCL_EP_PROXY"]["default"] == "thread" and rows["UCCL_EP_PROXY"]["kind"] == "choice"
    assert (rows["UCCL_EP_MTU"]["set"], rows["UCCL_EP_MTU"]["value"]) == (False, None)


@pytest.mark.parametrize("width", [80, 200])
def test_env_on_a_terminal_never_folds_a_name(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table_of(describe(), {"UCCL_EP_CACHE_DIR": "/long/" + "x" * 90}, {}))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for row in describe():
        assert f" {row.name} " in shown
    assert max(map(len, shown.splitlines())) <= width and "…" not in shown
