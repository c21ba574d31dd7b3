"""uccl_ep/_native.pyi is what nanobind says of the installed module. `make stub` writes it."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

from tests.house.source import read

STUB = "uccl_ep/_native.pyi"


def test_house_native_stub_is_current(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nanobind.stubgen", "-m", "uccl_ep._native", "-o", str(tmp_path / "_native.pyi")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    made = (tmp_path / "_native.pyi").read_text()
    assert "def " in made or "class " in made, "the native module is empty"
    difference = difflib.unified_diff(read(STUB).splitlines(), made.splitlines(), STUB, "the module", lineterm="")
    lines = list(difference)
    assert not lines, "run `make stub` and commit the file:\n" + "\n".join(lines)
