"""Instructions that the proxy takes for one command, step by step, counted by valgrind's callgrind.

bench/native/proxy_costs.cpp is run with N and with 2 N batches; the difference leaves out start-up. Counts depend
neither on the machine nor on its load: they have a budget (bench/budget.toml), which tests/bench/test_costs.py holds.

bench/native/lane_costs.cpp has the lanes of NICs, over a fabric in memory that takes more than they do. So it is run
once a step, counted inside of that step alone, and what was called of the fabric is taken off.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
BUDGET = Path(__file__).with_name("budget.toml")
BATCHES = 64  # a multiple of 16: a worker looks for events every 16 turns
ALLOWANCE = 0.03
OTHER_COMPILER_ALLOWANCE = 0.25
_STEP = "step_"
NIC_FAMILIES = ("verbs", "efa")
LANE_STEPS = ("post", "single_post", "arrival", "completion", "idle")
_FABRIC = "fake::"  # whose functions stand for a driver and its device
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Budget:
    """Instructions a unit by step, and the compiler (name and major version) that they were counted with."""

    compiler: str
    instructions: dict[str, float]

    def allowance(self, compiler: str) -> float:
        """How much more is accepted: another compiler chooses other instructions."""
        return ALLOWANCE if compiler == self.compiler else OTHER_COMPILER_ALLOWANCE


def load_budget(path: Path = BUDGET) -> Budget:
    """The budget file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return Budget(found["compiler"], {name: float(value) for name, value in found["instructions"].items()})


def valgrind_absence() -> str:
    """Why nothing can be counted here, or ""."""
    return "" if shutil.which("valgrind") else "NOT RUN: valgrind is not installed: docker/install.sh bench"


def inclusive(text: str) -> dict[str, int]:
    """Instructions of each step with all that it calls, from a callgrind file with uncompressed names.

    Lines of cost are `<line> <count>`; the one after `calls=` is what the called function took with all below it.
    """
    found: dict[str, int] = {}
    step: str | None = None
    for line in text.splitlines():
        if line.startswith("fn="):
            name = line[3:].strip()
            step = name[len(_STEP) :] if name.startswith(_STEP) else None
        elif step is not None and re.match(r"[0-9+*-]", line):
            found[step] = found.get(step, 0) + int(line.split()[-1])
    return found


def without_fabric(text: str) -> int:
    """Instructions of a callgrind file less those that the fabric took with all that it called, none of it ours."""
    total, caller, callee = 0, "", ""
    for line in text.splitlines():
        if line.startswith("fn="):
            caller = line[3:]
        elif line.startswith("cfn="):
            callee = line[4:]
        elif re.match(r"[0-9+*-]", line):
            instructions = int(line.split()[-1])
            if callee:  # with all below it, which has lines of its own
                entered = callee.startswith(_FABRIC) and not caller.startswith(_FABRIC)
                total -= instructions if entered else 0
                callee = ""
            else:
                total += instructions
    return total


def _callgrind(command: list[str], *options: str) -> tuple[str, str]:
    """(what the program printed, callgrind's file).

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    with tempfile.TemporaryDirectory(prefix="uccl-ep-costs-") as folder:
        out = Path(folder) / "callgrind"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no"]
        whole = [*tool, "--compress-pos=no", *options, *command]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(whole)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout, out.read_text(encoding="utf-8", errors="replace")


def _run(program: Path, batches: int) -> tuple[dict[str, int], dict[str, int]]:
    """(units, instructions) by step."""
    printed, file = _callgrind([str(program), str(batches)])
    return json.loads(printed), inclusive(file)


def _run_lane(program: Path, family: str, batches: int) -> tuple[dict[str, int], dict[str, int]]:
    """(units, instructions) by step of a NIC family's lane."""
    units: dict[str, int] = {}
    found: dict[str, int] = {}
    for step in LANE_STEPS:
        printed, file = _callgrind([str(program), family, str(batches)], f"--toggle-collect={_STEP}{step}")
        units[f"{family}_{step}"] = json.loads(printed)[step]
        found[f"{family}_{step}"] = without_fabric(file)
    return units, found


def slopes(
    first: tuple[dict[str, int], dict[str, int]], second: tuple[dict[str, int], dict[str, int]]
) -> dict[str, float]:
    """Instructions a unit, by step, from two runs' (units, instructions)."""
    return {step: (second[1][step] - first[1][step]) / (second[0][step] - count) for step, count in first[0].items()}


def compiler_of(program: Path) -> str:
    """The compiler's name and major version that a program says it was built with, such as "GCC 12"."""
    text = program.read_bytes()
    for name, pattern in (("GCC", rb"GCC: \([^)]*\) (\d+)\."), ("clang", rb"clang version (\d+)\.")):
        versions = [int(v) for v in re.findall(pattern, text)]
        if versions:
            return f"{name} {max(versions)}"
    return "unknown"


def count(program: Path, batches: int = BATCHES) -> dict[str, float]:
    """Instructions a unit, by step.

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    return slopes(_run(program, batches), _run(program, 2 * batches))


def count_lanes(program: Path, batches: int = BATCHES) -> dict[str, float]:
    """Instructions a unit of the NIC families' lanes, by step: "verbs_post" and so on.

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    found: dict[str, float] = {}
    for family in NIC_FAMILIES:
        found |= slopes(_run_lane(program, family, batches), _run_lane(program, family, 2 * batches))
    return found


def count_all(proxy: Path, lanes: Path) -> dict[str, float]:
    """Everything that has a budget, from both programs."""
    return {**count(proxy), **count_lanes(lanes)}


def over_budget(found: dict[str, float], budget: Budget, compiler: str) -> list[str]:
    """A line for each step that takes more than its budget allows, or has none; empty when all is well."""
    most = 1.0 + budget.allowance(compiler)
    problems = [f"{step}: no budget" for step in found if step not in budget.instructions]
    problems += [f"{step}: in the budget, but not counted" for step in budget.instructions if step not in found]
    for step, instructions in found.items():
        allowed = budget.instructions.get(step, float("inf"))
        if instructions > allowed * most:
            problems.append(f"{step}: {instructions:.1f} instructions, budget {allowed:.1f} + {most - 1:.0%}")
    return problems


def result(proxy: Path, lanes: Path) -> dict[str, Any]:
    """What the result file holds."""
    budget, compiler = load_budget(), compiler_of(proxy)
    found = count_all(proxy, lanes)
    worst = max(found[step] / allowed for step, allowed in budget.instructions.items() if step in found)
    wanted = 1.0 + budget.allowance(compiler)
    target = {
        "name": "instructions over budget, the worst step",
        "where": f"proxy, {compiler}",
        "measured": worst,
        "wanted": wanted,
        "at_least": False,
        "met": not over_budget(found, budget, compiler),
    }
    return {
        "benchmark": "proxy costs",
        "compiler": compiler,
        "budget_compiler": budget.compiler,
        "budget": budget.instructions,
        "instructions": found,
        "targets": [target],
    }
