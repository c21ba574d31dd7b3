"""What all commands have in common: -h, help that is as wide as the terminal, flags that show no type."""

from __future__ import annotations

import inspect
from typing import Any

import typer

CONTEXT = {"help_option_names": ["-h", "--help"]}
"""Of the whole command: those below it take it over."""


def finished(app: typer.Typer) -> Any:
    """The command with all below it, ready to be called."""
    whole = typer.main.get_command(app)
    todo: list[Any] = [whole]
    for command in todo:
        todo += getattr(command, "commands", {}).values()
        command.help = reflowed(command.help or "")
        for option in command.get_params(typer.Context(command, **CONTEXT)):  # type: ignore[arg-type]
            if getattr(option, "is_flag", False):
                option.metavar = ""  # `--json <bool>` reads as if a value had to follow
    return whole


def reflowed(text: str) -> str:
    """A docstring with each paragraph as one line, for a terminal of any width to fold; indented lines stay.

    Without it every line is folded twice: where the source ends it, and where the terminal does.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else " ".join(p.split("\n")) for p in paragraphs)
