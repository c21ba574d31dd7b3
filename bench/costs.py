"""Instructions that the proxy takes for one command, step by step, and cache lines that it must fetch for it, as
valgrind's callgrind counts them.

bench/native/proxy_costs.cpp is run with N and with 2 N batches; the difference leaves out start-up. Caches are
simulated, of sizes that are fixed here, and each step begins with an empty first level. So counts depend neither on the
machine nor on its load: they have a budget (bench/budget.toml), which tests/bench/test_costs.py holds.

bench/native/lane_costs.cpp has the lanes of networks; those of NICs run over a fabric in memory that takes more than
they do. So it is run once a step, counted inside of that step alone, and what was called of the fabric is taken off.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
BUDGET = Path(__file__).with_name("budget.toml")
BATCHES = 64  # a multiple of 16: a worker looks for events every 16 turns
ALLOWANCE = 0.03
OTHER_COMPILER_ALLOWANCE = 0.25
# Lines differ with where a stack and an allocation happen to begin. A second level of 1 MiB holds all that a proxy
# uses: what misses it is memory that is never used again, such as a queue that grows.
LINE_ALLOWANCE = 0.10
LINES_AT_ALL = 0.02
MOST_FROM_MEMORY = 0.02
_CACHES = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")
_STEP = "step_"
LANE_FAMILIES = ("loopback", "verbs", "efa")
LANE_STEPS = ("post", "single_post", "arrival", "completion", "idle")
_FABRIC = "fake::"  # whose functions stand for a driver and its device
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Cost:
    """What a step takes, of one unit or of all.

    Attributes:
        lines: of data that an empty first-level cache of 32 KiB had to fetch.
        from_memory: of these, the ones that a second level of 1 MiB did not have.
    """

    instructions: float = 0.0
    lines: float = 0.0
    from_memory: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(a - b for a, b in zip(self, other, strict=True)))

    def __iter__(self) -> Iterator[float]:
        return iter((self.instructions, self.lines, self.from_memory))

    def over(self, units: int) -> Cost:
        """Of one unit."""
        return Cost(*(value / units for value in self))


@dataclass(frozen=True)
class Budget:
    """Instructions and lines a unit by step, and the compiler (name and major version) that they were counted with."""

    compiler: str
    instructions: dict[str, float]
    lines: dict[str, float]

    def allowance(self, compiler: str) -> float:
        """How much more is accepted: another compiler chooses other instructions."""
        return ALLOWANCE if compiler == self.compiler else OTHER_COMPILER_ALLOWANCE


def load_budget(path: Path = BUDGET) -> Budget:
    """The budget file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    tables = ({name: float(value) for name, value in found[table].items()} for table in ("instructions", "lines"))
    return Budget(found["compiler"], *tables)


def valgrind_absence() -> str:
    """Why nothing can be counted here, or ""."""
    return "" if shutil.which("valgrind") else "NOT RUN: valgrind is not installed: docker/install.sh bench"


def _costs(text: str) -> Iterator[tuple[str, str, Cost]]:
    """(function, what it called or "", cost) of each line of cost in a callgrind file with uncompressed names.

    Such lines are `<line> <event> <event>...`, with zeros at the end left out; the one after `calls=` is what the
    called function took with all below it, which has lines of its own.
    """
    caller = callee = ""
    events: list[str] = ["Ir"]
    for line in text.splitlines():
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("fn="):
            caller, callee = line[3:].strip(), ""
        elif line.startswith("cfn="):
            callee = line[4:].strip()
        elif line.startswith("calls="):
            callee = callee or "?"
        elif re.match(r"[0-9+*-]", line):
            found = dict(zip(events, map(int, line.split()[1:]), strict=False))
            data = (sum(found.get(name, 0) for name in names) for names in (("D1mr", "D1mw"), ("DLmr", "DLmw")))
            yield caller, callee, Cost(found.get("Ir", 0), *data)
            callee = ""


def inclusive(text: str) -> dict[str, Cost]:
    """What each step takes with all that it calls, from a callgrind file."""
    found: dict[str, Cost] = {}
    for caller, _, cost in _costs(text):
        if caller.startswith(_STEP):
            step = caller[len(_STEP) :]
            found[step] = found.get(step, Cost()) + cost
    return found


def without_fabric(text: str) -> Cost:
    """What a callgrind file holds less what the fabric took with all that it called, none of it ours."""
    total = Cost()
    for caller, callee, cost in _costs(text):
        if not callee:
            total += cost
        elif callee.startswith(_FABRIC) and not caller.startswith(_FABRIC):
            total -= cost
    return total


