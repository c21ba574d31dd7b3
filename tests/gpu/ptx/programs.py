"""The product's kernels as the machine reads them: NVRTC's PTX, lowered, kept in build/ptx until a header changes."""

from __future__ import annotations

import fcntl
import functools
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.gpu.ptx import lower, read
from tests.kernels.ptx import ROOT, programs
from uccl_ep import _native
from uccl_ep.gpu.build import native_shared_bytes
from uccl_ep.gpu.compiler import RuntimeCompiler, flags, include_flags, source_of

ARCHITECTURES = ("compute_80", "compute_90a", "compute_100a")
_LINES = "--generate-line-info"  # changes no instruction


class LineCompiler(RuntimeCompiler):
    """The product's compiler, which also says what source line an instruction is from."""

    def ptx(self, source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> str:
        """PTX of a source text.

        Raises:
            UcclEpError: with the compiler's message.
        """
        program = self._rtc.createProgram(source, f"{name}.cu", (), ())
        try:
            self._compile(program, name, arch, (*flags(arch), *include_flags(ROOT), _LINES, *options))
            return bytes(self._rtc.getPTX(program)).rstrip(b"\0").decode()
        finally:
            self._rtc.destroyProgram(program)


def lowered(source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> str:
    """A source text's kernels as the machine reads them."""
    text = LineCompiler().ptx(source, name, arch, options)
    return "".join(lower.lower(kernel) for kernel in read.read(text))


@functools.cache
def product(arch: str) -> str:
    """All kernels of the product. Processes take turns; the second finds what the first made."""
    folder = ROOT / "build/ptx"
    folder.mkdir(parents=True, exist_ok=True)
    headers = [p for part in ("kernels", "proxy") for p in sorted((ROOT / part).rglob("*.h"))]
    parts = [*headers, Path(lower.__file__), Path(read.__file__), Path(__file__)]
    arguments = dict(_native.kernel_arguments())
    text = b"".join(p.read_bytes() for p in parts) + repr((arch, arguments)).encode()
    made = folder / f"{arch}-{hashlib.sha256(text).hexdigest()[:16]}.txt"
    with open(folder / f"lock-{arch}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            fresh = made.with_suffix(".new")
            sources = ((source_of(p, arch, arguments, native_shared_bytes), p.header) for p in programs())
            fresh.write_text("".join(lowered(source, header, arch) for source, header in sources))
            fresh.replace(made)
    return made.read_text()


def builder(arch: str) -> list[Any]:
    """One program with every kernel, for KernelLibrary; its binary is the text above."""
    program = SimpleNamespace(kernels=tuple(_native.kernel_arguments()))
    return [SimpleNamespace(program=program, arch=arch, code=SimpleNamespace(binary=product(arch)), cached=True)]
