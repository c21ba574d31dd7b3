"""Where launchers from PyPI are: in this environment, or in one of their own above it, which leaves it as it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
_INSTALL_LIMIT_S = 240


def require(*requirements: str) -> Path:
    """The Python of an environment that has these packages, their commands beside it.

    This one where it has them all (pip would find them beneath and install no command); else one that is made once and
    kept in build/launchers. Skips the test, loudly, where pip cannot install them from wheels; UCCL_EP_REQUIRE_TOOLS=1
    makes that a failure.
    """
    if all(_here(Requirement(text)) for text in requirements):
        return Path(sys.executable)
    key = hashlib.sha256("\n".join([*requirements, sys.executable, sys.version]).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "launchers" / key
    python = folder / "bin" / "python"
    if not python.is_file():
        why = _make(folder, requirements)
        if why:
            said = f"NOT RUN: pip install {' '.join(requirements)}: {why}"
            if os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0":
                pytest.fail(said)
            pytest.skip(said)
    return python


def _here(wanted: Requirement) -> bool:
    """Whether this Python has it, in a version that will do."""
    try:
        return wanted.specifier.contains(metadata.version(wanted.name))
    except metadata.PackageNotFoundError:
        return False


def _make(folder: Path, requirements: tuple[str, ...]) -> str:
    """Why it could not be made; empty: it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".", ignore_cleanup_errors=True) as name:
        made = Path(name) / "environment"
        venv.EnvBuilder(with_pip=False, symlinks=True).create(made)
        (site,) = made.glob("lib/python*/site-packages")
        beneath = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        lines = [f"import site; site.addsitedir({path!r})" for path in beneath]
        (site / "beneath.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        # By `timeout`, which also ends the pip that pip starts for another Python. What is run once needs no bytecode.
        command = ["timeout", str(_INSTALL_LIMIT_S), sys.executable, "-m", "pip"]
        command += ["--python", str(made / "bin" / "python"), "install", "-q", "--no-compile"]
        command += ["--no-input", "--only-binary", ":all:", *requirements]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 124:
            return f"took more than {_INSTALL_LIMIT_S} s"
        if done.returncode:
            errors = [line for line in (done.stderr or done.stdout).splitlines() if "WARNING" not in line]
            return errors[-1] if errors else "no message"
        try:
            made.rename(folder)  # in one step: nobody sees half an environment
        except OSError:
            if not (folder / "bin" / "python").is_file():  # else another process has made it meanwhile
                raise
    return ""
