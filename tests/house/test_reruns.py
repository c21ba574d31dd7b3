"""A test that passes at its second try alone leaves in the log why it failed at its first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.source import ROOT

TEST = """
from pathlib import Path

def test_second_try():
    first = Path(__file__).with_name("first")
    again = first.exists()
    first.touch()
    assert again, "what the first try said"
"""


def test_house_reruns_are_explained(tmp_path: Path) -> None:
    (tmp_path / "test_unsteady.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--reruns", "1", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert done.returncode == 0 and "1 passed, 1 rerun" in done.stdout, done.stdout + done.stderr
    assert "failed, then run again: test_unsteady.py::test_second_try" in done.stdout
    assert "what the first try said" in done.stdout
