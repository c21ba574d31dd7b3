"""Plants known faults, one at a time, and demands that a native test finds each.

`python -m tests.planted.plant [NAME...]` plants those (all by default) and prints a table. Nothing is copied: the tree
is compiled once under ThreadSanitizer (a fault of behaviour fails there as it does without), then for each fault what
depends on the changed file, which lies in a folder that the compiler looks into first. Two faults at a time.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.planted.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
_JOBS = 2
_TEST_LIMIT_S = 150
_BUILD_LIMIT_S = 400
_FLAGS = ("-std=c++20", "-w", "-O1", "-g1", "-ffp-contract=off", "-fno-omit-frame-pointer", "-fsanitize=thread")
_WAVE = "-DUCCL_SIMT_WARP=32"
_FOLDERS = ("", "proxy", "tests")  # where includes are looked up, below the changed files' folder and below the root
# As in cmake/libraries.cmake: ThreadSanitizer cannot follow what switches stacks.
_UNSANITIZED = re.compile(r"kernels/host/(runtime|fiber)[^/]*\.cpp$")
_TEST = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)


@dataclass
class Verdict:
    """What became of one planted fault."""

    fault: Fault
    missed: list[str] = field(default_factory=list)  # tests that passed, or failed for another reason
    seconds: float = 0.0


class PlantError(Exception):
    """The fault could not be planted, or the tree without it does not pass."""


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, cwd=ROOT)
    if done.returncode != 0:
        raise PlantError(f"$ {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-6000:]}")


@functools.cache
def _sources(files: tuple[Path, ...]) -> list[Path]:
    """What a program of these test files is made of, themselves first. Looked up once: others may edit the tree."""
    product = [p for p in (ROOT / "proxy").rglob("*.cpp") if p.parent.name not in ("bindings", "simulation")]
    # kernels/cpu has warps of another width; its own test is not among those that find faults.
    kernels = [p for p in (ROOT / "kernels").rglob("*.cpp") if p.parent.name != "cpu"]
    product += kernels
    if any("simulation" in file.parts for file in files):
        product += (ROOT / "proxy/simulation").glob("*.cpp")
    helpers = [p for p in (ROOT / "tests/kernels").rglob("*.cpp") if not p.name.startswith("test_")]
    harness = (ROOT / "tests/native").glob("*.cpp")
    return [*files, *sorted(harness), *sorted(product), *sorted(helpers)]


class Nursery:
    """Objects of the tree as it is, and programs in which one file is another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of: dict[str, Path] = {}
        for path in [*(ROOT / "tests/kernels").rglob("test_*.cpp"), *(ROOT / "tests/exhaustive").glob("test_*.cpp"),
                     *(ROOT / "tests/proxy/simulation").glob("test_*.cpp"),
                     ROOT / "tests/proxy/engine/test_arrivals.cpp"]:  # fmt: skip
            self.file_of.update(dict.fromkeys(_TEST.findall(path.read_text()), path))

    def prepare(self, faults: list[Fault]) -> None:
        """Compiles what the tests of these faults need, and demands that they pass.

        Raises:
            PlantError: the tree does not compile, there is no such test, or one fails.
        """
        groups = list(dict.fromkeys(fault.tests for fault in faults))
        if unknown := [t for group in groups for t in group if t not in self.file_of]:
            raise PlantError(f"no such test: {', '.join(unknown)}")
        wanted = list(dict.fromkeys(p for group in groups for p in _sources(self._files(group))))
        with ThreadPoolExecutor(_JOBS) as pool:
            list(pool.map(lambda source: self._compile(source, None), wanted))
            list(pool.map(self._must_pass, groups))

    def _must_pass(self, tests: tuple[str, ...]) -> None:
        program = self._link(tests, None)
        for test in tests:
            passed, output = self._test(program, test)
            if not passed:
                raise PlantError(f"{test} fails without a planted fault:\n{output[-4000:]}")

    def plant(self, fault: Fault) -> Verdict:
        """Plants the fault, builds what depends on it, and runs its tests."""
        started = time.monotonic()
        healthy = (ROOT / fault.file).read_text()
        found = healthy.count(fault.text)
        if found != 1:
            raise PlantError(f"{fault.name}: {fault.file} holds the text to change {found} times:\n{fault.text}")
        changed = self._home(fault) / fault.file
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(healthy.replace(fault.text, fault.planted))
        for source in _sources(self._files(fault.tests)):
            if (
                source == ROOT / fault.file
                or str(ROOT / fault.file)
                in self._object(source, None).with_suffix(".d").read_text().replace("\\\n", " ").split()
            ):
                self._compile(source, fault)
        program = self._link(fault.tests, fault)
        verdict = Verdict(fault)
        for test in fault.tests:
            passed, output = self._test(program, test)
            if passed or not any(sign in output for sign in fault.shows.split("|")):
                verdict.missed.append(f"{test}: {'passed' if passed else output[-1500:]}")
        shutil.rmtree(self._home(fault))
        verdict.seconds = time.monotonic() - started
        return verdict

    def _files(self, tests: Iterable[str]) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.file_of[test] for test in tests))

    def _home(self, fault: Fault | None) -> Path:
        return self.folder / (fault.name if fault else "healthy")

    def _object(self, source: Path, fault: Fault | None) -> Path:
        name = "_".join(source.relative_to(ROOT).with_suffix(".o").parts)
        return self._home(fault) / "objects" / name

    def _compile(self, source: Path, fault: Fault | None) -> None:
        target = self._object(source, fault)
        target.parent.mkdir(parents=True, exist_ok=True)
        roots = [ROOT] if fault is None else [self._home(fault), ROOT]
        planted = fault is not None and source == ROOT / fault.file
        command = [os.environ.get("CXX", "g++"), *_FLAGS, _WAVE, *(f"-I{r / f}" for r in roots for f in _FOLDERS)]
        if _UNSANITIZED.search(source.as_posix()):
            command += ["-fno-sanitize=thread", "-DUCCL_SIMT_TSAN"]
        at = self._home(fault) / source.relative_to(ROOT) if planted else source
        _run([*command, "-MMD", "-c", str(at), "-o", str(target)])

    def _link(self, tests: tuple[str, ...], fault: Fault | None) -> Path:
        sources = _sources(self._files(tests))
        objects = [
            str(self._object(s, fault if fault and self._object(s, fault).exists() else None)) for s in sources
        ]  # fmt: skip
        program = self._home(fault) / "_".join(tests)[:200]  # by tests: those of one file are linked side by side
        _run([os.environ.get("CXX", "g++"), *_FLAGS, *objects, "-o", str(program), "-lpthread", "-ldl"])
        return program

    def _test(self, program: Path, name: str) -> tuple[bool, str]:
        """(passed, output) of one TEST."""
        environment = dict(os.environ, UCCL_EP_NATIVE_TEST_LIMIT_S=str(_TEST_LIMIT_S), TSAN_OPTIONS="halt_on_error=1")
        command = [str(program), name]
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
            cwd=ROOT,
        )
        return done.returncode == 0, done.stdout


def plant_all(folder: Path, faults: Iterable[Fault] = FAULTS) -> Iterator[Verdict]:
    """Plants each fault, two at a time; `folder` takes what is built.

    Raises:
        PlantError: a test fails without any fault, or a fault does not apply.
    """
    chosen = list(faults)
    nursery = Nursery(folder)
    nursery.prepare(chosen)
    with ThreadPoolExecutor(_JOBS) as pool:
        yield from pool.map(nursery.plant, chosen)


def main() -> int:
    """Returns the number of faults that no test found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(f.name for f in FAULTS))
    names = parser.parse_args().names
    if unknown := set(names) - {f.name for f in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    missed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="uccl-ep-planted-") as folder:
        for verdict in plant_all(Path(folder), [f for f in FAULTS if not names or f.name in names]):
            missed += bool(verdict.missed)
            found = "; ".join(verdict.missed) if verdict.missed else f"found by {', '.join(verdict.fault.tests)}"
            print(f"{verdict.fault.name:32} {verdict.seconds:5.0f} s  {found}", flush=True)
    print(f"{time.monotonic() - began:.0f} s in all, {missed} not found")
    return missed


if __name__ == "__main__":
    sys.exit(main())
