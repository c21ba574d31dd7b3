"""All kernels for a processor with a compiler that only counts: the cache's keys, progress, errors, many processes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu import build as build_module
from uccl_ep.gpu.build import build, digest_of_headers, key_of, native_shared_bytes, progress
from uccl_ep.gpu.cache import KernelCache
from uccl_ep.gpu.compiler import Code, Usage, find_programs, include_root, source_of

ROOT = Path(__file__).resolve().parents[3]


class CountingCompiler:
    """Makes a text out of the source; keeps what it was asked for."""

    def __init__(self, version: str = "counting 1.0", pause_s: float = 0.0) -> None:
        self.version, self.pause_s = version, pause_s
        self.asked: list[tuple[str, str]] = []
        self.broken = ""
        self._lock = threading.Lock()

    def compile(self, source: str, name: str, arch: str, root: Path) -> Code:
        with self._lock:
            self.asked.append((name, arch))
        time.sleep(self.pause_s)
        if name == self.broken:
            raise UcclEpError(f"{name}(7): error")
        return Code(f"{self.version} {arch} {source}".encode(), (Usage(name, 1, 2, 3),), self.pause_s)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the headers that a test may change."""
    for folder in ("kernels", "proxy/wire", "proxy/ring"):
        source, target = include_root() / folder, tmp_path / "root" / folder
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.cpp", "*.md"))
    return tmp_path / "root"


def test_build_makes_every_kernel_once_and_then_none(root: Path, tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), KernelCache(tmp_path / "cache")
    first = build("sm_90a", compiler, cache, root)
    assert sorted(k for b in first for k in b.program.kernels) == sorted(_native.kernel_arguments())
    assert sorted(name for name, _ in compiler.asked) == sorted(p.header for p in find_programs(root))
    assert not any(b.cached for b in first) and {b.arch for b in first} == {"sm_90a"}
    for b in first:
        for kernel in b.program.kernels:
            assert (
                f"ArgumentOf<decltype({kernel})>::bytes == {_native.kernel_arguments()[kernel]}ull".encode()
                in b.code.binary
            )
    again = build("sm_90a", compiler, KernelCache(tmp_path / "cache"), root)
    assert [b.code for b in again] == [b.code for b in first]
    assert all(b.cached for b in again) and len(compiler.asked) == len(first)


def test_build_compiles_again_when_anything_changes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(tmp_path / "cache")
    total = len(build("sm_90a", CountingCompiler(), cache, root))

    def compiled(arch: str = "sm_90a", version: str = "counting 1.0") -> int:
        compiler = CountingCompiler(version)
        build(arch, compiler, cache, root)
        return len(compiler.asked)

    assert compiled() == 0
    assert compiled(arch="sm_80") == total
    assert compiled(version="counting 1.1") == total
    header = root / "proxy" / "wire" / "types.h"  # none of the programs, but all include it
    before = header.read_bytes()
    header.write_bytes(before + b"\n")
    assert compiled() == total
    header.write_bytes(before)
    assert compiled() == 0
    monkeypatch.setattr(build_module.uccl_ep, "__version__", "9.9.9")
    assert compiled() == total
    monkeypatch.setattr(build_module, "flags", lambda arch: ("--other",))
    assert compiled() == total


def test_build_keys_do_not_run_together(root: Path) -> None:
    keys = {
        key_of("source", "sm_80", "1", "2"),
        key_of("source", "sm_80", "12", ""),
        key_of("", "sm_80", "1", "2source"),
    }
    assert len(keys) == 3 and all(len(key) == 64 for key in keys)
    digest = digest_of_headers(root)
    (root / "kernels" / "layout" / "new.h").write_text("")  # an empty file counts: an include may now find it
    assert digest_of_headers(root) != digest


