"""The probe kernels compile for AMD's processors, with the scopes and instructions that the host cannot check.

Needs neither ROCm nor a GPU: any clang that knows gfx950, or the one in the ziglang wheel; skipped without.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from uccl_ep.gpu.compiler import flags, include_flags

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ("probe_words", "probe_lanes", "probe_rows", "probe_ring")


def compiler() -> list[str]:
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "clang"]
    asks = ["--target=amdgcn-amd-amdhsa", "--print-supported-cpus"]
    for name in ("amdclang++", "clang++-22", "clang++-21", "clang++-20", "clang++"):
        if shutil.which(name):
            done = subprocess.run([name, *asks], capture_output=True, text=True, timeout=20)
            if "gfx950" in done.stdout + done.stderr:
                return [name]
    why = "NOT RUN: no clang here knows gfx950, so nothing was compiled for AMD: pip install ziglang"
    if os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") != "0":
        pytest.fail(why)
    pytest.skip(why)


@functools.cache
def assembly(arch: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "probe.hip"), Path(folder, "probe.s")
        source.write_text('#include "tests/kernels/device/probe_kernels.h"\n')
        strict = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-Wall", "-Wextra", "-Werror"]
        command = [*compiler(), *strict, *flags(arch), *include_flags(ROOT), "-S", "-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return result.read_text()


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_backend_hip_compiles_without_spills(arch: str) -> None:
    text = assembly(arch)
    assert all(re.search(rf"^{name}:", text, re.MULTILINE) for name in KERNELS)
    assert set(re.findall(r"\.wavefront_size:\s*(\d+)", text)) == {"64"}
    assert set(re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)) == {"0"}
    assert set(re.findall(r"ScratchSize:\s*(\d+)", text)) == {"0"}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_backend_hip_command_is_one_store_to_the_system(arch: str) -> None:
    stores = re.findall(r"global_store_dwordx4 .*\bsc0 sc1\b", assembly(arch))
    assert len(stores) >= 3  # probe_words, push, push_group
    assert re.search(r"buffer_wbl2 sc0 sc1", assembly(arch))  # the release before it


def test_backend_hip_takes_hardware_e4m3_only_where_it_is_ocp() -> None:
    assert "v_cvt_pk_fp8_f32" in assembly("gfx950")
    assert "v_cvt_pk_fp8_f32" not in assembly("gfx942")  # FNUZ there
