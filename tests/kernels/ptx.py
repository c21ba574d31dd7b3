"""Reads PTX and AMD assembly well enough to say which memory instructions a kernel has, and on which addresses."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from uccl_ep.gpu.compiler import Program, RuntimeCompiler, find_programs, flags, include_flags

ROOT = Path(__file__).resolve().parents[2]
_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n", re.DOTALL)
_AMD_KERNEL = re.compile(r"^(\w+):\s+; @\1\n(.*?)\n\.Lfunc_end", re.MULTILINE | re.DOTALL)
_REGISTER = re.compile(r"%\w+")
_MOVES = ("mov.", "add.", "sub.", "selp.", "mad.", "cvta.", "or.", "and.", "shl.")


@dataclass(frozen=True)
class Instruction:
    """`name` is the mnemonic with its suffixes, `operands` the text after it."""

    name: str
    operands: str

    @property
    def orders(self) -> bool:
        """Whether it has a scope, and so orders memory or is seen elsewhere."""
        return any(f".{scope}" in self.name for scope in ("sys", "gpu", "cta", "cluster"))


@functools.cache
def programs() -> tuple[Program, ...]:
    """The product's own."""
    return find_programs(ROOT)


@functools.cache
def ptx(source: str, arch: str) -> str:
    """PTX of a source text for compute_*."""
    return RuntimeCompiler().compile(source, "kernel.cu", arch, ROOT).binary.rstrip(b"\0").decode()


@functools.cache
def amd(source: str, arch: str) -> str:
    """Assembly of a source text for gfx*."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.hip"
        file.write_text(source)
        command = [sys.executable, "-m", "ziglang", "clang", "-x", "hip", *flags(arch), "--cuda-device-only"]
        command += ["-nogpulib", "-nogpuinc", *include_flags(ROOT), "-S", "-o", "-", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout


def kernels(text: str) -> dict[str, list[Instruction]]:
    """Instructions of each entry point of a PTX text, those of inline assembly included."""
    found = {}
    for name, body in _ENTRY.findall(text):
        plain = re.sub(r"//[^\n]*", "", body)
        parts = (re.sub(r"^(?:\$\w+:\s*)?(?:@!?%\w+\s+)?", "", p.strip(" \t\n{}")) for p in re.split(r"[;\n]", plain))
        split = (part.split(None, 1) for part in parts if part and not part.startswith((".", "$")))
        found[name] = [Instruction(words[0], words[1] if len(words) > 1 else "") for words in split]
    return found


def amd_kernels(text: str) -> dict[str, list[Instruction]]:
    """Likewise of AMD assembly."""
    found = {}
    for name, body in _AMD_KERNEL.findall(text):
        lines = (re.sub(r";.*", "", line).strip() for line in body.splitlines())
        split = (line.split(None, 1) for line in lines if line and not line.startswith(".") and not line.endswith(":"))
        found[name] = [Instruction(words[0], words[1] if len(words) > 1 else "") for words in split]
    return found


def shared_registers(instructions: list[Instruction]) -> set[str]:
    """Registers that hold a generic address of shared memory, followed through moves and additions."""
    held: set[str] = set()
    grew = True
    while grew:
        grew = False
        for i in instructions:
            if not i.name.startswith(_MOVES):
                continue
            registers = _REGISTER.findall(i.operands)
            if not registers or registers[0] in held:
                continue
            if i.name.startswith("cvta.shared") or any(r in held for r in registers[1:]):
                held.add(registers[0])
                grew = True
    return held


def misaddressed(instructions: list[Instruction]) -> list[Instruction]:
    """Instructions of the global state space whose address lies in shared memory: they fault on a GPU."""
    held = shared_registers(instructions)
    wrong = []
    for i in instructions:
        address = re.search(r"\[(%\w+)", i.operands)
        if ".global" in i.name and address is not None and address[1] in held:
            wrong.append(i)
    return wrong
