"""The kernels of a GPU: loaded completely and once, launched by name with the right block and shared memory."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu import kernels as kernels_module
from uccl_ep.gpu.build import Built, native_shared_bytes
from uccl_ep.gpu.compiler import Code, Program, Usage, find_programs, include_root
from uccl_ep.gpu.driver import Facts
from uccl_ep.gpu.kernels import MAX_BLOCK_LANES, PLAIN_SHARED_BYTES, KernelLibrary, library


class RecordingDriver:
    """A GPU that runs nothing and writes everything down."""

    def __init__(self, warp: int = 32) -> None:
        arch = "sm_90a" if warp == 32 else "gfx942"
        self.facts = Facts("stub", arch, warp, 10, 65536, 1 << 30, "0", True, True)
        self.calls: list[tuple[Any, ...]] = []
        self.functions: list[str] = []

    def load(self, binary: bytes) -> bytes:
        self.calls.append(("load", binary))
        return binary

    def function(self, module: bytes, name: str) -> int:
        if name.encode() not in module.split():
            raise UcclEpError(f"no kernel {name}")
        self.calls.append(("function", name))
        self.functions.append(name)
        return 100 + len(self.functions) - 1

    def allow_shared(self, function: int, shared_bytes: int) -> None:
        self.calls.append(("allow", self.functions[function - 100], shared_bytes))

    def resident_blocks(self, function: int, block: int, shared_bytes: int) -> int:
        self.calls.append(("resident", self.functions[function - 100], block, shared_bytes))
        return 3

    def launch(self, function: int, grid: int, block: int, shared: int, stream: Any, args: bytes) -> None:
        self.calls.append(("launch", self.functions[function - 100], grid, block, shared, stream, args))


def build_names(arch: str, programs: tuple[Program, ...] | None = None) -> list[Built]:
    """Binaries that are the names of their kernels."""
    found = programs if programs is not None else find_programs(include_root())
    return [Built(p, arch, Code(" ".join(p.kernels).encode(), (), 0.0), False) for p in found]


def test_kernels_are_loaded_before_anything_is_launched() -> None:
    driver = RecordingDriver()
    made = KernelLibrary(driver, build_names)  # type: ignore[arg-type]
    names = sorted(_native.kernel_arguments())
    assert sorted(driver.functions) == names
    loading = len(driver.calls)
    for name in names:
        made.launch(name, bytes(_native.kernel_arguments()[name]), 7, 4, "stream")
    assert {call[0] for call in driver.calls[loading:]} == {"launch"}


@pytest.mark.parametrize("warp", [32, 64])
def test_kernels_launch_block_and_shared_memory(warp: int) -> None:
    driver = RecordingDriver(warp)
    made = KernelLibrary(driver, build_names)  # type: ignore[arg-type]
    for name, num_bytes in _native.kernel_arguments().items():
        args = os.urandom(num_bytes)
        for warps in (1, 3, _native.MAX_BLOCK_LANES // warp):
            made.launch(name, args, 5, warps, "stream")
            shared = _native.shared_bytes(name, args, warps)
            assert driver.calls[-1] == ("launch", name, 5, warps * warp, shared, "stream", args)
            assert made.resident_blocks(name, warps) == 30
            assert driver.calls[-1] == ("resident", name, warps * warp, made.shared_bytes(name, warps))
        for grid, warps in ((0, 1), (1, 0), (1, _native.MAX_BLOCK_LANES // warp + 1), (-1, 1)):
            with pytest.raises(UcclEpError, match=f"{name} with {grid} blocks of {warps} warps"):
                made.launch(name, args, grid, warps, "stream")
        with pytest.raises(ValueError, match=str(num_bytes)):
            made.launch(name, args + b"\0", 1, 1, "stream")


@pytest.mark.parametrize("most", [PLAIN_SHARED_BYTES, PLAIN_SHARED_BYTES + 1, 1 << 20])
def test_kernels_allow_much_shared_memory_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    driver = RecordingDriver()
    native = kernels_module._native
    monkeypatch.setattr(native, "shared_bytes", lambda name, args, warps: most * warps * 32 // MAX_BLOCK_LANES)
    KernelLibrary(driver, build_names)  # type: ignore[arg-type]
    allowed = [call[2] for call in driver.calls if call[0] == "allow"]
    assert allowed == ([] if most <= PLAIN_SHARED_BYTES else len(driver.functions) * [min(most, 65536)])


def test_kernels_static_shared_memory_counts_towards_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone is below what a block has without asking; the limit of a block holds for both together."""
    native = kernels_module._native
    monkeypatch.setattr(native, "shared_bytes", lambda name, args, warps: 30_000 * warps * 32 // MAX_BLOCK_LANES)

    def with_static(static: int) -> Callable[[str], list[Built]]:
        def build(arch: str) -> list[Built]:
            return [
                replace(b, code=replace(b.code, usage=tuple(Usage(k, 90, static, 0) for k in b.program.kernels)))
                for b in build_names(arch)
            ]

        return build

    for static, wanted in ((0, []), (PLAIN_SHARED_BYTES - 30_000, []), (32_900, [30_000]), (40_000, [25_536])):
        driver = RecordingDriver()
        KernelLibrary(driver, with_static(static))  # type: ignore[arg-type]
        assert [call[2] for call in driver.calls if call[0] == "allow"] == len(driver.functions) * wanted


def test_kernels_must_fit_the_native_module() -> None:
    programs = find_programs(include_root())
    with pytest.raises(UcclEpError, match=f"without a header .*{programs[0].kernels[0]}.*Reinstall"):
        KernelLibrary(RecordingDriver(), lambda arch: build_names(arch, programs[1:]))  # type: ignore[arg-type]
    more = (*programs, Program("kernels/new.h", ("newer_kernel",)))
    with pytest.raises(UcclEpError, match="newer_kernel"):
        KernelLibrary(RecordingDriver(), lambda arch: build_names(arch, more))  # type: ignore[arg-type]


def test_kernels_library_is_one_a_driver() -> None:
    driver, other, made, builds = RecordingDriver(), RecordingDriver(), [], []

    def build(arch: str) -> list[Built]:
        builds.append(arch)
        return build_names(arch)

    threads = [threading.Thread(target=lambda: made.append(library(driver, build))) for _ in range(8)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({id(m) for m in made}) == 1 and builds == ["sm_90a"]
    assert library(other, build) is not made[0]  # type: ignore[arg-type]
    made.clear()
    gc.collect()
    library(driver, build)  # type: ignore[arg-type]
    assert len(builds) == 3  # nobody had kept it


def test_kernels_a_failed_build_is_not_remembered() -> None:
    driver = RecordingDriver()

    def fails(arch: str) -> list[Built]:
        raise UcclEpError("no compiler")

    with pytest.raises(UcclEpError, match="no compiler"):
        library(driver, fails)  # type: ignore[arg-type]
    assert library(driver, build_names).driver is driver  # type: ignore[arg-type]


def test_kernels_shared_memory_is_enough_for_either_warp(tmp_path: Path) -> None:
    """The native module, built for warps of 32 lanes, is asked for the size; with AMD's 64 a kernel may need less."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    assert compiler, "no C++ compiler"
    root, checks = include_root(), []
    text = "".join(header.read_text() for header in sorted((root / "kernels").rglob("*.h")))
    for program in find_programs(root):
        for name, struct in zip(program.kernels, program.shared, strict=True):
            for warps in (1, 7, 16):
                size = native_shared_bytes(name, warps)
                if not struct:
                    assert size == 0, f"{name} is given {size} bytes and uses none"
                    continue
                type_name = f"uccl::{struct}"
                by_warps = re.search(rf"struct {struct} {{[^}}]*\bbytes\(u32 ", text)
                real = f"{type_name}::bytes({warps})" if by_warps else f"sizeof({type_name})"
                checks.append((real, size, f"{name}, {warps} warps"))
    assert len(checks) > 6
    headers = [f'#include "{p.header}"' for p in find_programs(root)]
    for wave, relation in ((32, "=="), (64, "<=")):
        lines = [f'static_assert({real} {relation} {size}, "{what}");' for real, size, what in checks]
        (tmp_path / "sizes.cpp").write_text("\n".join([*headers, *lines, ""]))
        command = [compiler, "-std=c++20", "-fsyntax-only", f"-DUCCL_SIMT_WARP={wave}", f"-I{root}", f"-I{root}/proxy"]
        done = subprocess.run([*command, str(tmp_path / "sizes.cpp")], capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr
