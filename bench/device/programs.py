"""GPU programs of the benchmarks: headers of this repository, compiled at run time with the product's own flags."""

from __future__ import annotations

from typing import Any

from bench.device.ring_programs import ROOT


def source(header: str, arch: str, defines: dict[str, str] | None = None) -> str:
    """The text to compile: definitions, then the header. Intervals are measured with the SM's own clock where it has
    one; `now_ns()` may tick once in a microsecond."""
    clock = {} if arch.startswith("gfx") else {"UCCL_BENCH_CLOCK": "clock64"}
    lines = [f"#define {name} {value}" for name, value in {**clock, **(defines or {})}.items()]
    return "\n".join([*lines, f'#include "{header}"', ""])


def load(driver: Any, header: str, defines: dict[str, str] | None = None) -> Any:
    """The header's kernels as a module of the driver.

    Raises:
        UcclEpError: no compiler, or its message.
    """
    from uccl_ep.gpu.compiler import RuntimeCompiler

    arch = driver.facts.arch
    code = RuntimeCompiler().compile(source(header, arch, defines), header, arch, ROOT)
    return driver.load(code.binary)
