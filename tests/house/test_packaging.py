"""`pip install .` from the tracked files, in an empty environment of every supported Python that this machine has.

Dependencies stay out (a torch for each Python is gigabytes): the native module is loaded by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.interpreters import interpreter

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]  # compiles the whole native module


def run(command: list[str], cwd: Path, limit_s: int = 60) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """What a clone would hold: tracked files and new ones that git does not ignore."""
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            target = tmp_path / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return tmp_path / "sources"


@pytest.mark.parametrize("version", VERSIONS)
def test_house_pip_install(version: str, sources: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"NOT RUN: no Python {version} on this machine")
    environment = tmp_path / "environment"
    run([python, "-m", "venv", str(environment)], tmp_path)
    new_python = str(environment / "bin" / "python")
    run([new_python, "-m", "pip", "install", "--no-deps", str(sources)], tmp_path, limit_s=500)

    folder = Path(run([new_python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], tmp_path).strip())
    package = folder / "uccl_ep"
    assert (package / "py.typed").is_file() and (package / "_native.pyi").is_file()
    for header in ("kernels/device/simt.h", "proxy/wire/command.h", "proxy/ring/layout.h"):
        assert (package / "include" / header).read_bytes() == (ROOT / header).read_bytes()
    assert (environment / "bin" / "uccl-ep").is_file()
    (module,) = package.glob("*.so")  # the simulation is none of it
    assert module.name.startswith("_native")
    stable = tuple(map(int, version.split("."))) >= (3, 12)
    assert (".abi3." in module.name) == stable, module.name
    load = "import importlib.util as u, sys; s = u.spec_from_file_location('uccl_ep._native', sys.argv[1]); "
    load += "m = u.module_from_spec(s); s.loader.exec_module(m); print(len([n for n in dir(m) if n[0] != '_']))"
    assert int(run([new_python, "-c", load, str(module)], tmp_path)) > 0

    assert not {p.name for p in folder.iterdir()} & {"kernels", "proxy", "tests", "bench"}  # nothing at the top level


def test_house_this_python_is_covered() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert version in VERSIONS and interpreter(version) is not None
