"""A native module's stub is what nanobind says of the installed module. `make stub` writes them."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import read


@pytest.mark.parametrize("module", ["_native", "_simulation"])
def test_house_native_stub_is_current(module: str, tmp_path: Path) -> None:
    stub, draft = f"uccl_ep/{module}.pyi", tmp_path / "draft.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-m", f"uccl_ep.{module}", "-o", str(draft)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    made = draft.read_text()
    assert "def " in made or "class " in made, "the native module is empty"
    difference = difflib.unified_diff(read(stub).splitlines(), made.splitlines(), stub, "the module", lineterm="")
    lines = list(difference)
    assert not lines, "run `make stub` and commit the file:\n" + "\n".join(lines)
