"""One virtual environment for each integrator: its pinned wheel, and beneath it the packages of this Python.

torch, numpy and what uccl_ep needs are those of the Python that runs the tests (a path file says where), so that no
wheel can bring another torch. An integrator that wants a newer Python has them from other_python.py.
Environments are kept in UCCL_EP_CACHE_DIR, or build/, and made anew when a pin changes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.integrations.other_python import NoSuchPython, beneath, site_of
from tests.integrations.versions import Integrator

ROOT = Path(__file__).resolve().parents[2]
_INSTALL_LIMIT_S = 900  # the largest wheel has 336 MB
_ASK_LIMIT_S = 120


class Unavailable(Exception):
    """The wheels cannot be had here: no network, no such Python, or a release not published for it."""


def cache_folder() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("UCCL_EP_CACHE_DIR") or ROOT / "build") / "integrations"


def newest_of(integrator: Integrator) -> Integrator:
    """The same with the newest release that the package index has a wheel of, for the Python that it will run on.

    Raises:
        Unavailable: the index has none, or cannot be asked.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", "--no-input"]
    python = ["--python-version", integrator.other_python] if integrator.other_python else []
    try:
        done = subprocess.run(
            [*command, "--only-binary", ":all:", *python, integrator.package],
            capture_output=True, text=True, timeout=_ASK_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took more than {_ASK_LIMIT_S} s to ask for {integrator.package}'s releases") from None
    found = re.match(rf"{re.escape(integrator.package)} \((\S+)\)", done.stdout)
    if done.returncode != 0 or found is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"pip index versions {integrator.package}: {said[-1] if said else 'no message'}")
    return replace(integrator, version=found[1])


def python_of(integrator: Integrator, make: bool = True) -> Path:
    """The Python of the integrator's environment, which is made when there is none yet, unless `make` is False.

    Raises:
        Unavailable: there is no Python for it, it is not to be made, or pip could not install it; the message ends with
            what pip said.
    """
    if integrator.other_python:
        try:
            interpreter, below = beneath(integrator.other_python, cache_folder())
        except NoSuchPython as why:
            raise Unavailable(str(why)) from None
        sites, key = [str(site_of(below))], integrator.key(str(interpreter), below.name)
    else:
        interpreter, key = Path(sys.executable), integrator.key(sys.executable, sys.version, torch_version())
        sites = list(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))
    folder = cache_folder() / f"{integrator.name}-{integrator.version}-{key}"
    python = folder / "bin" / "python"
    if python.is_file():
        return python
    if not make:
        raise Unavailable(f"it is not installed; `make test-integrations ARGS={integrator.name}` installs it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{integrator.name}-") as name:
        made = Path(name) / "environment"
        _make(made, integrator, interpreter, sites)
        try:
            made.rename(folder)  # in one step: nobody sees half an environment
        except OSError:
            if not python.is_file():  # else somebody else made it meanwhile
                raise
    return python


def _make(folder: Path, integrator: Integrator, interpreter: Path, sites: list[str]) -> None:
    subprocess.run([str(interpreter), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    lines = [f"import site; site.addsitedir({path!r})" for path in sites]
    (site_of(folder) / "beneath.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # From a wheel only: building one could run anything for minutes.
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "-q"]
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", *options]
    try:
        done = subprocess.run(
            [*command, *integrator.requirements], capture_output=True, text=True, timeout=_INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip took more than {_INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"pip install {' '.join(integrator.requirements)}: {said[-1] if said else 'no message'}")


def torch_version() -> str:
    """Of the torch beneath, without importing it."""
    from importlib.metadata import version

    return version("torch")
