"""The probe kernels compile for NVIDIA's processors, with the scopes and instructions that the host cannot check.

Needs no GPU: NVRTC through CuPy's low-level binding, or nvcc; skipped where there is neither.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.compiler import RuntimeCompiler, flags, include_flags

ROOT = Path(__file__).resolve().parents[3]
PROBES = '#include "tests/kernels/device/probe_kernels.h"\n'
FUSION = """#include "kernels/device/simt.h"
KERNEL plain(float* p) { p[0] = p[1] * p[2] + p[3]; }
KERNEL fused(float* p) { p[0] = uccl::simt::fma_(p[1], p[2], p[3]); }
"""
KERNELS = ("probe_words", "probe_lanes", "probe_rows", "probe_ring")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


@functools.cache
def nvrtc() -> RuntimeCompiler | None:
    try:
        return RuntimeCompiler()
    except UcclEpError:  # no CuPy, or no NVRTC library
        return None


def with_nvcc(text: str, arch: str, binary: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "probe.cu"), Path(folder, "probe.out")
        source.write_text(text)
        kind = ["-cubin", f"-arch={arch}"] if binary else ["-ptx", f"-arch={arch}"]
        both = [flag for flag in flags(arch) if flag in ("--std=c++17", "--fmad=false")]
        strict = ["--expt-relaxed-constexpr", "-Werror", "all-warnings", *include_flags(ROOT)]
        command = ["nvcc", *kind, *both, *strict, "-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return result.read_bytes()


@functools.cache
def compiled(arch: str, binary: bool, source: str = PROBES) -> bytes:
    found = nvrtc()
    if found is not None:
        target = arch if binary else arch.replace("sm_", "compute_")
        return found.compile(source, "probe", target, ROOT).binary
    if shutil.which("nvcc"):
        return with_nvcc(source, arch, binary)
    pytest.skip("no NVRTC (CuPy) and no nvcc here")


@pytest.mark.mostly_slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_backend_cuda_compiles_to_machine_code(arch: str) -> None:
    cubin = compiled(arch, True)
    assert cubin.startswith(b"\x7fELF")
    assert all(name.encode() in cubin for name in KERNELS)


def test_backend_cuda_scopes_and_orders() -> None:
    ptx = compiled("sm_90a", False).decode()
    # The command is one 16-byte store that releases to the system; tails and flags are acquired from it.
    assert len(re.findall(r"st\.release\.sys\.global\.b128", ptx)) >= 3
    assert "ld.acquire.sys.global.u64" in ptx
    assert "atom.cas.acq_rel.sys.global.b32" in ptx
    assert "atom.add.acq_rel.gpu.global.u32" in ptx
    assert "ld.acquire.gpu.u32" in ptx
    assert not re.search(r"\b(membar|fence)\.", ptx), "a stand-alone fence, which ThreadSanitizer does not model"
    assert "ld.global.nc" not in ptx, "rows arrive while kernels run"


def test_backend_cuda_takes_hardware_e4m3_where_it_is() -> None:
    conversion = "cvt.rn.satfinite.e4m3x2.f32"
    assert conversion not in compiled("sm_80", False).decode()
    assert conversion in compiled("sm_90a", False).decode()


def test_backend_cuda_fuses_only_where_the_kernel_says_so() -> None:
    ptx = compiled("sm_90a", False, FUSION).decode()
    plain, fused = ptx[ptx.index("entry plain") :], ptx[ptx.index("entry fused") :]
    assert "fma." not in plain[: plain.index("\n}")]
    assert "fma.rn.f32" in fused[: fused.index("\n}")]
