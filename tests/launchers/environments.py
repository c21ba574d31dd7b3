"""Environments of their own for launchers from PyPI: above this Python's packages, which stay as they are."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_INSTALL_LIMIT_S = 240


def require(*requirements: str) -> Path:
    """The Python of an environment that has these packages; made once, kept in build/launchers.

    Skips the test, loudly, where pip cannot install them from wheels. UCCL_EP_REQUIRE_TOOLS=1 makes that a failure.
    """
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


def _make(folder: Path, requirements: tuple[str, ...]) -> str:
    """Why it could not be made; empty: it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as name:
        made = Path(name) / "environment"
        venv.EnvBuilder(with_pip=False, symlinks=True).create(made)
        (site,) = made.glob("lib/python*/site-packages")
        beneath = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        lines = [f"import site; site.addsitedir({path!r})" for path in beneath]
        (site / "beneath.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "--python", str(made / "bin" / "python"), "install", "-q"]
        command += ["--no-input", "--only-binary", ":all:", *requirements]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
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
