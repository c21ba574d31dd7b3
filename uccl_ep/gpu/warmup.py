"""`uccl-ep warmup`: compiles every kernel ahead of time, also where there is no GPU, and says what each one takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.build import Built, build
from uccl_ep.gpu.cache import KernelCache
from uccl_ep.gpu.compiler import Compiler, RuntimeCompiler, parse_architecture

EXAMPLES = "--arch sm_80 (A100), sm_89 (L40S), sm_90a (H100, H200), sm_100a (B200), sm_120a, gfx942 (MI300X)"


def run_warmup(
    archs: Sequence[str], cache_dir: Path | None, console: Console, compiler: Compiler | None = None
) -> list[Built]:
    """Fills the cache and prints a table.

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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))  # 80 columns hold it
    for heading in ("kernel", "arch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("regs", "shared B", "spilled B", "s", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in built:
        usage = {u.kernel: u for u in one.code.usage}
        for kernel in one.program.kernels:
            u = usage.get(kernel)
            numbers = [_shown(n) for n in (u.registers, u.shared_bytes, u.spilled_bytes)] if u else ["-"] * 3
            state = "cached" if one.cached else "compiled"
            table.add_row(kernel, one.arch, *numbers, f"{one.code.seconds:.2f}", state)
    console.print(table)
    console.print(f"{compiler.version}, {cache.folder}", highlight=False, markup=False, soft_wrap=True)
    return built


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


def _shown(number: int) -> str:
    return "-" if number < 0 else str(number)
