"""Makes every TEST of tests/**/test_*.cpp a pytest item: builds the native test programs once, runs each TEST alone.

Kernels' tests run with warps of 32 lanes; with 64, as on AMD processors, and with one, as a CPU runs kernels, they are
marked slow, and built only where slow tests are wanted. --native-only leaves the Python tests out; --sanitize
thread|address runs the native tests of an instrumented build, --cross aarch64 those of another processor's, in an
emulator.
"""

from __future__ import annotations

import fcntl
import gc
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# Before anything imports torch: many ranks share few cores, and OpenMP threads that spin stretch milliseconds to
# scheduler time slices. Child processes inherit these.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import pytest  # noqa: E402

try:
    from hypothesis import settings
except ImportError:
    pass  # bench/device_check.sh brings only what tests/gpu takes
else:
    settings.register_profile("no deadlines", deadline=None)  # a busy machine is no fault; limits are pytest's
    settings.load_profile("no deadlines")

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = ("thread", "address")
EMULATED = {"aarch64": ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]}
# By warp width; the others than the first are built where slow tests are wanted.
PROGRAMS = {32: "native_tests", 64: "native_tests_wave64", 1: "native_tests_wave1"}
# Seconds of one TEST; below pytest's own limit, which would end the session.
LIMIT_S = {"": 50, "thread": 240, "address": 150, "aarch64": 240}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("native", "native tests (C++)")
    group.addoption("--sanitize", choices=SANITIZERS, help="run the native tests, and only those, under a sanitizer")
    group.addoption("--cross", choices=EMULATED, help="run the native tests, and only those, for another processor")
    group.addoption("--native-only", action="store_true", help="collect no Python test")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    native_only = any(map(config.getoption, ("--native-only", "--sanitize", "--cross")))
    return True if native_only and collection_path.suffix == ".py" else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".cpp" and file_path.name.startswith("test_"):
        return NativeFile.from_parent(parent, path=file_path)
    return None


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    if "torch" in sys.modules:  # imported by a plug-in before the variables above were set
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected lives until the end, so no garbage collection walks it: neither now nor below a test."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """What a whole collection has left, the modules that the test imported above all, no later one walks again.

    What the test has dropped since goes first, or it would stay.
    """
    before = gc.get_stats()[2]["collections"]
    yield
    if gc.get_stats()[2]["collections"] != before:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of alike cases (mostly_slow) only a sample is quick: the same one everywhere, and of all their parameters."""
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("mostly_slow") and not item.get_closest_marker("slow"):
            alike.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for function, cases in alike.items():
        marker = cases[0].get_closest_marker("mostly_slow")
        quick = marker.kwargs.get("quick", 1) if marker else 0
        random.Random(function).shuffle(cases)
        for case in cases[quick:]:
            case.add_marker(pytest.mark.slow)


