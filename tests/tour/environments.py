"""Where uccl-ep is installed for a tour: an environment of its own, made as a newcomer would, or with links.

*Fresh*: docker/install.sh package, that is venv and pip with all dependencies. *Linked*: uccl-ep itself is installed by
pip from a wheel; what it depends on, and nothing else, is linked from the environment of this Python, so that pip finds
every requirement of the wheel fulfilled or says which is not. Linked takes seconds where torch takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.launchers.hosts import ROOT

_PACK_LIMIT_S = 1500  # the whole native module, where nothing was compiled before and others use the cores


class NotInstalled(Exception):
    """A command of the installation failed; with what it printed."""


def run(command: list[str], limit_s: float, **environment: str) -> str:
    """What a command printed.

    Raises:
        NotInstalled: it failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{' '.join(command)}: not done within {limit_s:.0f} s\n{error.stdout or ''}") from None  # type: ignore[str-bytes-safe]
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)}: ended with status {done.returncode}\n{done.stdout}")
    return done.stdout


def pack(folder: Path) -> Path:
    """The wheel of this checkout as `make setup` has compiled it (UCCL_EP_WHEEL names another one).

    Raises:
        NotInstalled: it could not be made.
    """
    given = os.environ.get("UCCL_EP_WHEEL", "")
    if given:
        return Path(given).resolve()
    words = ["-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # its cmake and ninja
    run([sys.executable, "-m", "pip", "wheel", *words], _PACK_LIMIT_S, PATH=tools)
    (wheel,) = folder.glob("uccl_ep-*.whl")
    return wheel


def requirements(wheel: Path) -> list[str]:
    """What a wheel asks for, extras included, as its metadata say it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []


def closure(asked: Iterable[str]) -> list[metadata.Distribution]:
    """Distributions of this Python that these requirements lead to, theirs too. What is not here is left out: pip
    then says so."""
    found: dict[str, metadata.Distribution] = {}
    todo = [(text, "") for text in asked]
    while todo:
        text, extra = todo.pop()
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        key = wanted.name.lower().replace("_", "-").replace(".", "-")
        try:
            one = found.setdefault(key, metadata.distribution(wanted.name))
        except metadata.PackageNotFoundError:
            continue
        seen_before = f"{key}[]" in found
        found[f"{key}[]"] = one
        if not seen_before:
            todo += [(needed, "") for needed in one.requires or []]
        for more in wanted.extras:
            if f"{key}[{more}]" not in found:
                found[f"{key}[{more}]"] = one
                todo += [(needed, more) for needed in one.requires or []]
    return [one for key, one in found.items() if "[" not in key]


def link(distributions: Iterable[metadata.Distribution], site: Path) -> int:
    """Links what lies at the top of each distribution (packages, modules, metadata) into another site-packages.

    Returns:
        How many distributions.
    """
    count = 0
    for one in distributions:
        count += 1
        for top in {path.parts[0] for path in one.files or []} - {"..", "__pycache__"}:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(one.locate_file(top))).resolve())
    return count


def fresh(wheel: Path, folder: Path, limit_s: float) -> str:
    """An environment made by docker/install.sh, with whatever pip finds; what was printed.

    Without what pip says of package folders that only this machine's configuration names.
    """
    script = str(ROOT / "docker" / "install.sh")
    said = run([script, "package"], limit_s, PREFIX=str(folder), WHEEL=str(wheel), PYTHON=sys.executable)
    return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("WARNING: Location "))


def linked(wheel: Path, folder: Path, limit_s: float) -> str:
    """An environment with links; see the top of this file. What was printed.

    Raises:
        NotInstalled: a requirement of the wheel is not fulfilled, among others.
    """
    # Without pip of its own: Python's own copies of pip and setuptools would stand beside the links.
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], limit_s)
    (site,) = folder.glob("lib/python3.*/site-packages")
    count = link(closure(requirements(wheel)), site)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    said = run([*pip, "install", "--no-index", str(wheel)], limit_s)
    return f"{count} distributions linked from {sys.prefix}\n{said.splitlines()[-1] if said else ''}\n"
