"""`uccl-ep warmup`: compiles every kernel ahead of time, also where there is no GPU, and says what each one takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.build import Built, build
from uccl_ep.gpu.cache import KernelCache
from uccl_ep.gpu.compiler import Compiler, RuntimeCompiler, parse_architecture

_NUMBERS = ("registers", "shared_bytes", "spilled_bytes")
EXAMPLES = "--arch sm_80 (A100), sm_89 (L40S), sm_90a (H100, H200), sm_100a (B200), sm_120a, gfx942 (MI300X)"


def run_warmup(
    archs: Sequence[str],
    cache_dir: Path | None,
    console: Console,
    compiler: Compiler | None = None,
    as_json: bool = False,
) -> list[Built]:
    """Fills the cache and prints a table, or one JSON object.

    Args:
        archs: as users write them; empty: those of the GPUs here.
        cache_dir: None: UCCL_EP_CACHE_DIR or the user's own.
        console: where the table goes.
        compiler: None: the machine's.

    Raises:
        UcclEpError: no compiler, no GPU and no architecture named, an unknown one, or a compiler's error.
    """
    wanted = list(dict.fromkeys(parse_architecture(arch) for arch in archs))  # before any work
    compiler = compiler if compiler is not None else RuntimeCompiler()
    cache = KernelCache(cache_dir)
    built = [one for arch in wanted or architectures_here() for one in build(arch, compiler, cache)]
    if as_json:
        found = {"compiler": compiler.version, "folder": str(cache.folder), "kernels": _plain(built)}
        console.file.write(json.dumps(found, indent=1) + "\n")
        return built
    console.print(_table(built))
    console.print(f"{compiler.version}, {cache.folder}", highlight=False, markup=False, soft_wrap=True)
    return built


def _plain(built: Sequence[Built]) -> list[dict[str, Any]]:
    """By kernel and architecture; null is what the compiler does not say."""
    rows: list[dict[str, Any]] = []
    for one in built:
        usage = {u.kernel: u for u in one.code.usage}
        for kernel in one.program.kernels:
            u = usage.get(kernel)
            numbers = (u.registers, u.shared_bytes, u.spilled_bytes) if u else (-1, -1, -1)
            said = [None if n < 0 else n for n in numbers]
            row = {"kernel": kernel, "arch": one.arch, **dict(zip(_NUMBERS, said, strict=True))}
            rows.append({**row, "seconds": one.code.seconds, "cached": one.cached})
    return rows


def _table(built: Sequence[Built]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))  # 80 columns hold it
    for heading in ("kernel", "arch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("regs", "shared B", "spilled B", "s", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in _plain(built):
        numbers = ["-" if row[name] is None else str(row[name]) for name in _NUMBERS]
        state = "cached" if row["cached"] else "compiled"
        table.add_row(row["kernel"], row["arch"], *numbers, f"{row['seconds']:.2f}", state)
    return table


def architectures_here() -> list[str]:
    """What the visible GPUs are compiled for, each once.

    Raises:
        UcclEpError: there is no GPU to ask; says what to name instead.
    """
    from uccl_ep.gpu import cupy_driver  # loads torch

    found, reason = cupy_driver.available()
    if not found:
        raise UcclEpError(f"no GPU here to ask for its architecture ({reason}): name one, such as {EXAMPLES}")
    return cupy_driver.architectures()
