"""Which programs there are, for which processor and how they are compiled; NVRTC's own words where it is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.gpu.compiler import (
    AMD,
    Program,
    RuntimeCompiler,
    Usage,
    architecture,
    find_programs,
    flags,
    include_flags,
    include_root,
    parse_architecture,
    parse_usage,
    source_of,
    warp_of,
)

NVRTC_13 = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
PTXAS = """ptxas info    : 205 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 40 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


@pytest.mark.parametrize(
    ("capability", "known", "arch", "said"),
    [
        ((8, 0), NVRTC_13, "sm_80", ""),
        ((8, 6), NVRTC_13, "sm_86", ""),
        ((8, 9), NVRTC_13, "sm_89", ""),
        ((9, 0), NVRTC_13, "sm_90a", ""),
        ((10, 0), NVRTC_13, "sm_100a", ""),
        ((10, 3), NVRTC_13, "sm_103a", ""),
        ((12, 0), NVRTC_13, "sm_120a", ""),
        ((10, 3), (80, 90, 100), "sm_100", "sm_103"),  # same major: the code runs, without special instructions
        ((8, 9), (75, 80, 86), "sm_86", "sm_89"),
        ((12, 0), (80, 90, 100), "compute_100", "PTX"),
        ((9, 0), (75, 80), "compute_80", "PTX"),
    ],
)
def test_compiler_architecture(capability: tuple[int, int], known: tuple[int, ...], arch: str, said: str) -> None:
    found, note = architecture(*capability, reversed(known))
    assert found == arch
    assert said in note and bool(said) == bool(note)
    assert parse_architecture(found) == found


@pytest.mark.parametrize(
    ("capability", "known"), [((7, 5), NVRTC_13), ((8, 0), (75,)), ((8, 0), (86, 90)), ((9, 0), ())]
)
def test_compiler_architecture_too_old(capability: tuple[int, int], known: tuple[int, ...]) -> None:
    with pytest.raises(UcclEpError, match=r"too old|nothing older"):
        architecture(*capability, known)


@pytest.mark.parametrize(
    ("text", "arch"),
    [("sm_90a", "sm_90a"), (" 90a ", "sm_90a"), ("80", "sm_80"), ("SM_100F", "sm_100f"), ("compute_90", "compute_90"),
     ("gfx942", "gfx942")],
)  # fmt: skip
def test_compiler_parses_architectures(text: str, arch: str) -> None:
    assert parse_architecture(text) == arch


