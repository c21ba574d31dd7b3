"""The product's kernels as the machine reads them: NVRTC's PTX, lowered, kept in build/ptx until a header changes.

`python -m tests.gpu.ptx.programs` makes those of all architectures, side by side, so that no test waits for them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.gpu.ptx import lower, read
from tests.kernels.ptx import ROOT, programs
from uccl_ep import _native
from uccl_ep.gpu.build import native_shared_bytes
from uccl_ep.gpu.compiler import RuntimeCompiler, Usage, flags, include_flags, parse_usage, source_of

ARCHITECTURES = ("compute_80", "compute_90a", "compute_100a")
_LINES = "--generate-line-info"  # changes no instruction
_REPORT = ("--ptxas-options=-v",)


class LineCompiler(RuntimeCompiler):
    """The product's compiler, which also says what source line an instruction is from."""

    def ptx(self, source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> tuple[str, tuple[Usage, ...]]:
        """PTX of a source text, and what the assembler makes of it where `arch` is a processor's.

        Raises:
            UcclEpError: with the compiler's message.
        """
        program = self._rtc.createProgram(source, f"{name}.cu", (), ())
        try:
            self._compile(program, name, arch, (*flags(arch), *include_flags(ROOT), _LINES, *options))
            text = bytes(self._rtc.getPTX(program)).rstrip(b"\0").decode()
            return text, parse_usage(self._rtc.getProgramLog(program))
        finally:
            self._rtc.destroyProgram(program)


def lowered(source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> str:
    """A source text's kernels as the machine reads them."""
    return _lowered(LineCompiler().ptx(source, name, arch, options)[0])


def _lowered(text: str) -> str:
    return "".join(lower.lower(kernel) for kernel in read.read(text))


@functools.cache
def product(arch: str) -> str:
    """All kernels of the product."""
    return _made(arch)[0].read_text()


@functools.cache
def usage(arch: str) -> dict[str, tuple[int, int]]:
    """By kernel: registers of a lane and static bytes of shared memory, by the assembler of the architecture."""
    return {name: (registers, static) for name, registers, static in json.loads(_made(arch)[1].read_text())}


def _made(arch: str) -> tuple[Path, Path]:
    """Files with kernels and their usage. Processes take turns; the second finds what the first made."""
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
            compiler, processor = LineCompiler(), arch.replace("compute", "sm")
            code = [
                compiler.ptx(source_of(p, arch, arguments, native_shared_bytes), p.header, processor, _REPORT)
                for p in programs()
            ]
            taken = [(u.kernel, u.registers, u.shared_bytes) for _, of in code for u in of]
            made.with_suffix(".json").write_text(json.dumps(taken))
            fresh = made.with_suffix(".new")
            fresh.write_text("".join(_lowered(text) for text, _ in code))
            fresh.replace(made)
    return made, made.with_suffix(".json")


if __name__ == "__main__":
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_made, ARCHITECTURES))
