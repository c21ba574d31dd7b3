"""Compiles every kernel for NVIDIA and AMD processors, on a machine with neither, and prints what each one uses.

The package's own compiler (uccl_ep/gpu/compiler.py: NVRTC through CuPy, which needs no driver) makes cubins; ziglang's
clang, with the flags that hiprtc gets there, makes AMD assembly.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.build import native_shared_bytes
from uccl_ep.gpu.compiler import FOLDERS as PRODUCT
from uccl_ep.gpu.compiler import (
    MAX_BLOCK_LANES,
    Program,
    RuntimeCompiler,
    find_programs,
    flags,
    include_flags,
    source_of,
)

ROOT = Path(__file__).resolve().parents[2]
NVIDIA = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
AMD = ("gfx90a", "gfx942", "gfx950")
AMD_SHARED_BYTES = 64 << 10  # of a block, on the smallest of them
PACKAGES = "cupy-cuda13x nvidia-cuda-nvrtc ziglang"
FOLDERS = (*PRODUCT, "tests/kernels/device")
MOST_REGISTERS = 255  # per lane; what one NVIDIA thread can address, so also the least common denominator

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Usage:
    header: str
    kernel: str
    arch: str
    registers: int  # per lane (AMD: vector registers)
    shared_bytes: int  # static, per block
    spilled_bytes: int  # per lane, to memory
    scalar_spills: int  # AMD: scalars kept in lanes of vector registers; costs instructions, no memory


def headers() -> dict[str, Program]:
    """Headers with entry points."""
    return {program.header: program for program in find_programs(ROOT, FOLDERS)}


def need(module: str) -> None:
    """A module of the [compile] extra; its absence fails the test, and says what to install."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        pytest.fail(f"{error}\nto compile for GPUs: pip install {PACKAGES}", pytrace=False)


@functools.cache
def nvrtc() -> RuntimeCompiler:
    need("cupy.cuda")
    return RuntimeCompiler()


def compile_amd(source: str, arch: str, folder: Path) -> str:
    """Assembly with its metadata."""
    need("ziglang")
    file = folder / f"kernel_{arch}.hip"
    file.write_text(source)
    command = [sys.executable, "-m", "ziglang", "clang", "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc"]
    command += ["-Wall", "-Wextra", "-Werror", *flags(arch), *include_flags(ROOT), "-S", "-o", "-", str(file)]
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **cache})
    if done.returncode != 0:
        pytest.fail(f"clang, {arch}:\n{done.stderr}", pytrace=False)
    return done.stdout


def usage_amd(header: str, arch: str, assembly: str) -> Iterator[Usage]:
    """From the kernels' metadata at the end of the assembly."""
    metadata = assembly[assembly.index("amdhsa.kernels:") :]
    for entry in re.split(r"^  - ", metadata, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^\s*\.(\w+):\s+(\S+)$", entry, flags=re.MULTILINE))
        if "vgpr_count" not in fields:
            continue
        shared, spilled = int(fields["group_segment_fixed_size"]), 4 * int(fields["vgpr_spill_count"])
        scalars = int(fields["sgpr_spill_count"])
        yield Usage(header, fields["name"], arch, int(fields["vgpr_count"]), shared, spilled, scalars)


def table(rows: list[Usage]) -> str:
    heads = ("kernel", "processor", "registers", "shared B", "spilled B", "scalar spills")
    cells = [(u.kernel, u.arch, u.registers, u.shared_bytes, u.spilled_bytes, u.scalar_spills) for u in rows]
    lines = [f"{row[0]:36} {row[1]:10}" + "".join(f" {value:>13}" for value in row[2:]) for row in [heads, *cells]]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def usages(request: pytest.FixtureRequest) -> Iterator[list[Usage]]:
    """Collects what the tests below see; printed when the last one has run."""
    rows: list[Usage] = []
    yield rows
    rows.sort(key=lambda u: (u.header, u.kernel, (*NVIDIA, *AMD).index(u.arch)))
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + table(rows))


