"""What `make prove` runs, and what it reads from each step's output."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTEST = (sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-m", "slow or not slow")
_STATES = re.compile(r"(?P<states>[\d,]+) states\b")
_FUZZED = re.compile(r"(?:^|[ .])fuzzed (\S+) +\d+ s +(\d+) executions +(\d+) edges +(\d+) frames", re.MULTILINE)
# What libFuzzer must have run over, and what the slow run of one of them leaves at the least.
_TARGETS = ("tcp_frames", "tcp_handshake", "arrivals", "addresses", "memory")
_ENDS = re.compile(r"^memory ended: (\d+ worlds); (.*)", re.MULTILINE)
_BUGS = re.compile(r"^BUG_\w+ .* breaks (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One line of the table: what was counted, and whether the count is what it must be."""

    what: str
    figure: str
    good: bool = True


@dataclass(frozen=True)
class Step:
    """A command, the file it leaves its figures in (if it does), and how its output becomes rows."""

    name: str
    command: tuple[str, ...]
    limit_s: int
    read: Callable[[str, Path], Iterable[Row]]
    environment: tuple[tuple[str, str], ...] = ()


def _total(pattern: re.Pattern[str], text: str) -> tuple[int, int]:
    """(matches, sum of their first group)."""
    numbers = [int(match[1].replace(",", "")) for match in pattern.finditer(text)]
    return len(numbers), sum(numbers)


def read_states(text: str, _: Path) -> Iterable[Row]:
    """Of Spin's models or of the exhaustive tests."""
    runs, states = _total(_STATES, text)
    yield Row("explorations", f"{runs}, {states:,} states in all", runs > 0)
    bugs = _BUGS.findall(text)
    if bugs:
        found = [b for b in bugs if b != "NOTHING"]
        yield Row("planted bugs that a model finds", f"{len(found)} of {len(bugs)}", len(found) == len(bugs))


def read_simulation(_: str, figures: Path) -> Iterable[Row]:
    """`uccl-ep simulate --out`."""
    result: dict[str, Any] = json.loads(figures.read_text())
    totals, failures = result["totals"], result["failures"]
    first = result["options"]["first"]
    yield Row("seeds", f"{totals['seeds']:,} from {first} on, up to {totals['most_ranks']} ranks", totals["seeds"] > 0)
    yield Row("rows compared", f"{totals['rows']:,} in {totals['writes']:,} writes", totals["rows"] > 0)
    yield Row("writes that overtook", f"{totals['overtakes']:,}, the deepest {totals['deepest']} others")
    yield Row("faults injected", f"{totals['faults']:,}; {totals['failed']:,} ranks reported one, as they must")
    left = f"{totals['absences']:,} runs; nobody else was, and nobody else's rows differed"
    yield Row("ranks left out by the others", left, totals["absences"] > 0)
    yield Row("failing seeds (wrong rows, wrong reports, hangs)", str(len(failures)), not failures)


def read_plans(_: str, figures: Path) -> Iterable[Row]:
    """JSON lines of tests/faults/summary.py."""
    plans = [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    passed = [p for p in plans if p["outcome"] == "passed"]
    skipped = [p for p in plans if p["outcome"] == "skipped"]
    good = bool(passed) and len(passed) + len(skipped) == len(plans)
    yield Row("fault plans passed", f"{len(passed)} of {len(plans)}", good)
    if skipped:
        yield Row("fault plans SKIPPED", f"{len(skipped)}: {skipped[0]['note']}")
    slowest = max(passed, key=lambda p: float(p["slowest_s"]), default=None)
    if slowest is not None:
        yield Row("slowest survivor's report", f"{slowest['slowest_s']:.1f} s ({slowest['plan']})")
    leaks = sum(int(p["leaks"]) for p in plans)
    yield Row("leaks after a plan", str(leaks), leaks == 0)


def read_fuzz(text: str, _: Path) -> Iterable[Row]:
    """Executions of every target, each of which must have been run; a finding has failed the step."""
    seen = {match[0]: match for match in _FUZZED.findall(text)}
    for target in dict.fromkeys((*_TARGETS, *seen)):
        if target not in seen:
            yield Row(f"fuzzed {target}", "was not run", False)
            continue
        _, executions, edges, work = seen[target]
        figure = f"{int(executions):,} inputs, {int(edges):,} edges, {int(work):,} frames, knocks, texts or words"
        yield Row(f"fuzzed {target}", figure, int(executions) > 0 and int(work) > 0)
    for worlds, ends in _ENDS.findall(text):
        yield Row(f"words of memory overwritten in {worlds}", ends)


def read_endurance(_: str, figures: Path) -> Iterable[Row]:
    """`ENDURANCE_JSON`: cycles and rounds of all worlds, and what grew in any process of them."""
    findings = json.loads(figures.read_text()) if figures.exists() else []
    first = [f for f in findings if f["rank"] == 0]
    for part, what in (("cycles", "Buffers made and destroyed"), ("mixed", "rounds of mixed modes")):
        times = sum(int(f["repeated"]) for f in first if f["part"] == part)
        yield Row(what, f"{times:,}", times > 0)
    grew = sum(bool(f["beyond"]) for f in findings)
    yield Row("leaks", f"{grew} of {len(findings)} processes grew", bool(findings) and grew == 0)


def steps(folder: Path, seeds: int, minutes: float, jobs: int) -> list[Step]:
    """All of it; figures go into files of `folder`. Fault plans mostly wait, so `jobs` of them run at a time."""

    def figures(name: str) -> str:
        return str(folder / name)

    simulate = (sys.executable, "-m", "uccl_ep", "simulate", "--out")
    tools = (("UCCL_EP_REQUIRE_TOOLS", "1"),)
    return [
        Step("models", (*PYTEST, "tests/model"), 1500, read_states, tools),
        Step("every interleaving", (*PYTEST, "tests/exhaustive"), 900, read_states),
        Step(
            "simulation, fixed seeds",
            (*simulate, figures("simulation, fixed seeds"), "--seeds", str(seeds), "--minutes", str(minutes)),
            900, read_simulation,
        ),
        Step(
            "simulation, fresh seeds",
            (*simulate, figures("simulation, fresh seeds"), "--fresh", "--minutes", str(minutes)),
            900, read_simulation,
        ),
        Step(
            "fault plans", (*PYTEST, "-n", str(jobs), "--dist", "worksteal", "tests/faults"), 1500, read_plans,
            (("FAULT_PLANS_JSON", figures("fault plans")),),
        ),
        Step("fuzzing", (*PYTEST, "tests/fuzz"), 900, read_fuzz, tools),
        Step(
            "endurance", (*PYTEST, "tests/endurance"), 600, read_endurance,
            (("ENDURANCE_JSON", figures("endurance")),),
        ),
    ]  # fmt: skip
