"""Builds the programs of bench/native, in the folder that the native tests use: their libraries are the same."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "native"
NAMES = tuple(sorted(path.stem for path in (ROOT / "bench" / "native").glob("*.cpp")))


def tool(name: str) -> str:
    """A build tool: the one beside this Python (from PyPI) before the machine's.

    Raises:
        RuntimeError: there is none.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(f"{name} is missing, so no benchmark can be built: pip install {name}")
    return found


def build(names: tuple[str, ...] = NAMES) -> dict[str, Path]:
    """Configures and builds the programs; returns where they are.

    Raises:
        RuntimeError: with the compiler's output.
    """
    cmake = tool("cmake")
    configure = [cmake, "-S", str(ROOT), "-B", str(FOLDER), "-G", "Ninja", "-DUCCL_EP_TESTS=ON", "-DUCCL_EP_SANITIZE="]
    configure.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed; tests build here too
        if _run(configure)[0] != 0 and (status := _run([*configure, "--fresh"]))[0] != 0:
            raise RuntimeError(f"cmake could not configure the benchmarks:\n{status[1]}")
        status = _run([cmake, "--build", str(FOLDER), "--target", *names])
    if status[0] != 0:
        raise RuntimeError(f"the benchmarks could not be built:\n{status[1]}")
    return {name: FOLDER / name for name in names}


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    return done.returncode, done.stdout
