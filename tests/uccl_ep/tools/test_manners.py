"""What every command has: -h, prose that is folded once, no type beside a flag, --json where a machine may ask."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from uccl_ep.cli import app
from uccl_ep.tools.manners import CONTEXT, finished, reflowed

WIDTH = 80
WHOLE = finished(app)
TALKS_TO_PEOPLE = {"run", "bench render"}
"""Commands without an answer that a machine could read: a program in its own place, and a writer of documentation."""


def commands(command: Any = WHOLE, name: str = "") -> list[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    found = [] if below and not command.invoke_without_command else [(name, command)]
    return found + [one for child in below.values() for one in commands(child, f"{name} {child.name}".strip())]


NAMES = [name for name, _ in commands()]


def help_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str = "-h") -> str:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(SystemExit) as ended:
        finished(app)([*name.split(), option])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_manners_help_is_folded_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(name, monkeypatch, capsys)
    prose = text.partition("Usage:")[2].partition("╭")[0].partition("Examples:")[0]
    lines = [line.strip() for line in prose.splitlines()[1:]]
    early = [line for line, after in zip(lines, lines[1:], strict=False)
             if line and after and len(line) + 1 + len(after.split()[0]) <= WIDTH - 2]  # fmt: skip
    assert early == [], "the source ended these lines, before the terminal did"
    assert "-h" in text and "bool" not in text.lower()


@pytest.mark.parametrize("name", ["", "top", "bench bytes", "run"])
def test_manners_both_spellings_of_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert help_of(name, monkeypatch, capsys) == help_of(name, monkeypatch, capsys, "--help")


@pytest.mark.parametrize(("name", "command"), commands())
def test_manners_machines_may_ask(name: str, command: Any) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    flags = [p for p in command.params if "--json" in p.opts]
    assert ("--json" in options) == (name not in TALKS_TO_PEOPLE)
    assert all(flag.is_flag for flag in flags), "the same word means the same everywhere"
    for short, long in (("-q", "--quiet"), ("-v", "--verbose")):
        assert (short in options) == (long in options)


def test_manners_reflowed() -> None:
    assert reflowed("One\n    line.\n\n    Two\n    lines.\n\n      uccl-ep a\n      uccl-ep b\n    ") == (
        "One line.\n\nTwo lines.\n\n  uccl-ep a\n  uccl-ep b"
    )


def test_manners_of_any_application() -> None:
    other = typer.Typer(context_settings=CONTEXT)

    @other.command()
    def only(flag: bool = False, number: int = 3) -> None:
        """Words."""

    (flag, number) = [p for p in finished(other).params if p.name in ("flag", "number")]
    assert flag.metavar == "" and number.metavar is None


def test_manners_completion_of_a_command() -> None:
    environment = {"_UCCL_EP_COMPLETE": "complete_bash", "COMP_WORDS": "uccl-ep conf", "COMP_CWORD": "1"}
    code = "import sys; from uccl_ep.cli import main; sys.argv = ['uccl-ep']; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["conformance"]
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    assert "--install-completion" in shown and "--version" in shown
