"""Small pieces of Markdown that the generators share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table. Line breaks become spaces, and a bar in a cell does not end it."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


class Block:
    """One fenced block of a page: its language, its title, its text and the line where it begins (from 1)."""

    def __init__(self, info: str, body: str, line: int) -> None:
        words = info.strip().split(maxsplit=1)
        self.language = words[0] if words else ""
        title = re.search(r'title="([^"]*)"', info)
        self.title = title.group(1) if title else ""
        self.body, self.line = body, line


def blocks(markdown: str) -> list[Block]:
    """Every fenced block, in order; an indented one without its indentation."""
    found = []
    for match in _FENCE.finditer(markdown):
        indent = len(match["indent"])
        body = "".join(line[indent:] for line in match["body"].splitlines(keepends=True))
        found.append(Block(match["info"], body, markdown.count("\n", 0, match.start()) + 1))
    return found


def without_blocks(markdown: str) -> str:
    """The page with its fenced blocks blanked; lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match.group().count("\n"), markdown)
