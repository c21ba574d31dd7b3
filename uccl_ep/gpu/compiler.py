"""From the installed headers to machine code: which programs there are, for which processor, with which flags.

NVRTC and AMD's hiprtc, both through CuPy's low-level binding, which needs no GPU. Flags exist here only, also tests'.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uccl_ep import _native
from uccl_ep.errors import UcclEpError, refuse
from uccl_ep.system.extras import install

FOLDERS = ("kernels/collective", "kernels/low_latency", "kernels/throughput")
ENTRY = re.compile(r"^KERNEL\s+(?:KERNEL_BOUNDS\([^()]*\)\s+)?(\w+)\s*\(", re.MULTILINE)
_SHARED = re.compile(r"\bsmem<(\w+)>")
_PROMISES = """namespace uccl {
template <class T> struct ArgumentOf;
template <class A> struct ArgumentOf<void(A)> { static constexpr unsigned long long bytes = sizeof(A); };
template <class S> constexpr auto shared_of(unsigned w, int) -> decltype(S::bytes(w)) { return S::bytes(w); }
template <class S> constexpr unsigned long long shared_of(unsigned, long) { return sizeof(S); }
"""
_FITS = "reinstall uccl-ep so that headers and native module are of one version"
MAX_BLOCK_LANES = _native.MAX_BLOCK_LANES
LEAST_NVIDIA = 80  # 16-byte system-scope stores and redux.sync
AMD = ("gfx90a", "gfx942", "gfx950")  # waves of 64 lanes


@dataclass(frozen=True)
class Program:
    """A header with kernels; compiled alone."""

    header: str  # relative to the include root
    kernels: tuple[str, ...]
    shared: tuple[str, ...] = ()  # for each kernel the struct of its shared memory; "" or nothing: it has none


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a processor; -1 where the compiler does not say."""

    kernel: str
    registers: int  # per lane
    shared_bytes: int  # static, per block
    spilled_bytes: int  # per lane, to memory


@dataclass(frozen=True)
class Code:
    """A compiled program."""

    binary: bytes  # cubin, PTX (compute_*) or code object
    usage: tuple[Usage, ...]
    seconds: float


class Compiler(Protocol):
    """What makes machine code. Thread-safe."""

    version: str  # part of every cache key

    def compile(self, source: str, name: str, arch: str, root: Path) -> Code:
        """Compiles `source`, called `name` in messages, whose includes are relative to `root`.

        Raises:
            UcclEpError: with file, line, the source line and the caret, the architecture and the compiler's version.
        """


def include_root(package: Path | None = None) -> Path:
    """The folder that includes are relative to: the checkout that the package lies in, else what the wheel installed.

    Raises:
        UcclEpError: neither has the kernels.
    """
    here = package if package is not None else Path(__file__).resolve().parent.parent
    for root in (here.parent, here / "include"):
        if (root / "kernels/device/simt.h").is_file() and (root / "proxy/wire/types.h").is_file():
            return root
    raise UcclEpError(f"the kernels' headers are missing beside {here} and in {here / 'include'}: reinstall uccl-ep")


def find_programs(root: Path, folders: Iterable[str] = FOLDERS) -> tuple[Program, ...]:
    """Headers below the folders that hold an entry point, by name."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.h")):
            text = path.read_text(encoding="utf-8")
            entries = list(ENTRY.finditer(text))
            if entries:
                bodies = [text[entry.end() :].split("\n}", 1)[0] for entry in entries]
                structs = [match[1] if (match := _SHARED.search(body)) else "" for body in bodies]
                name = path.relative_to(root).as_posix()
                found.append(Program(name, tuple(entry[1] for entry in entries), tuple(structs)))
    return tuple(found)


def is_amd(arch: str) -> bool:
    return arch.startswith("gfx")


def warp_of(arch: str) -> int:
    """Lanes of a warp."""
    return 64 if is_amd(arch) else 32


def source_of(
    program: Program,
    arch: str,
    arguments: Mapping[str, int],
    shared_bytes: Callable[[str, int], int] | None = None,
) -> str:
    """The text to compile: the header, and the promise that the device sees what the native module passes.

    Args:
        program: what to compile.
        arch: of the processor.
        arguments: bytes of every kernel's argument struct in the native module.
        shared_bytes: what a launch gives a block of a kernel with so many warps; None: not promised.
    """
    lines = [
        f'#include "{program.header}"',
        _PROMISES + f'static_assert(simt::kWarp == {warp_of(arch)}, "warps have another width than launches assume");',
    ]
    for name, struct in itertools.zip_longest(program.kernels, program.shared, fillvalue=""):
        if name not in arguments:
            continue
        passed = arguments[name]
        check = f"ArgumentOf<decltype({name})>::bytes == {passed}ull"
        lines.append(f'static_assert({check}, "{name}: the native module passes {passed} bytes: {_FITS}");')
        if not struct or shared_bytes is None:
            continue
        for warps in (1, MAX_BLOCK_LANES // warp_of(arch)):
            given = shared_bytes(name, warps)
            check = f"shared_of<{struct}>({warps}u, 0) <= {given}ull"
            lines.append(f'static_assert({check}, "{name}: {given} bytes of shared memory are too few: {_FITS}");')
    return "\n".join([*lines, "}", ""])


def flags(arch: str) -> tuple[str, ...]:
    """Options for an architecture, without include folders. No fused multiply-add that a kernel does not ask for: the
    rounding is part of the contract."""
    if is_amd(arch):
        return (f"--offload-arch={arch}", "-std=c++17", "-O3", "-ffp-contract=off")
    # wire/ says plain constexpr, hence the default execution space.
    return (f"--gpu-architecture={arch}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space")


def include_flags(root: Path) -> tuple[str, ...]:
    return (f"-I{root}", f"-I{root / 'proxy'}")


def architecture(major: int, minor: int, known: Iterable[int]) -> tuple[str, str]:
    """What to compile for, for a GPU of a compute capability, with a compiler that knows some.

    The processor's own architecture with its special instructions (sm_90a) where there are any; else the nearest older
    one whose code the processor runs (the same major number, without special instructions); else PTX, which the driver
    compiles.

    Returns:
        The architecture and, where it is not the GPU's own, a sentence that says so; else "".

    Raises:
        UcclEpError: the GPU, or all that the compiler knows, is too old.
    """
    own, all_known = 10 * major + minor, sorted(known)
    if own < LEAST_NVIDIA:
        raise UcclEpError(
            f"a GPU of compute capability {major}.{minor} is too old: 8.0 (A100) is the oldest that works"
        )
    if own in all_known:
        return (f"sm_{own}a" if major >= 9 else f"sm_{own}"), ""
    why = f"this compiler does not know sm_{own} (it knows {', '.join(map(str, all_known))})"
    update = "a newer nvidia-cuda-nvrtc would compile for it"
    same = [k for k in all_known if 10 * major <= k < own]
    if same:
        return f"sm_{same[-1]}", f"{why}: compiling for sm_{same[-1]}, which it runs too; {update}"
    older = [k for k in all_known if LEAST_NVIDIA <= k < own]
    if older:
        return (
            f"compute_{older[-1]}",
            f"{why}: compiling PTX for compute_{older[-1]}, the driver does the rest; {update}",
        )
    raise UcclEpError(f"{why} and nothing older that runs there: {update}")


def parse_architecture(text: str) -> str:
    """A processor as a user writes it (sm_90a, 90a, compute_90, gfx942) in the form that compilers take.

    Raises:
        InvalidArgument: not one that kernels can be compiled for.
    """
    name = text.strip().lower()
    match = re.fullmatch(r"(?:(sm|compute)_)?(\d{2,3})([af]?)", name)
    if match and int(match[2]) >= LEAST_NVIDIA and not (match[1] == "compute" and match[3]):
        return f"{match[1] or 'sm'}_{match[2]}{match[3]}"
    if name not in AMD:
        allowed = (
            f"sm_{LEAST_NVIDIA} or newer (sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_103a, sm_120a) or {', '.join(AMD)}"
        )
        refuse("arch", text, allowed)
    return name


class RuntimeCompiler:
    """NVRTC, or hiprtc where CuPy is built for ROCm.

    Raises:
        UcclEpError: no CuPy, or CuPy finds no compiler library; says what to install.
    """

    def __init__(self) -> None:
        self._rtc, self.is_hip, self.version, self.known = _open_compiler()

    def compile(self, source: str, name: str, arch: str, root: Path) -> Code:
        if is_amd(arch) != self.is_hip:
            raise UcclEpError(
                f"{self.version} cannot compile for {arch}: this CuPy is for the other vendor. {how_to_install()}"
            )
        options = flags(arch) + include_flags(root)
        if not self.is_hip and not arch.startswith("compute_"):
            options += ("--ptxas-options=-v",)  # the report that `usage` reads
        started = time.perf_counter()
        program = self._rtc.createProgram(
            source, f"{name}.cu", (), ()
        )  # not the header's own name: it would include itself
        try:
            self._compile(program, name, arch, options)
            binary = self._binary(program, arch)
            usage = parse_usage(self._rtc.getProgramLog(program))
        finally:
            self._rtc.destroyProgram(program)
        return Code(binary, usage, time.perf_counter() - started)

    def _compile(self, program: int, name: str, arch: str, options: tuple[str, ...]) -> None:
        try:
            self._rtc.compileProgram(program, options)
        except Exception as error:  # NVRTCError; CuPy has it in a module that moves between versions
            log = self._rtc.getProgramLog(program).strip()
            raise UcclEpError(f"{self.version} could not compile {name} for {arch} ({error}):\n{log}") from None

    def _binary(self, program: int, arch: str) -> bytes:
        """CuPy leaves out the last byte, as the NUL of a text. Of PTX it is that, and the driver wants it; of a cubin
        and of a code object it is a zero as well."""
        ptx = self.is_hip or arch.startswith("compute_")
        return bytes(self._rtc.getPTX(program) if ptx else self._rtc.getCUBIN(program)) + b"\0"


def how_to_install() -> str:
    """The commands that bring CuPy and its compiler, for each vendor."""
    return f"{install('cuda13')} (CUDA 12: {install('cuda12')}; ROCm: {install('rocm')})"


def _open_compiler() -> tuple[Any, bool, str, tuple[int, ...]]:
    try:
        from cupy.cuda import nvrtc, runtime
    except ImportError as error:
        raise UcclEpError(f"compiling kernels for a GPU needs CuPy ({error}): {how_to_install()}") from None
    is_hip = bool(runtime.is_hip)
    try:
        major, minor = nvrtc.getVersion()
        known = () if is_hip else tuple(int(k) for k in nvrtc.getSupportedArchs())
    except Exception as error:  # what is raised when the library is missing depends on CuPy's version
        reason = " ".join(str(error).split())[:300]
        raise UcclEpError(f"CuPy finds no library that compiles for a GPU ({reason}): {how_to_install()}") from None
    return nvrtc, is_hip, f"{'hiprtc' if is_hip else 'NVRTC'} {major}.{minor}", known


def parse_usage(report: str) -> tuple[Usage, ...]:
    """From ptxas: `Compiling entry function 'k' ... / n bytes spill stores ... / Used n registers ... n bytes smem`."""
    found = []
    blocks = re.split(r"Compiling entry function '(\w+)' for", report)[1:]
    for name, text in zip(blocks[::2], blocks[1::2], strict=True):
        spills = re.search(r"(\d+) bytes spill stores", text)
        registers = re.search(r"Used (\d+) registers", text)
        shared = re.search(r"(\d+) bytes smem", text)
        found.append(
            Usage(
                name,
                int(registers[1]) if registers else -1,
                int(shared[1]) if shared else 0,
                int(spills[1]) if spills else -1,
            )
        )
    return tuple(found)