def test_build_compiles_one_broken_entry_again(root: Path, tmp_path: Path) -> None:
    cache, compiler = KernelCache(tmp_path), CountingCompiler()
    build("sm_90a", compiler, cache, root)
    entries = sorted(tmp_path.glob("*.kernel"))
    entries[3].write_bytes(entries[3].read_bytes()[:-5])
    assert sum(not b.cached for b in build("sm_90a", compiler, cache, root)) == 1


def test_build_passes_the_compilers_error_on(root: Path, tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), KernelCache(tmp_path / "cache")
    compiler.broken = find_programs(root)[1].header
    with pytest.raises(UcclEpError, match=r"\(7\): error"):
        build("sm_90a", compiler, cache, root)
    asked = len(compiler.asked)
    compiler.broken = ""
    built = build("sm_90a", compiler, cache, root)  # what had been made is kept
    assert len(compiler.asked) - asked == sum(not b.cached for b in built) < len(built) + 1


RANK = """
import sys, time
from pathlib import Path
from tests.uccl_ep.gpu.test_build import CountingCompiler
from uccl_ep.gpu.build import build
from uccl_ep.gpu.cache import KernelCache
compiler = CountingCompiler(pause_s=0.03)
built = build("sm_90a", compiler, KernelCache(Path(sys.argv[1])))
print(" ".join(name for name, _ in compiler.asked))
assert all(b.code.binary.startswith(b"counting") for b in built)
"""


def test_build_eight_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
        )
        for _ in range(8)
    ]
    asked = []
    for process in processes:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0
        asked += output.split()
    assert sorted(asked) == sorted(p.header for p in find_programs(include_root()))


def test_build_makes_the_rest_while_another_makes_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module.os, "sched_getaffinity", lambda _: {0})  # one thread: it must not wait first
    compiler, slow = CountingCompiler(), CountingCompiler()
    first, total = find_programs(root)[0], len(find_programs(root))
    source = source_of(first, "sm_90a", _native.kernel_arguments(), native_shared_bytes)
    key = key_of(source, "sm_90a", compiler.version, digest_of_headers(root))
    inside, rest_done = threading.Event(), threading.Event()

    def make() -> Code:
        inside.set()
        assert rest_done.wait(20), "the rest waits for this one"
        return slow.compile(source, first.header, "sm_90a", root)

    thread = threading.Thread(target=KernelCache(tmp_path).obtain, args=(key, make))
    thread.start()
    assert inside.wait(20)
    compile_one = compiler.compile

    def counted(*arguments: Any) -> Code:
        code = compile_one(*arguments)
        if len(compiler.asked) == total - 1:
            rest_done.set()
        return code

    monkeypatch.setattr(compiler, "compile", counted)
    built = build("sm_90a", compiler, KernelCache(tmp_path), root)
    thread.join(20)
    assert first.header not in {name for name, _ in compiler.asked}
    assert [b.cached for b in built] == [True] + (total - 1) * [False]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_build_progress_is_silent_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with progress(8, "sm_90a", stream) as show:
        for done in range(9):
            show(done)
    assert stream.getvalue() == ""
    monkeypatch.setattr(build_module, "QUIET_S", 0.0)
    with progress(8, "sm_90a", stream) as show:
        for done in (0, 0, 3, 3, 8):
            show(done)
    assert stream.getvalue().splitlines() == [f"uccl-ep: compiling 8 kernels for sm_90a: {n}/8" for n in (0, 3, 8)]


def test_build_progress_is_at_most_a_line_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [100.0]
    monkeypatch.setattr(build_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress(50, "sm_90a", stream) as show:
        for done in range(51):
            now[0] += 0.125
            show(done)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 51 * 0.125 // 1 + 1 and lines[-1].endswith("50/50")


def test_build_progress_moves_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "QUIET_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress(8, "gfx942", stream) as show:
        show(2)
        time.sleep(0.15)  # the picture is drawn eight times a second
        show(5)
        time.sleep(0.3)
    assert "compiling 8 kernels for gfx942" in stream.getvalue() and "5/8" in stream.getvalue()
