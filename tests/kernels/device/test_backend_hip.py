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
def assembly(arch: str, text: str = '#include "tests/kernels/device/probe_kernels.h"\n') -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "probe.hip"), Path(folder, "probe.s")
        source.write_text(text)
        strict = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-Wall", "-Wextra", "-Werror"]
        command = [*compiler(), *strict, *flags(arch), *include_flags(ROOT), "-S", "-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return result.read_text()


ORDERS = {
    "st_release_sys(p, v)": ["write back to sys", "wait", "store to sys"],
    "st_release_sys(q, 1u)": ["write back to sys", "wait", "store to sys"],
    "st_release_sys(reinterpret_cast<u128*>(p), v, v)": ["write back to sys", "wait", "past the caches"],
    "st_release_gpu(p, v)": ["write back to gpu", "wait", "store to gpu"],
    "st_release_gpu(q, 1u)": ["write back to gpu", "wait", "store to gpu"],
    "st_relaxed_sys(p, v)": ["store to sys"],
    "st_relaxed_gpu(p, v)": ["store to gpu"],
    "add_acq_rel_gpu(q, 1u)": ["write back to gpu", "wait", "atomic at gpu", "wait", "invalidate from gpu"],
    "add_release_sys(p, v)": ["write back to sys", "wait", "atomic at sys"],
    "add_sys(p, v)": ["atomic at sys"],
    "add_cta(q, 1u)": ["atomic at gpu"],  # the GPU's cache adds for a block too
    "add_gpu(p, v)": ["atomic at gpu"],
    "cas_sys(q, 0u, 1u)": ["write back to sys", "wait", "atomic at sys", "wait", "invalidate from sys"],
    "*out = ld_acquire_sys(p)": ["load from sys", "wait", "invalidate from sys"],
    "*out = ld_acquire_sys(q)": ["load from sys", "wait", "invalidate from sys"],
    "*out = ld_acquire_gpu(p)": ["load from gpu", "wait", "invalidate from gpu"],
    "*out = ld_relaxed_sys(p)": ["load from sys", "wait"],
    "*out = ld_relaxed_gpu(p)": ["load from gpu", "wait"],
    "sync_block()": ["wait", "barrier"],
    "store(p, v); sync_warp(); if (lane() == 0) st_release_sys(p + 64, v)": [
        "store", "write back to sys", "wait", "store to sys"
    ],
}  # fmt: skip
"""What each order is, by LLVM's memory model of these processors (AMDGPUUsage). `wait`: until all that this wave has
stored or written back is done. A flag that is stored without it may be seen before the rows."""
_NEWER = {
    r"buffer_wbl2 sc0 sc1": "write back to sys",
    r"buffer_wbl2 sc1": "write back to gpu",
    r"buffer_inv sc0 sc1": "invalidate from sys",
    r"buffer_inv sc1": "invalidate from gpu",
    r"global_store_dwordx4 .* sc0 sc1": "past the caches",
    r"global_store_dword\S* .* sc0 sc1": "store to sys",
    r"global_store_dword\S* .* sc1": "store to gpu",
    r"global_store_dword\S* .*": "store",
    r"global_load_dword\S* .* sc0 sc1": "load from sys",
    r"global_load_dword\S* .* sc1": "load from gpu",
    r"global_atomic\w+ .* sc1": "atomic at sys",
    r"global_atomic\w+ .*": "atomic at gpu",
    r"s_waitcnt.*vmcnt\(0\).*": "wait",
    r"s_barrier": "barrier",
}
_OLDER = {  # gfx90a: one L2 for the whole GPU, past which no bit of a plain store tells
    r"buffer_wbl2": "write back to sys",
    r"buffer_invl2": "",
    r"buffer_wbinvl1_vol": "invalidate",
    r"global_store_dwordx4 .* glc slc": "past the caches",
    r"global_store_dword\S* .*": "store",
    r"global_load_dword\S* .* glc": "load",
    r"global_atomic\w+ .*": "atomic",
    r"s_waitcnt.*vmcnt\(0\).*": "wait",
    r"s_barrier": "barrier",
}


def orders(text: str, names: dict[str, str]) -> dict[int, list[str]]:
    """What memory sees of each kernel_N of an assembly, equal neighbours once."""
    found: dict[int, list[str]] = {}
    for number, body in re.findall(r"^kernel_(\d+):\s+; @.*?\n(.*?)\n\.Lfunc_end", text, re.MULTILINE | re.DOTALL):
        seen = found.setdefault(int(number), [])
        for line in body.splitlines():
            bare = line.partition(";")[0].strip()
            said = next((name for pattern, name in names.items() if re.fullmatch(pattern, bare)), "")
            if said and seen[-1:] != [said]:
                seen.append(said)
            assert said or not re.match(r"(global|flat|buffer|scratch)_", bare) or bare == "buffer_invl2", bare
    return found


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_backend_hip_orders_are_those_of_the_memory_model(arch: str) -> None:
    text = '#pragma clang diagnostic ignored "-Wunused-parameter"\n#include "kernels/device/simt.h"\n'
    text += "namespace uccl::simt {\nDEV void store(u64* p, u64 v) { p[lane()] = v; }\n"
    for number, order in enumerate(ORDERS):
        text += f"KERNEL kernel_{number}(u64* p, u32* q, u64* out, u64 v) {{ {order}; }}\n"
    made = orders(assembly(arch, text + "}\n"), _OLDER if arch == "gfx90a" else _NEWER)
    for number, (order, wanted) in enumerate(ORDERS.items()):
        if arch == "gfx90a":
            wanted = [re.sub(r"^((?!write).*) (to|from|at) \w+$", r"\1", step) for step in wanted]
            wanted = [step for step in wanted if step != "write back to gpu"]
        seen = made[number]
        if order.startswith("*out"):
            assert seen.pop() == "store"  # of the result
        assert seen == wanted, f"{arch}: {order}"


@pytest.mark.mostly_slow
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
