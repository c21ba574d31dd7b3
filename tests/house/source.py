"""What the house checks read: the project's files, C++ text without comments, and the listed exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("uccl_ep", "kernels", "proxy")
NATIVE = (".h", ".cpp")
_LEFT_OUT = {"__pycache__", "include", "build"}  # uccl_ep/include is a copy that an installation makes


def files(folders: Iterable[str], suffixes: Iterable[str], root: Path = ROOT) -> Iterator[str]:
    """Paths relative to the root, sorted."""
    wanted = tuple(suffixes)
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.is_file() and path.suffix in wanted and not _LEFT_OUT.intersection(parts):
                yield "/".join(parts)


def read(path: str, root: Path = ROOT) -> str:
    return (root / path).read_text(encoding="utf-8")


_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


def code_only(text: str) -> str:
    """C++ with comments and the contents of literals blanked; every line keeps its number."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        newlines = "\n" * token.count("\n")
        return newlines if token.startswith("/") else token[0] + newlines + token[-1]

    return _COMMENT_OR_STRING.sub(blank, text)


@dataclass(frozen=True)
class Exemption:
    check: str
    subject: str
    reason: str


def exemptions(check: str, root: Path = ROOT) -> dict[str, str]:
    """Subjects that a check passes over, with the reason; from exceptions.txt."""
    return {e.subject: e.reason for e in parse_exemptions(read("tests/house/exceptions.txt", root)) if e.check == check}


def parse_exemptions(text: str) -> list[Exemption]:
    """Lines of `check | subject | reason`; blank lines and # comments are skipped. Raises ValueError."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3 or not all(fields) or len(fields[2].split()) < 3:
            raise ValueError(f"exceptions.txt:{number}: expected `check | subject | reason (a few words)`: {line!r}")
        found.append(Exemption(*fields))
    return found


def judge(check: str, problems: dict[str, str]) -> None:
    """Fails with every problem that no exception covers, and with every exception that covers nothing."""
    allowed = exemptions(check)
    lines = [f"{subject}: {what}" for subject, what in sorted(problems.items()) if subject not in allowed]
    lines += [f"exceptions.txt: `{check} | {s}` is not needed any more" for s in sorted(allowed) if s not in problems]
    if lines:
        pytest.fail(f"{len(lines)} problem(s) of '{check}':\n  " + "\n  ".join(lines), pytrace=False)
