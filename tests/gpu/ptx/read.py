"""PTX as text to instructions: registers by their own name (a scope's own ones apart), and the source line of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_ENTRY = re.compile(r"\.entry (\w+)\(\s*\.param [^\n]*?\.b8 (\w+)\[(\d+)\]\s*\)(.*?)\n\{\n(.*?)\n\}\n", re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+) "([^"]+)"', re.MULTILINE)
_LOC = re.compile(r"\.loc\s+(\d+ \d+ \d+)(?:, function_name [^,]+, inlined_at (\d+ \d+ \d+))?")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+(%?\w+)(?:<(\d+)>)?")
_NAME = re.compile(r"%?[A-Za-z_$][\w$]*")


@dataclass(frozen=True)
class Instruction:
    """`operands` as written, registers of inner scopes renamed; `predicate` is "" or "%p1" or "!%p1"."""

    name: str
    operands: tuple[str, ...]
    predicate: str
    place: int  # of Kernel.places

    @property
    def parts(self) -> list[str]:
        return self.name.replace("::", ".").split(".")


@dataclass
class Kernel:
    """An entry point. Labels are numbers of instructions."""

    name: str
    param: str
    param_bytes: int
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)


def read(text: str) -> list[Kernel]:
    """The kernels of a PTX text.

    Raises:
        ValueError: an instruction outside what this module knows of the language.
    """
    files = {int(number): name for number, name in _FILE.findall(text)}
    return [
        _read_body(Kernel(name, param, int(num_bytes)), body, files)
        for name, param, num_bytes, _, body in _ENTRY.findall(text + "\n")
    ]


def _read_body(kernel: Kernel, body: str, files: dict[int, str]) -> Kernel:
    known: dict[str, int] = {}
    scopes: list[dict[str, str]] = [{}]
    callers: dict[str, str] = {}  # of a place that was inlined, the place where
    opened, place = 0, _place(kernel, known, "?")
    for statement in _statements(re.sub(r"//[^\n]*", "", body)):
        if statement == "{":
            opened += 1
            scopes.append({})
        elif statement == "}":
            scopes.pop()
        elif loc := _LOC.match(statement):
            callers[loc[1]] = loc[2]
            place = _place(kernel, known, _chain(loc[1], callers, files))
        elif declared := _REGISTERS.match(statement):
            if len(scopes) > 1 and declared[3] is None:  # of an inner scope: it hides one of the same name
                scopes[-1][declared[2]] = f"{declared[2]}@{opened}"
        elif statement.endswith(":"):
            kernel.labels[statement[:-1]] = len(kernel.instructions)
        elif not statement.startswith("."):
            kernel.instructions.append(_instruction(statement, scopes, place))
    return kernel


def _statements(body: str) -> Iterator[str]:
    """Braces of scopes, labels, directives and instructions, each by itself."""
    for line in body.split("\n"):
        rest = line.strip()
        if label := re.match(r"(\$?\w+):", rest):
            yield label[0]
            rest = rest[label.end() :].strip()
        if rest.startswith(".loc"):
            yield rest
            continue
        while rest:
            if rest[0] in "{}":
                yield rest[0]
                rest = rest[1:].strip()
                continue
            statement, _, rest = rest.partition(";")
            yield statement.strip()
            rest = rest.strip()


def _instruction(statement: str, scopes: list[dict[str, str]], place: int) -> Instruction:
    predicate = ""
    if guard := re.match(r"@(!?%\w+)\s+", statement):
        predicate, statement = guard[1], statement[guard.end() :]

    def renamed(match: re.Match[str]) -> str:
        return next((scope[match[0]] for scope in reversed(scopes) if match[0] in scope), match[0])

    name, _, rest = statement.replace("\t", " ").partition(" ")
    operands = _split(_NAME.sub(renamed, rest.strip()))
    return Instruction(name, tuple(operands), _NAME.sub(renamed, predicate), place)


def _split(text: str) -> list[str]:
    """At commas outside of braces and brackets."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return parts + ([part.strip()] if part.strip() else [])


def _chain(at: str, callers: dict[str, str], files: dict[int, str]) -> str:
    """A place, and where it was inlined, and where that was."""
    lines = []
    while at and len(lines) < 9:
        number, line, _ = at.split()
        lines.append(f"{_short(files, number)}:{line}")
        at = callers.get(at, "")
    return " < ".join(lines)


def _short(files: dict[int, str], number: str) -> str:
    path = PurePosixPath(files.get(int(number), "?"))
    return "/".join(path.parts[-2:])


def _place(kernel: Kernel, known: dict[str, int], text: str) -> int:
    if text not in known:
        known[text] = len(kernel.places)
        kernel.places.append(text)
    return known[text]
