"""Our sitecustomize: turns the drop-in on, then runs the one that would have been found without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from uccl_ep.drop_in.run import SITE

ROOT = str(Path(SITE).parents[2])
SHOW = "import sys, sitecustomize as s; from uccl_ep.drop_in import is_installed; print(is_installed(), s.__file__)"


def python(path: list[str], value: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON"))}
    environment |= {"PYTHONPATH": os.pathsep.join(path), "UCCL_EP_AS_DEEP_EP": value}
    done = subprocess.run([sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_sitecustomize_turns_the_hook_on() -> None:
    assert python([str(SITE), ROOT], "1").startswith("True")
    assert python([str(SITE), ROOT], "0").startswith("False")


def test_sitecustomize_hands_over(tmp_path: Path) -> None:
    theirs = tmp_path / "sitecustomize.py"
    theirs.write_text(
        "import sys\nfrom uccl_ep.drop_in import is_installed\nprint('theirs ran, hook', is_installed())\n"
    )
    shown = python([str(SITE), str(tmp_path), ROOT], "1").splitlines()
    assert shown == ["theirs ran, hook True", f"True {theirs}"]