class NativeBuild:
    """One configured and built folder of native test programs: build/native, or build/native-<kind>.

    Args:
        kind: a sanitizer, a processor of EMULATED, or "".
        run: what the workers of one run of pytest-xdist have in common, so that the first of them builds; "": none.
    """

    def __init__(self, kind: str, widths: Iterable[int] = PROGRAMS, run: str = "") -> None:
        self.run = run and f"{run}: {sorted(widths)}"
        self.kind = kind
        self.sanitize = kind if kind in SANITIZERS else ""
        self.emulator = EMULATED.get(kind, [])
        self.folder = ROOT / "build" / ("native" + (f"-{kind}" if kind else ""))
        self.programs = {width: PROGRAMS[width] for width in widths}
        self.tests: dict[tuple[int, str], list[str]] = {}  # (warp width, source file) -> names

    def make(self) -> None:
        """Builds, then asks each program for its tests. Raises CollectError with the whole output."""
        cmake = _tool("cmake")
        self.folder.mkdir(parents=True, exist_ok=True)
        configure = [cmake, "-S", str(ROOT), "-B", str(self.folder), "-G", "Ninja", "-DUCCL_EP_TESTS=ON"]
        configure += [f"-DUCCL_EP_SANITIZE={self.sanitize}", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"]
        if self.emulator:
            _tool(self.emulator[0])
            configure += [f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/{self.kind}.cmake"]
        with open(self.folder / ".lock", "a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several pytest processes may share the folder
            lock.seek(0)
            if self.run and lock.read() == self.run:
                return self._list()  # another worker of this run has built it
            moved = _run(configure).returncode != 0 and (self.folder / "CMakeCache.txt").exists()
            hint = "configure the native tests (is a C++20 compiler installed? g++ 12 or newer, or CXX=...)"
            _must_run([*configure, "--fresh"] if moved else configure, hint)
            targets = list(self.programs.values())
            _must_run([cmake, "--build", str(self.folder), "--target", *targets], "build the native tests")
            lock.seek(0)
            lock.truncate()
            lock.write(self.run)
        return self._list()

    def _list(self) -> None:
        for wave, program in self.programs.items():
            listing = _must_run([*self.emulator, str(self.folder / program), "--list"], f"list the tests of {program}")
            for line in listing.splitlines():
                name, file = line.split("\t")
                file = file[file.index("tests/") :]  # ccache makes it relative to the build's folder
                self.tests.setdefault((wave, file), []).append(name)


def _tool(name: str) -> str:
    """A build tool: the one beside this Python (from PyPI) before the machine's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        how = "docker/install.sh arm" if name.startswith("qemu") else f"pip install {name}"
        raise pytest.Collector.CollectError(f"{name} is missing, so no native test can run: {how}")
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def _must_run(command: list[str], purpose: str) -> str:
    done = _run(command)
    if done.returncode != 0:
        raise pytest.Collector.CollectError(f"could not {purpose}\n$ {' '.join(command)}\n{done.stdout}")
    return done.stdout


def _widths(config: pytest.Config) -> list[int]:
    if any(map(config.getoption, ("--sanitize", "--cross"))) or config.getoption("-m").startswith("not slow"):
        return [32]
    return list(PROGRAMS)


_builds: dict[str, NativeBuild | str] = {}  # by kind: what was built, or why it was not


def _build(config: pytest.Config) -> NativeBuild:
    """The session's build. Its failure is shown in full once; every further test file refers to it."""
    kind = config.getoption("--sanitize") or config.getoption("--cross") or ""
    known = _builds.get(kind)
    if isinstance(known, str):
        raise pytest.Collector.CollectError(known)
    if known is None:
        _builds[kind] = "the native tests were not built: see the first of these errors"
        known = NativeBuild(kind, _widths(config), getattr(config, "workerinput", {}).get("testrunuid", ""))
        known.make()
        _builds[kind] = known
    return known


class NativeFile(pytest.File):
    """A C++ test file."""

    def collect(self) -> Iterator[NativeTest]:
        build = _build(self.config)
        file = self.path.relative_to(ROOT).as_posix()
        if (32, file) not in build.tests and not build.sanitize:  # a sanitizer may rule a file's subject out
            raise self.CollectError(f"{file} holds no TEST, so it proves nothing")
        for wave in build.programs:
            for name in build.tests.get((wave, file), []):
                item = NativeTest.from_parent(self, name=name if wave == 32 else f"{name}[wave{wave}]")
                prefix = build.emulator or _fixed_addresses()
                item.command = [*prefix, str(build.folder / build.programs[wave]), name]
                item.limit_s = LIMIT_S[build.kind]
                item.add_marker(pytest.mark.native)
                if wave != 32:
                    item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.timeout(item.limit_s + 8))
                yield item


class NativeFailure(Exception):
    """A native test failed; the text is what it printed."""


class NativeTest(pytest.Item):
    """One TEST, in a process of its own."""

    command: list[str]
    limit_s: int

    def runtest(self) -> None:
        env = dict(os.environ, UCCL_EP_NATIVE_TEST_LIMIT_S=str(self.limit_s))
        env["TSAN_OPTIONS"] = "halt_on_error=1:second_deadlock_stack=1:" + env.get("TSAN_OPTIONS", "")
        env["UBSAN_OPTIONS"] = "print_stacktrace=1:" + env.get("UBSAN_OPTIONS", "")
        process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=env,
            start_new_session=True,  # so that what the test started ends with it
        )
        try:
            output, _ = process.communicate(timeout=self.limit_s + 3)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        if process.returncode != 0:
            raise NativeFailure(f"{self._why(process.returncode)}\n{output.decode(errors='replace')}")

    def _why(self, status: int) -> str:
        if status in (-signal.SIGALRM, -signal.SIGKILL):
            return f"took longer than its limit of {self.limit_s} s"
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"failed with status {status}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, NativeFailure):
            return f"{excinfo.value}\nto repeat: {' '.join(self.command)}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def _fixed_addresses() -> list[str]:
    """A prefix that switches address randomisation off where GCC 12's ThreadSanitizer would refuse to start."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    wide = bits.exists() and os.access(bits, os.R_OK) and int(bits.read_text()) > 28
    return ["setarch", platform.machine(), "-R"] if wide and shutil.which("setarch") else []
