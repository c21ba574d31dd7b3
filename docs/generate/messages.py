"""Every error text that a user can see, found in the sources: what the troubleshooting page must have an entry for.

Python's are found by the syntax tree: a raised error of uccl_ep/errors.py, and every call of `refuse`. The proxy's are
the string literals of its `throw` statements and of the tables that put a network's codes into words. What is computed
at run time stands as "…".
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.generate.markdown import table

ROOT = Path(__file__).resolve().parents[2]
ELLIPSIS = "…"
PUBLIC = {"UcclEpError", "InvalidArgument", "SettingsMismatch", "TransportError", "NotSupported", "NoQuorum"}
WORD_TABLES = ("proxy/transport/verbs/errors.cpp", "proxy/transport/libfabric/codes.cpp")
FEWEST_LETTERS = 6  # of fixed text; with fewer, a message only wraps another one's words
_INTERNAL = ("proxy/simulation", "proxy/transport/simulated")  # of `uccl-ep simulate`; no transport of a job


@dataclass(frozen=True)
class Message:
    """An error text, or the beginning that is fixed, and where it is raised."""

    kind: str
    text: str
    where: str


@dataclass(frozen=True)
class Refusal:
    """One call of refuse(): which argument, what is allowed, what to do."""

    argument: str
    allowed: str
    hint: str
    where: str

    @property
    def text(self) -> str:
        """The whole message, as uccl_ep.errors.refuse puts it together."""
        hint = f" {self.hint}" if says_something(self.hint) else ""
        return f"{self.argument} must be {self.allowed}; got {ELLIPSIS}.{hint}"


def messages(root: Path = ROOT) -> list[Message]:
    """Errors that Python raises with words of their own, in the order of files."""
    found = []
    for path, call in _raises(root):
        name = getattr(call.func, "id", "")
        if name in PUBLIC and call.args:
            text = _text(call.args[0])
            if says_something(text):
                found.append(Message(name, text, path))
    return found


def refusals(root: Path = ROOT) -> list[Refusal]:
    """Every call of refuse() whose argument has a name of its own, once, by argument."""
    found = {}
    for path, tree in _trees(root).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "refuse" and len(node.args) >= 3:
                argument, allowed = _text(node.args[0]), _text(node.args[2])
                hint = _text(node.args[3]) if len(node.args) > 3 else ""
                if argument.strip(ELLIPSIS) and (argument, allowed) not in found:
                    found[argument, allowed] = Refusal(argument, allowed, hint, path)
    return sorted(found.values(), key=lambda refusal: (refusal.argument, refusal.allowed))


@functools.cache
def refusal_table() -> str:
    """Every refusal, as rows of the page."""
    rows = [[f"`{r.argument}`", r.allowed, r.hint.strip(ELLIPSIS + " ")] for r in refusals()]
    return table(["argument", "must be", "what to do"], rows)


def says_something(text: str) -> bool:
    """Whether a message has words of its own."""
    return sum(character.isalpha() for character in text) >= FEWEST_LETTERS


_THROW = re.compile(r"throw std::(?:runtime_error|invalid_argument|system_error)\((.*?);\n", re.S)
_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')


def proxy_messages(root: Path = ROOT) -> list[Message]:
    """What native code throws where a user's machine, network or settings are the cause: literals, joined by "…"."""
    found = []
    for path in sorted(p for p in (root / "proxy").rglob("*") if p.suffix in (".cpp", ".h")):
        name = path.relative_to(root).as_posix()
        if name.startswith(_INTERNAL) or "/bindings/" in name:
            continue
        for match in _THROW.finditer(path.read_text(encoding="utf-8")):
            text = _joined(match.group(1))
            if says_something(text):
                found.append(Message("TransportError", text, name))
    return found


def network_words(root: Path = ROOT) -> list[tuple[str, str]]:
    """(what a network reports, what it usually is or "") from the tables that put codes into words."""
    found: dict[tuple[str, str], None] = {}
    for path in WORD_TABLES:
        text = re.sub(r"//[^\n]*", "", (root / path).read_text(encoding="utf-8"))
        for row in re.finditer(r"(?:Meaning)?\{[\w\s,]*?(?P<row>\"[^{}]*?)\}", text):
            literals = _LITERAL.findall(re.sub(r'"\s*\n\s*"', "", row["row"]))
            if 1 <= len(literals) <= 2 and literals[0] != "success":
                found[literals[0], literals[1] if len(literals) == 2 else ""] = None
    return list(found)


def network_table() -> str:
    """The words of networks, as rows of the page."""
    return table(["reported", "usually"], [[what, usually] for what, usually in network_words()])


def _joined(expression: str) -> str:
    """`"a" + b + "c"` as a…c; neighbouring literals are one."""
    glued = re.sub(r'"\s*\n\s*"', "", expression)
    pieces, end = [], 0
    for literal in _LITERAL.finditer(glued):
        between = glued[end : literal.start()]
        if end == 0 and between.strip(" (") not in {"", "std::string"} or end and between.strip(" \n+)") != "":
            pieces.append(ELLIPSIS)
        pieces.append(literal.group(1).replace('\\"', '"'))
        end = literal.end()
    if pieces and glued[end:].strip(" )\n") != "":
        pieces.append(ELLIPSIS)
    return re.sub(ELLIPSIS + "+", ELLIPSIS, "".join(pieces))


@functools.cache
def _trees(root: Path) -> dict[str, ast.Module]:
    """The syntax tree of every Python file of the package; a build asks several times."""
    paths = (path.relative_to(root).as_posix() for path in sorted((root / "uccl_ep").rglob("*.py")))
    return {p: ast.parse((root / p).read_text(encoding="utf-8")) for p in paths if "/include/" not in p}


def _raises(root: Path) -> Iterator[tuple[str, ast.Call]]:
    for path, tree in _trees(root).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield path, node.exc


def _text(node: ast.expr) -> str:
    """A string expression as text, with … for what is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else ELLIPSIS for part in node.values]
        return re.sub(f"{ELLIPSIS}+", ELLIPSIS, "".join(parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return re.sub(f"{ELLIPSIS}+", ELLIPSIS, _text(node.left) + _text(node.right))
    return ELLIPSIS
