"""Which other Pythons this machine has: on the path, of pyenv, or of uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


def runs_as(python: str, version: str) -> bool:
    """Whether this command starts, and is Python `version` ("3.12")."""
    ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30)
    except OSError:
        return False
    return done.stdout.strip() == version


def _told(*command: str) -> list[str]:
    """Lines that a tool prints; none where the tool is missing or fails."""
    if shutil.which(command[0]) is None:
        return []
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.stdout.splitlines() if done.returncode == 0 else []


@cache
def interpreter(version: str) -> str | None:
    """Python `version`: this one, one on the path, one that pyenv or uv has installed; None where there is none."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    roots = _told("pyenv", "root") or [os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")]
    candidates += sorted(str(found) for found in Path(roots[0]).glob(f"versions/{version}.*/bin/python"))
    candidates += _told("uv", "python", "find", "--no-python-downloads", version)
    return next((found for found in candidates if found and runs_as(found, version)), None)