@pytest.mark.parametrize("arch", NVIDIA + AMD)
@pytest.mark.parametrize("header", headers())
def test_compile_gpu(header: str, arch: str, usages: list[Usage], tmp_path: Path) -> None:
    program = headers()[header]
    source = source_of(program, arch, _native.kernel_arguments(), native_shared_bytes)
    if arch in NVIDIA:
        code = nvrtc().compile(source, header, arch, ROOT)
        assert code.binary.startswith(b"\x7fELF")
        rows = [Usage(header, u.kernel, arch, u.registers, u.shared_bytes, u.spilled_bytes, 0) for u in code.usage]
    else:
        rows = list(usage_amd(header, arch, compile_amd(source, arch, tmp_path)))
    assert sorted(u.kernel for u in rows) == sorted(program.kernels)
    usages += rows
    for u in rows:
        assert 0 < u.registers <= MOST_REGISTERS, u
        assert u.spilled_bytes == 0 or header.startswith("tests/"), f"{u}: spills cost traffic"
        if arch in AMD and not header.startswith("tests/"):
            dynamic = native_shared_bytes(u.kernel, MAX_BLOCK_LANES // 64)
            assert u.shared_bytes + dynamic <= AMD_SHARED_BYTES, f"{u}: {dynamic} more at a launch"


def global_accesses_to_shared(ptx: str) -> list[str]:
    """Instructions that name the global space and take an address made from shared memory's: a GPU faults there, and
    nothing else notices."""
    found = []
    for entry in re.split(r"\.entry ", ptx)[1:]:
        made = set(re.findall(r"\.shared[^;]*?\s(\w+)\[", ptx))
        lines = [line.strip() for line in entry.splitlines()]
        before = -1
        while len(made) != before:  # until no more registers follow from those known
            before = len(made)
            for line in lines:
                step = re.match(r"(?:mov|cvta\.shared|add|sub|or|selp|cvt|mad|mul)[\w.:]*\s+(%\w+),\s*(.*);", line)
                if step and made.intersection(re.findall(r"[%\w$]+", step[2])):
                    made.add(step[1])
        for line in lines:
            access = re.search(r"\.global[\w.:]*\s+[^\[]*\[(%\w+)", line)
            if access and access[1] in made:
                found.append(line)
    return found


@pytest.mark.parametrize("header", headers())
def test_compile_gpu_shared_memory_is_not_accessed_as_global(header: str) -> None:
    source = source_of(headers()[header], "sm_80", _native.kernel_arguments())
    ptx = nvrtc().compile(source, header, "compute_80", ROOT).binary.decode()
    assert ".entry" in ptx and global_accesses_to_shared(ptx) == []


def test_compile_gpu_sees_shared_memory_accessed_as_global() -> None:
    """So that the test above can fail."""
    wrong = """#include "kernels/device/simt.h"
struct S { unsigned before[5], word; };
KERNEL k(int* p) {
  unsigned* word = &uccl::simt::smem<S>().word;
  asm volatile("st.release.gpu.global.u32 [%0],%1;" ::"l"(word), "r"(1u) : "memory");
  asm volatile("st.release.gpu.global.u32 [%0],%1;" ::"l"(p), "r"(1u) : "memory");
}
"""
    (line,) = global_accesses_to_shared(nvrtc().compile(wrong, "wrong", "compute_80", ROOT).binary.decode())
    assert "st.release.gpu.global.u32" in line


def test_compile_gpu_covers_every_entry_point() -> None:
    """None is written in a way that the pattern does not see."""
    seen = headers()
    assert len(seen) >= 8, seen
    for path in sorted((ROOT / "kernels").rglob("*.h")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"(?!\s*#).*\bKERNEL\b.*\(", line)]
        name = path.relative_to(ROOT).as_posix()
        assert len(lines) == len(seen[name].kernels if name in seen else ()), f"{name}: {lines}"


def test_compile_gpu_refuses_wrong_code(tmp_path: Path) -> None:
    wrong = '#include "kernels/device/simt.h"\nKERNEL k(int* p) { *p = no_such_name; }\n'
    with pytest.raises(UcclEpError, match="no_such_name"):
        nvrtc().compile(wrong, "wrong", "sm_90a", ROOT)
    with pytest.raises(pytest.fail.Exception, match="no_such_name"):
        compile_amd(wrong, "gfx942", tmp_path)
