"""Finds the functions of a C++ file, well enough for length and parameter limits. No compiler needed.

Text is read with comments and literals blanked. Braces are matched; at namespace and class level a brace whose
heading has a parameter list opens a function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.house.source import code_only

_TYPE = re.compile(r"(^|[^\w])(namespace|struct|class|union|extern\s+\"\")(\s|$|[^\w])")
_ENUM = re.compile(r"(^|[^\w])enum(\s|$)")
_NAME = re.compile(r"(operator\s*\S{1,3}|~?\w+)\s*\($")
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Function:
    name: str
    first_line: int
    last_line: int
    num_parameters: int

    @property
    def num_lines(self) -> int:
        return self.last_line - self.first_line + 1


def functions(text: str) -> list[Function]:
    """Every function with a body, outermost only: a lambda or local class counts to the function around it."""
    code = _PREPROCESSOR.sub(lambda m: "\n" * m.group().count("\n"), code_only(text))
    found: list[Function] = []
    position, start = 0, 0  # where we are; where the current declaration began
    while position < len(code):
        character = code[position]
        if character in ";}":
            start = position + 1
        elif character == "{":
            heading = code[start:position]
            inner_scope = _opens_scope(heading)
            if inner_scope:
                start = position + 1
            else:
                end = _closing(code, position)
                if "(" in heading and not heading.rstrip().endswith("="):
                    found.append(_function(code, start, heading, end))
                position = end
                start = position + 1 if not _in_initialiser_list(code, position) else start
        position += 1
    return found


def _opens_scope(heading: str) -> bool:
    """namespace X {, struct Y : Z {, extern "C" {; not a function that returns or takes a struct."""
    flat = re.sub(r"<[^<>]*>|alignas\s*\([^()]*\)|__attribute__\s*\(\([^()]*\)\)|\[\[.*?\]\]", " ", heading)
    return "(" not in flat and not _ENUM.search(flat) and (bool(_TYPE.search(flat)) or "extern" in flat)


def _in_initialiser_list(code: str, closing: int) -> bool:
    """After `a_{1}` of a constructor's list comes a comma or the body's own brace."""
    rest = code[closing + 1 :].lstrip()
    return rest[:1] in {",", "{"}


def _closing(code: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position
    return len(code) - 1


def _function(code: str, start: int, heading: str, end: int) -> Function:
    lead = len(heading) - len(heading.lstrip())
    opening = _parameter_list(heading)
    name = _NAME.search(heading[: opening + 1])
    return Function(
        name=name.group(1) if name else heading.split("(")[0].split()[-1],
        first_line=code.count("\n", 0, start + lead) + 1,
        last_line=code.count("\n", 0, end) + 1,
        num_parameters=_count_parameters(heading, opening),
    )


def _parameter_list(heading: str) -> int:
    """Index of the bracket that opens the parameters: the first after a plain name, attributes left aside."""
    for match in re.finditer(r"(~?\w+|operator\s*\S{1,3})\s*\(", heading):
        if match.group(1) not in {"alignas", "__attribute__", "decltype", "requires", "noexcept", "__launch_bounds__"}:
            return match.end() - 1
    return heading.index("(")


def _count_parameters(heading: str, opening: int) -> int:
    depth, commas, angle, content = 0, 0, 0, False
    for character in heading[opening:]:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                break
        elif character == "<":
            angle += 1
        elif character == ">":
            angle -= 1
        elif character == "," and depth == 1 and angle <= 0:
            commas += 1
        content |= depth >= 1 and not character.isspace() and character != "("
    return commas + 1 if content else 0
