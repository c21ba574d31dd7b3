"""Our own processes run this package, also when they are started in a folder that has another `uccl_ep`: a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from uccl_ep.system.own_python import run_module

ROOT = Path(__file__).resolve().parents[3]


def started_in(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Without site-packages: the finder of an editable installation would find ours everywhere."""
    words = [command[0], "-S", *command[1:]]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=50)


def test_own_python_runs_this_package_beside_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "uccl_ep").mkdir()
    (tmp_path / "uccl_ep" / "__init__.py").write_text("raise SystemExit(9)")
    assert started_in(tmp_path, [sys.executable, "-m", "uccl_ep.errors"]).returncode == 9, "what is avoided"
    done = started_in(tmp_path, run_module("uccl_ep.errors", "--some", "word"))
    assert done.returncode == 0, done.stderr


def test_own_python_hands_arguments_on(tmp_path: Path) -> None:
    done = started_in(tmp_path, run_module("uccl_ep.tools.doctor.gpu_probe", "another vendor"))
    assert done.stderr.splitlines()[-1] == "KeyError: 'another vendor'"


def test_own_python_is_how_every_process_of_ours_is_started() -> None:
    wrong = [
        p for p in (ROOT / "uccl_ep").rglob("*.py") if re.search(r'"-m",\s*"uccl_ep', p.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_a_checkout_without_a_native_module_says_so(tmp_path: Path) -> None:
    (tmp_path / "uccl_ep" / "system").mkdir(parents=True)
    for name in ("__init__.py", "system/__init__.py", "system/own_python.py"):
        (tmp_path / "uccl_ep" / name).write_bytes((ROOT / "uccl_ep" / name).read_bytes())
    done = started_in(tmp_path, [sys.executable, "-c", "from uccl_ep import _native"])
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(
        f"ImportError: {tmp_path}/uccl_ep holds the"
    )
    assert done.stderr.count("Traceback") == 1, "what importlib said would be read first, by each of a job's ranks"
