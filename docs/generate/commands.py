"""The page of the `uccl-ep` command line, from the commands themselves: what --help says, as a page."""

from __future__ import annotations

import re
from typing import Any

from docs.generate.markdown import table

_INTRODUCTION = """# Commands

What `uccl-ep --help` and `uccl-ep COMMAND --help` say, made from the same commands.
"""


def commands_page(app: Any = None) -> str:
    """The page for a typer application; by default that of uccl_ep.cli."""
    import typer

    if app is None:
        from uccl_ep.cli import app as ours

        app = ours
    return _INTRODUCTION + "".join(
        _section(command, name) for name, command in _walk(typer.main.get_command(app), "uccl-ep")
    )


def _walk(command: Any, name: str) -> list[tuple[str, Any]]:
    """The command and all below it, by full name; a group that does nothing by itself is left out."""
    below = getattr(command, "commands", {})
    found = [] if below and not getattr(command, "invoke_without_command", False) else [(name, command)]
    for child in below.values():
        if not child.hidden:
            found += _walk(child, f"{name} {child.name}")
    return found


def _section(command: Any, name: str) -> str:
    words, examples = _split_help(command.help or "")
    parts = [f"\n## {name}\n\n{words}\n"]
    rows = [
        [_spelling(parameter), _plain(getattr(parameter, "help", None) or ""), _default(parameter)]
        for parameter in command.params
        if parameter.name not in {"help", "context"} and not getattr(parameter, "hidden", False)
    ]
    if rows:
        parts.append("\n" + table(["option", "meaning", "default"], rows))
    if examples:
        parts.append("\n```text\n" + "\n".join(examples) + "\n```\n")
    return "".join(parts)


def _split_help(text: str) -> tuple[str, list[str]]:
    """The words, and the lines that follow `Examples:`."""
    words, found, rest = re.sub(r"[\b\f]", "", text).partition("Examples:")
    examples = [line.strip() for line in rest.splitlines() if line.strip()] if found else []
    return _plain("\n".join(line.strip() for line in words.splitlines())).strip(), examples


def _plain(text: str) -> str:
    """Without rich's colours; braces and angle brackets as they are read."""
    return (
        re.sub(r"\[/?(?:bold|dim|red|green|yellow|cyan|italic)[^\]]*\]", "", text)
        .replace("\\[", "[")
        .replace("<", "&lt;")
    )


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return "`" + ", ".join(parameter.opts) + "`"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == "" or callable(value) or isinstance(value, bool):
        return "" if not getattr(parameter, "required", False) else "required"
    return f"`{value}`"
