"""The steps of device_check. Each runs in a process of its own, so that one that hangs or dies takes nothing with it.

python -m bench.device.steps NAME --device DEVICE --out FILE [--quick] [--limit-s N]

A step writes what it has so far into FILE again and again: what was measured before a time limit is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.device.platforms import CpuPlatform, Platform, open_platform


class Skipped(Exception):
    """A step that this machine cannot run; the text says why."""


@dataclass
class Context:
    """What a step is told, and where it leaves what it found."""

    device: str
    quick: bool
    limit_s: float
    out: Path
    result: dict[str, Any] = field(default_factory=dict)
    targets: list[dict[str, Any]] = field(default_factory=list)

    def note(self, result: dict[str, Any] | None = None) -> None:
        """Writes the result so far."""
        if result is not None:
            self.result = result
        self.write("running", "")

    def write(self, status: str, why: str) -> None:
        """The step's file, replaced at once."""
        text = json.dumps({"status": status, "why": why, "result": self.result, "targets": self.targets})
        partial = self.out.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.out)

    def platform(self) -> Platform:
        """Where to run."""
        return open_platform(self.device)


def machine(context: Context) -> None:
    """Processor, GPU, driver, versions."""
    from bench.device import fingerprint

    context.note(fingerprint.machine(context.device))


def kernels(context: Context) -> None:
    """Compiles every kernel for the GPU; registers, shared memory, spills."""
    if context.device == "cpu":
        raise Skipped("a CPU compiles nothing at run time")
    from uccl_ep.gpu.build import build

    platform = context.platform()
    context.note({"arch": platform.driver.facts.arch, "kernels": []})
    for one in build(platform.driver.facts.arch):
        for usage in one.code.usage:
            context.result["kernels"].append({**vars(usage), "header": one.program.header, "cached": one.cached})
    context.note()


def tests(context: Context) -> None:
    """The GPU tests against the reference."""
    from bench.device import pytest_run

    context.note(pytest_run.run(context.device != "cpu", context.limit_s - 20))
    if context.result["failed"] or not context.result["passed"]:
        raise RuntimeError(f"{context.result['passed']} tests passed, {len(context.result['failed'])} failed")


def sanitize(context: Context) -> None:
    """memcheck and racecheck on one small case."""
    from bench.device import sanitizer

    if context.device == "cpu":
        raise Skipped("compute-sanitizer checks GPU kernels; on a CPU use make test-sanitize")
    context.note({"runs": []})
    for plan in sanitizer.PLANS:
        context.result["runs"].append(
            sanitizer.check(plan, context.device, (context.limit_s - 15) / len(sanitizer.PLANS))
        )
        context.note()
    found = {run["status"] for run in context.result["runs"]}
    if found & {"found", "failed", "out_of_time"}:
        raise RuntimeError("; ".join(f"{r['tool']}: {r['status']}" for r in context.result["runs"]))
    if "clean" not in found:
        raise Skipped("; ".join(f"{r['tool']}: {r['says'][:200]}" for r in context.result["runs"]))


