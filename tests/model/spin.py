"""Runs Spin on one configuration of a model: generate, compile, check within limits, read what the checker printed."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_MEMORY_MB = 6000
_MOST_STEPS = 1_000_000  # of one path
_GENERATE_LIMIT_S = 60


@dataclass(frozen=True)
class Outcome:
    """What the checker found: `broken` is a promise's name, "progress", or empty when all hold."""

    broken: str
    states: int
    depth: int
    seconds: float


class SpinError(Exception):
    """The model could not be checked; the text says at which step and why."""


def missing() -> list[str]:
    """Programs that are needed and not installed."""
    return [name for name in ("spin", "gcc") if shutil.which(name) is None]


def check(file: str, defines: tuple[str, ...], folder: Path, fair: bool = False, limit_s: float = 300) -> Outcome:
    """Explores every state of tests/model/<file> under these definitions.

    Args:
        defines: NAME or NAME=value, as for the C preprocessor.
        folder: where generated files go.
        fair: check the formula `progress` under weak fairness instead of assertions and end states.
        limit_s: of the search, in seconds.

    Raises:
        SpinError: a step failed, memory or time ran out, or the search was cut short.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _run(["spin", "-a", *(f"-D{d}" for d in defines), str(FOLDER / file)], folder, _GENERATE_LIMIT_S)
    search = ["-DNFAIR=6"] if fair else ["-DSAFETY", "-DNOCLAIM"]
    _run(
        ["gcc", "-O2", "-w", *search, "-DVECTORSZ=4096", f"-DMEMLIM={_MEMORY_MB}", "-o", "pan", "pan.c"],
        folder,
        _GENERATE_LIMIT_S,
    )
    flags = ["-a", "-f", "-N", "progress"] if fair else []
    started = time.monotonic()
    output = _run(["./pan", f"-m{_MOST_STEPS}", *flags], folder, limit_s)
    return parse(output, time.monotonic() - started)


def parse(output: str, seconds: float) -> Outcome:
    """Reads the checker's report.

    Raises:
        SpinError: there is none, or the search did not cover every state.
    """
    errors = re.search(r"depth reached (\d+), errors: (\d+)", output)
    states = re.search(r"(\d[\d.e+]*) states, stored", output)
    if errors is None or states is None:
        raise SpinError(f"no report of a search:\n{output[-3000:]}")
    broken = ""
    if int(errors[2]) != 0:
        named = re.search(r"assertion violated \(?(\w+)\)?", output)
        waits = "invalid end state" in output.split("Full statespace")[0] or "acceptance cycle" in output
        broken = named[1] if named else "progress" if waits else "unknown"
    elif "max search depth too small" in output or "Search not completed" in output:
        raise SpinError(f"the search was cut short:\n{output[-3000:]}")
    return Outcome(broken, int(float(states[1])), int(errors[1]), seconds)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, ((_MEMORY_MB + 2000) << 20, (_MEMORY_MB + 2000) << 20))


def _run(command: list[str], folder: Path, limit_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            preexec_fn=_limit_memory,
        )
    except subprocess.TimeoutExpired as late:
        raise SpinError(f"{command[0]} took more than {limit_s:.0f} s") from late
    if done.returncode != 0:
        raise SpinError(f"$ {' '.join(command)}\n{done.stdout[-3000:]}")
    return done.stdout
