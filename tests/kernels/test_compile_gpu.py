"""Compiles every kernel for NVIDIA and AMD processors, on a machine with neither, and prints what each one uses.

NVRTC (through CuPy's low-level binding, which needs no driver) makes cubins; ziglang's clang makes AMD assembly.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVIDIA = ("sm_80", "sm_90a", "sm_100a")
AMD = ("gfx942", "gfx950")
INCLUDES = (str(ROOT), str(ROOT / "proxy"))
PACKAGES = "cupy-cuda13x nvidia-cuda-nvrtc ziglang"
FOLDERS = ("kernels", "tests/kernels/device")
MOST_REGISTERS = 255  # per lane; what one NVIDIA thread can address, so also the least common denominator
# Bytes a lane may spill to memory. Without KERNEL_BOUNDS a kernel is compiled for blocks of 1,024 lanes, which leaves
# 128 vector registers on AMD: the reduction in combine_recv wants a few more.
MOST_SPILLED_BYTES = {("low_latency_combine_recv", "gfx942"): 128, ("low_latency_combine_recv", "gfx950"): 128}

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
_ENTRY = re.compile(r"^KERNEL\s+(?:KERNEL_BOUNDS\([^()]*\)\s+)?(\w+)\s*\(", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    header: str
    kernel: str
    arch: str
    registers: int  # per lane (AMD: vector registers)
    shared_bytes: int  # static, per block
    spilled_bytes: int  # per lane, to memory
    scalar_spills: int  # AMD: scalars kept in lanes of vector registers; costs instructions, no memory


def headers() -> dict[str, list[str]]:
    """Headers with entry points, and those entry points' names."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.h")):
            names = _ENTRY.findall(path.read_text())
            if names:
                found[path.relative_to(ROOT).as_posix()] = names
    return found


def need(module: str) -> ModuleType:
    """A module of the [compile] extra; its absence fails the test, and says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = str(error)
    pytest.fail(f"{missing}\nto compile for GPUs: pip install {PACKAGES}", pytrace=False)


def compile_nvidia(source: str, arch: str) -> tuple[bytes, str]:
    """The cubin and the assembler's report."""
    nvrtc = need("cupy.cuda").nvrtc
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false"]
    options += ["--device-as-default-execution-space", "--ptxas-options=-v"]  # wire/ says plain constexpr
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, tuple(options + [f"-I{path}" for path in INCLUDES]))
    except nvrtc.NVRTCError:
        pytest.fail(f"NVRTC, {arch}:\n{nvrtc.getProgramLog(program)}", pytrace=False)
    return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)


def compile_amd(source: str, arch: str, folder: Path) -> str:
    """Assembly with its metadata."""
    need("ziglang")
    file = folder / f"kernel_{arch}.hip"
    file.write_text(source)
    command = [sys.executable, "-m", "ziglang", "clang", "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only"]
    command += ["-nogpulib", "-nogpuinc", "-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{path}" for path in INCLUDES] + ["-S", "-o", "-", str(file)]
    cache = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **cache})
    if done.returncode != 0:
        pytest.fail(f"clang, {arch}:\n{done.stderr}", pytrace=False)
    return done.stdout


def usage_nvidia(header: str, arch: str, report: str) -> Iterator[Usage]:
    """From `ptxas info : Compiling entry function 'k' ... / n bytes spill stores ... / Used n registers ... smem`."""
    blocks = re.split(r"Compiling entry function '(\w+)' for", report)[1:]
    for name, text in zip(blocks[::2], blocks[1::2], strict=True):
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        registers = re.search(r"Used (\d+) registers", text)
        shared = re.search(r"(\d+) bytes smem", text)
        assert registers and spills, f"the assembler's report has another form:\n{report}"
        yield Usage(header, name, arch, int(registers[1]), int(shared[1]) if shared else 0, int(spills[1]), 0)


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
    source = f'#include "{header}"\n'
    if arch in NVIDIA:
        cubin, report = compile_nvidia(source, arch)
        assert cubin.startswith(b"\x7fELF")
        rows = list(usage_nvidia(header, arch, report))
    else:
        rows = list(usage_amd(header, arch, compile_amd(source, arch, tmp_path)))
    assert sorted(u.kernel for u in rows) == sorted(headers()[header])
    usages += rows
    for u in rows:
        assert 0 < u.registers <= MOST_REGISTERS, u
        most = MOST_SPILLED_BYTES.get((u.kernel, u.arch), 0)
        assert u.spilled_bytes <= most or header.startswith("tests/"), f"{u}: at most {most} B: spills cost traffic"


def test_compile_gpu_covers_every_entry_point() -> None:
    """None is written in a way that the pattern does not see."""
    seen = headers()
    assert len(seen) >= 8, seen
    for path in sorted((ROOT / "kernels").rglob("*.h")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"(?!\s*#).*\bKERNEL\b.*\(", line)]
        name = path.relative_to(ROOT).as_posix()
        assert len(lines) == len(seen.get(name, [])), f"{name}: {lines}"


def test_compile_gpu_refuses_wrong_code(tmp_path: Path) -> None:
    wrong = '#include "kernels/device/simt.h"\nKERNEL k(int* p) { *p = no_such_name; }\n'
    with pytest.raises(pytest.fail.Exception, match="no_such_name"):
        compile_nvidia(wrong, "sm_90a")
    with pytest.raises(pytest.fail.Exception, match="no_such_name"):
        compile_amd(wrong, "gfx942", tmp_path)
