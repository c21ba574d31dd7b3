"""Plants known faults in a copy of the tree, one at a time, and demands that a native test finds each.

`python -m tests.planted.plant [NAME...]` plants those (all by default) and prints a table. The copy is built once under
ThreadSanitizer, then incrementally: a fault of behaviour fails there as it does without.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.planted.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
# What the copy holds: the product's native part, and the tests that are named in faults.py with what they need.
_FOLDERS = ("bench/native", "cmake", "kernels", "proxy", "tests/native")
_TEST_FOLDERS = ("collective", "layout", "low_latency", "throughput")
_TEST_LIMIT_S = 100
_BUILD_LIMIT_S = 400


@dataclass
class Verdict:
    """What became of one planted fault."""

    fault: Fault
    missed: list[str] = field(default_factory=list)  # tests that passed, or failed for another reason
    seconds: float = 0.0


class PlantError(Exception):
    """The fault could not be planted, or the tree without it does not pass."""


class Nursery:
    """A copy of the tree with one build folder, in which patches come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.build = folder / "build"
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "CMakeLists.txt", folder)
        for name in ("world.h", "world.cpp", "values.h"):
            (folder / "tests/kernels").mkdir(exist_ok=True)
            shutil.copy(ROOT / "tests/kernels" / name, folder / "tests/kernels")
        for name in _TEST_FOLDERS:
            shutil.copytree(ROOT / "tests/kernels" / name, folder / "tests/kernels" / name)
        self._run(
            [_tool("cmake"), "-S", str(folder), "-B", str(self.build), "-G", "Ninja", "-DUCCL_EP_TESTS=ON"]
            + ["-DUCCL_EP_SANITIZE=thread", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"]
        )

    def make(self) -> None:
        """Compiles what has changed.

        Raises:
            PlantError: it does not compile: a fault that the compiler finds proves nothing about the tests.
        """
        self._run([_tool("cmake"), "--build", str(self.build), "--target", "native_tests"])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S)
        if done.returncode != 0:
            raise PlantError(f"$ {' '.join(command)}\n{done.stdout[-6000:]}{done.stderr[-2000:]}")

    def test(self, name: str) -> tuple[bool, str]:
        """(passed, output) of one TEST."""
        environment = dict(os.environ, UCCL_EP_NATIVE_TEST_LIMIT_S=str(_TEST_LIMIT_S), TSAN_OPTIONS="halt_on_error=1")
        command = [str(self.build / "native_tests"), name]
        if shutil.which("setarch"):  # GCC 12's ThreadSanitizer does not start with wide address randomisation
            command = ["setarch", platform.machine(), "-R", *command]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TEST_LIMIT_S + 30,
            env=environment,
        )
        return done.returncode == 0, done.stdout

    def plant(self, fault: Fault) -> Verdict:
        """Plants, builds, runs the fault's tests, and takes the fault out again."""
        started = time.monotonic()
        path = self.folder / fault.file
        healthy = path.read_text()
        found = healthy.count(fault.text)
        if found != 1:
            raise PlantError(f"{fault.name}: {fault.file} holds the text to change {found} times:\n{fault.text}")
        verdict = Verdict(fault)
        path.write_text(healthy.replace(fault.text, fault.planted))
        try:
            self.make()
            for test in fault.tests:
                passed, output = self.test(test)
                if passed or not any(sign in output for sign in fault.shows.split("|")):
                    verdict.missed.append(f"{test}: {'passed' if passed else output[-1500:]}")
        finally:
            path.write_text(healthy)
        verdict.seconds = time.monotonic() - started
        return verdict


def _tool(name: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise PlantError(f"{name} is missing: pip install {name}")
    return found


def plant_all(folder: Path, faults: Iterable[Fault] = FAULTS) -> Iterator[Verdict]:
    """Plants each fault in a copy of the tree at `folder`, one after the other.

    Raises:
        PlantError: a test fails without any fault, or a fault does not apply.
    """
    chosen = list(faults)
    nursery = Nursery(folder)
    nursery.make()
    for test in sorted({t for fault in chosen for t in fault.tests}):
        passed, output = nursery.test(test)
        if not passed:
            raise PlantError(f"{test} fails without a planted fault:\n{output[-4000:]}")
    for fault in chosen:
        yield nursery.plant(fault)


def main() -> int:
    """Returns the number of faults that no test found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(f.name for f in FAULTS))
    names = parser.parse_args().names
    if unknown := set(names) - {f.name for f in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="uccl-ep-planted-") as folder:
        for verdict in plant_all(Path(folder), [f for f in FAULTS if not names or f.name in names]):
            missed += bool(verdict.missed)
            found = "; ".join(verdict.missed) if verdict.missed else f"found by {', '.join(verdict.fault.tests)}"
            print(f"{verdict.fault.name:32} {verdict.seconds:5.0f} s  {found}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