def _callgrind(command: list[str], *options: str) -> tuple[str, str]:
    """(what the program printed, callgrind's file).

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    with tempfile.TemporaryDirectory(prefix="uccl-ep-costs-") as folder:
        out = Path(folder) / "callgrind"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no"]
        whole = [*tool, "--compress-pos=no", *_CACHES, *options, *command]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(whole)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout, out.read_text(encoding="utf-8", errors="replace")


def _run(program: Path, batches: int) -> tuple[dict[str, int], dict[str, Cost]]:
    """(units, cost) by step."""
    printed, file = _callgrind([str(program), str(batches)])
    return json.loads(printed), inclusive(file)


def _run_lane(program: Path, family: str, batches: int) -> tuple[dict[str, int], dict[str, Cost]]:
    """(units, cost) by step of a family's lane."""
    units: dict[str, int] = {}
    found: dict[str, Cost] = {}
    for step in LANE_STEPS:
        printed, file = _callgrind([str(program), family, str(batches)], f"--toggle-collect={_STEP}{step}")
        units[f"{family}_{step}"] = json.loads(printed)[step]
        found[f"{family}_{step}"] = without_fabric(file)
    return units, found


def slopes(
    first: tuple[dict[str, int], dict[str, Cost]], second: tuple[dict[str, int], dict[str, Cost]]
) -> dict[str, Cost]:
    """The cost of a unit, by step, from two runs' (units, cost)."""
    return {step: (second[1][step] - first[1][step]).over(second[0][step] - n) for step, n in first[0].items()}


def compiler_of(program: Path) -> str:
    """The compiler's name and major version that a program says it was built with, such as "GCC 12"."""
    text = program.read_bytes()
    for name, pattern in (("GCC", rb"GCC: \([^)]*\) (\d+)\."), ("clang", rb"clang version (\d+)\.")):
        versions = [int(v) for v in re.findall(pattern, text)]
        if versions:
            return f"{name} {max(versions)}"
    return "unknown"


def count(program: Path, batches: int = BATCHES) -> dict[str, Cost]:
    """The cost of a unit, by step.

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    return slopes(_run(program, batches), _run(program, 2 * batches))


def count_lanes(program: Path, batches: int = BATCHES) -> dict[str, Cost]:
    """The cost of a unit of the families' lanes, by step: "verbs_post" and so on.

    Raises:
        RuntimeError: the program failed under valgrind.
    """
    found: dict[str, Cost] = {}
    for family in LANE_FAMILIES:
        found |= slopes(_run_lane(program, family, batches), _run_lane(program, family, 2 * batches))
    return found


def count_all(proxy: Path, lanes: Path) -> dict[str, Cost]:
    """Everything that has a budget, from both programs."""
    return {**count(proxy), **count_lanes(lanes)}


def over_budget(found: dict[str, Cost], budget: Budget, compiler: str) -> list[str]:
    """A line for each step that takes more than its budget allows, or has none; empty when all is well."""
    most = 1.0 + budget.allowance(compiler)
    known = budget.instructions.keys() & budget.lines.keys()
    problems = [f"{step}: no budget" for step in found if step not in known]
    problems += [f"{step}: in the budget, but not counted" for step in budget.instructions if step not in found]
    for step, cost in found.items():
        allowed = budget.instructions.get(step, float("inf"))
        if cost.instructions > allowed * most:
            problems.append(f"{step}: {cost.instructions:.1f} instructions, budget {allowed:.1f} + {most - 1:.0%}")
        lines = budget.lines.get(step, float("inf"))
        if cost.lines > lines * (1.0 + LINE_ALLOWANCE) + LINES_AT_ALL:
            problems.append(f"{step}: {cost.lines:.2f} cache lines, budget {lines:.2f} + {LINE_ALLOWANCE:.0%}")
        if cost.from_memory > MOST_FROM_MEMORY:
            problems.append(f"{step}: {cost.from_memory:.2f} cache lines from memory: does something grow?")
    return problems


def result(proxy: Path, lanes: Path) -> dict[str, Any]:
    """What the result file holds."""
    budget, compiler = load_budget(), compiler_of(proxy)
    found = count_all(proxy, lanes)
    worst = max(found[step].instructions / most for step, most in budget.instructions.items() if step in found)
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
        "instructions": {step: cost.instructions for step, cost in found.items()},
        "lines": {step: cost.lines for step, cost in found.items()},
        "targets": [target],
    }