@pytest.mark.parametrize("text", ["", "sm_75", "hopper", "9.0", "gfx1100", "compute_90a", "sm_90a --x", "sm_9000"])
def test_compiler_refuses_architectures(text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^arch must be .*sm_90a.*gfx942.*; got {re.escape(repr(text))}\.$"):
        parse_architecture(text)


def test_compiler_flags_fix_the_rounding() -> None:
    assert {"--fmad=false", "--std=c++17", "--gpu-architecture=sm_90a"} <= set(flags("sm_90a"))
    for arch in AMD:
        assert {"-ffp-contract=off", "-std=c++17", f"--offload-arch={arch}"} <= set(flags(arch))
        assert warp_of(arch) == 64
    assert warp_of("sm_80") == 32
    assert include_flags(Path("/a")) == ("-I/a", "-I/a/proxy")


def test_compiler_programs_are_the_native_kernels() -> None:
    """One program a header with entry points; together exactly what the native module can be asked for."""
    programs = find_programs(include_root())
    assert sorted(k for p in programs for k in p.kernels) == sorted(_native.kernel_arguments())
    assert len({p.header for p in programs}) == len(programs)


def test_compiler_root_is_the_checkout_or_the_installed_copy(tmp_path: Path) -> None:
    package = tmp_path / "site" / "uccl_ep"
    with pytest.raises(UcclEpError, match="reinstall"):
        include_root(package)
    for root in (package / "include", package.parent):  # the second found is preferred
        for folder in ("kernels", "proxy/wire"):
            shutil.copytree(include_root() / folder, root / folder, ignore=shutil.ignore_patterns("*.cpp"))
        assert include_root(package) == root


def test_compiler_source_promises_the_native_sizes() -> None:
    program = Program("kernels/a/b.h", ("first", "second", "probe"))
    source = source_of(program, "gfx942", {"first": 288, "second": 120, "stranger": 7})
    assert source.startswith('#include "kernels/a/b.h"\n')
    assert "ArgumentOf<decltype(first)>::bytes == 288ull" in source
    assert "ArgumentOf<decltype(second)>::bytes == 120ull" in source
    assert "kWarp == 64" in source
    assert "probe" not in source and "stranger" not in source
    with_shared = Program("kernels/a/b.h", ("first", "second"), ("FirstShared", ""))
    source = source_of(with_shared, "gfx942", {"first": 288, "second": 120}, lambda name, warps: 100 + warps)
    assert re.findall(r"shared_of<(\w+)>\((\d+)u, 0\) <= (\d+)ull", source) == [
        ("FirstShared", "1", "101"), ("FirstShared", "8", "108"),
    ]  # fmt: skip


def test_compiler_reads_the_assemblers_report() -> None:
    assert parse_usage(PTXAS) == (Usage("one", 255, 40, 12), Usage("two", 32, 0, 0))
    assert parse_usage("") == ()


def test_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(UcclEpError, match=r"CuPy.*pip install 'cupy-cuda13x>=\d+' 'nvidia-cuda-nvrtc>=13' \(CUDA 12: "):
        RuntimeCompiler()


# ---- with NVRTC ------------------------------------------------------------------------------------------------------


@pytest.fixture
def nvrtc() -> RuntimeCompiler:
    if importlib.util.find_spec("cupy") is None:
        pytest.fail("this needs NVRTC: pip install cupy-cuda13x nvidia-cuda-nvrtc", pytrace=False)
    return RuntimeCompiler()


def simple(tmp_path: Path, text: str) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.h").write_text(text)
    return tmp_path


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiler_cubins_are_whole(nvrtc: RuntimeCompiler, arch: str) -> None:
    """CuPy leaves the last byte out; the table that an ELF's header names ends with it."""
    binary = nvrtc.compile('extern "C" __global__ void k(int* p) { *p = 1; }', "k", arch, include_root()).binary
    programs, sections = struct.unpack_from("<2Q", binary, 32)
    program_bytes, num_programs, section_bytes, num_sections = struct.unpack_from("<4H", binary, 54)
    assert max(programs + program_bytes * num_programs, sections + section_bytes * num_sections) == len(binary)


@pytest.mark.compile
def test_compiler_error_shows_the_line(nvrtc: RuntimeCompiler, tmp_path: Path) -> None:
    root = simple(tmp_path, '#pragma once\n\nextern "C" __global__ void k(int* p) {\n  p[0] = no_such_name;\n}\n')
    with pytest.raises(UcclEpError) as caught:
        nvrtc.compile('#include "kernels/k.h"\n', "kernels/k.h", "sm_90a", root)
    text = str(caught.value)
    assert re.search(r"kernels/k\.h\(4\)", text), text
    lines = text.splitlines()
    shown = next(i for i, line in enumerate(lines) if "p[0] = no_such_name;" in line)
    assert lines[shown].index("no_such_name") == lines[shown + 1].index("^")
    assert "sm_90a" in text and re.search(r"NVRTC \d+\.\d+", text)


@pytest.mark.compile
def test_compiler_sees_a_native_module_of_another_version(nvrtc: RuntimeCompiler) -> None:
    root, sizes = include_root(), dict(_native.kernel_arguments())
    program = next(p for p in find_programs(root) if "throughput_layout" in p.kernels)
    code = nvrtc.compile(source_of(program, "sm_90a", sizes), program.header, "sm_90a", root)
    assert code.binary.startswith(b"\x7fELF") and code.seconds > 0
    assert [u.kernel for u in code.usage] == list(program.kernels)
    sizes["throughput_layout"] += 8
    with pytest.raises(UcclEpError, match=r"throughput_layout: the native module passes \d+ bytes: reinstall"):
        nvrtc.compile(source_of(program, "sm_90a", sizes), program.header, "sm_90a", root)
    with pytest.raises(UcclEpError, match="another width"):
        nvrtc.compile(source_of(program, "gfx942", {}), program.header, "sm_90a", root)


@pytest.mark.compile
def test_compiler_sees_too_little_shared_memory(nvrtc: RuntimeCompiler, tmp_path: Path) -> None:
    """What a launch gives is the native module's word; a kernel that uses more would write over its neighbours."""
    for folder in ("kernels/device", "proxy/wire", "proxy/ring"):
        shutil.copytree(include_root() / folder, tmp_path / folder)
    fixed, grows = (
        "struct Fixed { unsigned a[7]; };",
        "struct Grows { static constexpr u64 bytes(u32 w) { return 8 * w; } };",
    )
    kernels = (
        "KERNEL fixed(int* p) { p[0] = simt::smem<Fixed>().a[0]; }\nKERNEL grows(int* p) {\n  simt::smem<Grows>();\n}\n"
    )
    text = f'#pragma once\n#include "kernels/device/simt.h"\nnamespace uccl {{\n{fixed}\n{grows}\n{kernels}}}\n'
    (tmp_path / "kernels" / "low_latency").mkdir()
    (tmp_path / "kernels/low_latency/k.h").write_text(text.replace("}; }", "};\n}").replace("a[0]; }", "a[0];\n}"))
    (program,) = find_programs(tmp_path)
    assert program.shared == ("Fixed", "Grows")

    def made(fixed_bytes: int, bytes_a_warp: int) -> bool:
        given = {"fixed": lambda warps: fixed_bytes, "grows": lambda warps: bytes_a_warp * warps}
        source = source_of(program, "sm_90a", {"fixed": 8, "grows": 8}, lambda name, warps: given[name](warps))
        return bool(nvrtc.compile(source, program.header, "sm_90a", tmp_path).binary)

    assert made(28, 8)
    for fixed_bytes, bytes_a_warp, name in ((27, 8, "fixed"), (28, 7, "grows")):
        with pytest.raises(UcclEpError, match=rf"{name}: \d+ bytes of shared memory are too few"):
            made(fixed_bytes, bytes_a_warp)


@pytest.mark.compile
def test_compiler_makes_ptx_for_processors_it_does_not_know(nvrtc: RuntimeCompiler, tmp_path: Path) -> None:
    root = simple(tmp_path, 'extern "C" __global__ void k(int* p) { *p = 1; }\n')
    code = nvrtc.compile('#include "kernels/k.h"\n', "kernels/k.h", "compute_80", root)
    assert b".target sm_80" in code.binary and code.binary.endswith(b"\0") and code.usage == ()


@pytest.mark.compile
def test_compiler_refuses_the_other_vendor(nvrtc: RuntimeCompiler, tmp_path: Path) -> None:
    with pytest.raises(UcclEpError, match=r"gfx942.*other vendor"):
        nvrtc.compile("", "k", "gfx942", tmp_path)


@pytest.mark.compile
def test_compiler_lets_other_threads_run(nvrtc: RuntimeCompiler) -> None:
    """The GIL is free while NVRTC works; else compiling in threads would be pointless."""
    root = include_root()
    program = next(p for p in find_programs(root) if "throughput_combine" in p.kernels)
    worst, stop = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stop.wait(0.001):
            now = time.perf_counter()
            worst[0], last = max(worst[0], now - last), now

    thread = threading.Thread(target=tick)
    thread.start()
    code = nvrtc.compile(source_of(program, "sm_90a", {}), program.header, "sm_90a", root)
    stop.set()
    thread.join()
    assert code.seconds > 0.1
    assert worst[0] < code.seconds / 2, f"another thread stood still for {worst[0]:.2f} of {code.seconds:.2f} s"
