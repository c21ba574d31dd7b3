"""compute-sanitizer over the small case; a tool that is missing or refuses the device is reported, not passed over."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from bench.device.ring_programs import ROOT
from bench.device.small_case import DONE

OURS = ("low_latency_", "throughput_", "rank_barrier")  # the beginnings of our kernels' names
# racecheck takes a word of shared memory that one warp releases and another acquires for a race, and all that it orders
# too (CUDA 13.0). Warps of throughput's dispatch and combine meet by such words; tests/gpu/ptx checks them.
MEET_AT_BARRIERS = ("low_latency_", "rank_barrier", "throughput_layout", "throughput_counts", "throughput_settle")
_HELP_S = 20
FOUND = 86  # the tool's exit status when it has found something
UNSUPPORTED = re.compile(r"not supported|unsupported|Unable to find injection|error 999|Failed to initialize", re.I)
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: ([^\n]*)")


@dataclass(frozen=True)
class Plan:
    """A tool and how many ranks; several ranks' kernels wait for each other, which a tool that runs kernels one by one
    cannot do."""

    tool: str
    ranks: int
    kernels: tuple[str, ...] = OURS  # those that are looked at, by the beginnings of their names


PLANS = (Plan("memcheck", 1), Plan("racecheck", 1, MEET_AT_BARRIERS), Plan("memcheck", 2))


def check(plan: Plan, device: str, limit_s: float) -> dict[str, Any]:
    """{tool, ranks, status: clean | found | unsupported | failed | out_of_time, says}."""
    answer = {"tool": plan.tool, "ranks": plan.ranks}
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {**answer, "status": "unsupported", "says": "no compute-sanitizer on the path"}
    command = [sanitizer, "--tool", plan.tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    command += options(sanitizer, plan.kernels)
    command += [sys.executable, "-m", "bench.device.small_case", device, str(plan.ranks)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT)
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return {**answer, "status": "out_of_time", "says": f"not done in {limit_s:.0f} s\n{text[-1500:]}"}
    return {**answer, **judge(done.returncode, done.stdout + done.stderr)}


@functools.cache
def options(sanitizer: str, kernels: tuple[str, ...]) -> list[str]:
    """What this version of the tool has of the options that leave out others' findings: errors that the driver's
    functions return (a refused probe of the fabric, torch's own questions), and other kernels than those."""
    wanted = ["--report-api-errors", "no", *(word for part in kernels for word in ("--kernel-name", f"kns={part}"))]
    try:
        told = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, timeout=_HELP_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    known = told.stdout + told.stderr
    return [word for pair in zip(wanted[::2], wanted[1::2], strict=True) if pair[0] in known for word in pair]


def judge(status: int, text: str) -> dict[str, str]:
    """What a run of the tool says."""
    summary = SUMMARY.search(text)
    said = summary.group(1).strip() if summary else text.strip()[-1500:]
    if status == 0 and DONE in text and summary is not None:
        return {"status": "clean", "says": said}
    if status == FOUND:
        return {"status": "found", "says": f"{said}\n{text[:3000]}"}
    if UNSUPPORTED.search(text):
        return {"status": "unsupported", "says": text.strip()[-600:]}
    return {"status": "failed", "says": f"exit status {status}: {text.strip()[-1500:]}"}
