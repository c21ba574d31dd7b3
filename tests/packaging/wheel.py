"""The wheel: built once from this tree by docker/wheel.sh, and what readelf says of the module in it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "build" / "wheelhouse"
BUILD_LIMIT_S = 1500  # the whole native module, where others use the cores too
_PARTS = ("pyproject.toml", "constraints.txt", "CMakeLists.txt", "README.md", "LICENSE")
_FOLDERS = ("uccl_ep/", "kernels/", "proxy/", "cmake/", "docker/")


def sources() -> Iterator[str]:
    """What goes into a wheel: tracked files and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    for name in sorted(listed.stdout.splitlines()):
        if (name in _PARTS or name.startswith(_FOLDERS)) and (ROOT / name).is_file():
            yield name


def built_wheel() -> Path:
    """The wheel of this tree for this Python; UCCL_EP_WHEEL names another one.

    Raises:
        AssertionError: it could not be built; the message has what was printed.
    """
    given = os.environ.get("UCCL_EP_WHEEL", "")
    if given:
        return Path(given).resolve()
    names = list(sources())
    content = hashlib.sha256(sys.version.encode())
    for name in names:
        content.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    folder = HOUSE / content.hexdigest()[:16]
    HOUSE.mkdir(parents=True, exist_ok=True)
    with open(HOUSE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(names, folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _build(names: list[str], folder: Path) -> None:
    """In a copy of the tree that is kept: the next build compiles what has changed since, and the tree stays clean."""
    copy, draft = HOUSE / "tree", folder.with_suffix(".draft")
    for name in names:
        source, target = ROOT / name, copy / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for path in [p for part in _FOLDERS for p in (copy / part).rglob("*") if p.is_file()]:
        if path.relative_to(copy).as_posix() not in names:
            path.unlink()
    shutil.rmtree(draft, ignore_errors=True)
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(BUILD_LIMIT_S), copy / "docker" / "wheel.sh", draft],  # compilers end too
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"docker/wheel.sh ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    draft.rename(folder)


@dataclass(frozen=True)
class Module:
    """A shared object as a loader sees it.

    Attributes:
        needed: libraries that are loaded with it. search: folders that it adds to the loader's.
        undefined: symbols that others must have, without versions. versions: "GLIBC" -> the newest one asked for.
    """

    needed: frozenset[str]
    search: frozenset[str]
    undefined: frozenset[str]
    versions: dict[str, tuple[int, ...]]


def read_module(path: Path) -> Module:
    """By readelf, which comes with the compiler."""

    def ask(*words: str) -> str:
        return subprocess.run(["readelf", "-W", *words, path], capture_output=True, text=True, check=True).stdout

    return parse_module(ask("-d"), ask("--dyn-syms"))


def parse_module(dynamic: str, symbols: str) -> Module:
    """What `readelf -W -d` and `readelf -W --dyn-syms` have said."""
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+?)\]", dynamic)
    search = re.findall(r"\((?:RPATH|RUNPATH)\).*?\[(.*?)\]", dynamic)
    undefined, versions = set(), dict[str, tuple[int, ...]]()
    for name in re.findall(r"\sUND\s+(\S+)", symbols):
        symbol, _, version = name.partition("@")
        undefined.add(symbol)
        family, _, number = version.lstrip("@").partition("_")
        if number and number.replace(".", "").isdecimal():
            versions[family] = max(versions.get(family, ()), tuple(map(int, number.split("."))))
    return Module(frozenset(needed), frozenset(search), frozenset(undefined), versions)