def ring(context: Context) -> None:
    """Commands a second and push-to-proxy latency."""
    from bench.device import programs
    from bench.device import ring as bench
    from bench.device.ring_programs import HostLibrary, compile_host_library
    from bench.device.ring_sides import GpuSide, HostSide, Side
    from bench.device.ring_world import RingWorld

    platform = context.platform()
    with tempfile.TemporaryDirectory() as folder:
        library = HostLibrary(compile_host_library(Path(folder)))
    side: Side = HostSide(library, max(1, len(os.sched_getaffinity(0)) // 2))
    if platform.driver is not None:
        side = GpuSide(platform.driver, programs.load(platform.driver, "bench/device/ring_producer.h"))
    world = RingWorld(side, library, 4 if context.quick else 32)
    try:
        context.note({"producers": side.name, **bench.measure(world, context.quick, context.note)})
    finally:
        world.close()
    context.targets = [t.as_json() for t in bench.targets(context.result)]


def low_latency(context: Context) -> None:
    """Dispatch and combine of 128 tokens a rank."""
    from bench.device.shapes import LOW_LATENCY

    _exchange(context, LOW_LATENCY)


def throughput(context: Context) -> None:
    """Dispatch and combine of 4,096 tokens a rank, beside a plain device copy of the same run."""
    from bench.device.shapes import THROUGHPUT

    _exchange(context, THROUGHPUT)


def _exchange(context: Context, mode: str) -> None:
    from bench.device.copies import copy_gb_per_s
    from bench.device.rounds import measure_shape, open_library
    from bench.device.shapes import all_shapes
    from bench.device.targets import Target

    platform = context.platform()
    gpu = not isinstance(platform, CpuPlatform)
    library = open_library(platform)
    with platform.rank():
        context.note({"copy": copy_gb_per_s(platform, (1 << 30) if gpu else (1 << 24)), "shapes": []})
    plain = context.result["copy"]["gb_per_s"]
    failed = []
    for shape in all_shapes(mode, gpu, context.quick):
        try:
            found = measure_shape(platform, shape, library)
        except Exception as error:  # the other shapes are measured all the same
            failed.append(f"{shape.label}: {type(error).__name__}: {error}")
            context.result["shapes"].append({"shape": vars(shape), "error": failed[-1]})
            context.note()
            continue
        for name, reached in found.get("achieved", {}).items():
            reached["of_copy"] = reached["gb_per_s"] / plain
            target = Target(f"{name}, share of a plain copy", reached["of_copy"], 0.8, True, shape.label)
            context.targets.append(target.as_json())
        context.result["shapes"].append(found)
        context.note()
    if failed:
        raise RuntimeError("; ".join(failed))


def copies(context: Context) -> None:
    """A plain device copy beside the row copy of the kernels."""
    from bench.device.copies import copy_gb_per_s, row_copies

    platform = context.platform()
    gpu = not isinstance(platform, CpuPlatform)
    with platform.rank():
        context.note({"copy": copy_gb_per_s(platform, (1 << 30) if gpu else (1 << 24)), "rows": []})
        if gpu:
            for found in row_copies(platform, context.quick):
                context.result["rows"].append(found)
                context.note()


def launches(context: Context) -> None:
    """The host's time per call, and graph replays."""
    from bench.device import overheads

    platform = context.platform()
    modes = overheads.measure(platform, context.quick, not isinstance(platform, CpuPlatform))
    context.note({"modes": modes})


@dataclass(frozen=True)
class Step:
    """A step and the most it may take."""

    run: Callable[[Context], None]
    limit_s: float

    @property
    def name(self) -> str:
        """As it is called in results and on the command line."""
        return self.run.__name__


# In this order: figures before what takes long. What they take together is less than the sum of the limits; check.py
# has the limit of the whole.
STEPS = (
    Step(machine, 40),
    Step(kernels, 60),
    Step(ring, 60),
    Step(copies, 30),
    Step(low_latency, 80),
    Step(throughput, 100),
    Step(launches, 40),
    Step(tests, 220),
    Step(sanitize, 150),
)


def run_step(step: Step, context: Context) -> str:
    """Runs a step here; its file says how it ended. Returns the status."""
    context.note({})
    try:
        step.run(context)
    except Skipped as reason:
        context.write("skipped", str(reason))
        return "skipped"
    except Exception as error:
        context.write("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}")
        return "failed"
    context.write("ok", "")
    return "ok"


def main() -> None:
    """The command line of one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[step.name for step in STEPS])
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit-s", type=float, default=600.0)
    given = parser.parse_args()
    step = next(step for step in STEPS if step.name == given.name)
    run_step(step, Context(given.device, given.quick, given.limit_s, given.out))


if __name__ == "__main__":
    main()
