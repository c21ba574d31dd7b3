"""Proof that the machine finds wrong order: each instruction of the kernels that orders memory is weakened in turn.

    python -m tests.gpu.ptx.mutants            every mutant, about half an hour on two cores
    python -m tests.gpu.ptx.mutants --sample 200 --seed 3

A release, an acquire or both become relaxed ("relax"); a scope becomes the next narrower one ("narrow"); a barrier is
taken out ("remove"). The mutant plays scenarios that execute the instruction; it is found when the machine reports an
error, a result is wrong or a rank waits in vain. A mutant that changes nothing that PTX promises is in EQUIVALENT, with
the reason. What is neither is printed, and fails.
"""

from __future__ import annotations

import argparse
import functools
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World as Ranks
from tests.gpu.calls import buffer_for, low_latency, throughput
from tests.gpu.places import FakePlatform, run
from tests.gpu.ptx.executor import World, playing
from tests.gpu.ptx.lower import ORDERS, SCOPES
from tests.gpu.ptx.programs import product
from tests.kernels.ptx import ROOT
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from uccl_ep.settings import settings

SEEDS = (1, 2, 3)  # each with another way to be late
NUM_SMS = 32


@dataclass(frozen=True)
class Mutant:
    """One change of one instruction."""

    kernel: str
    instruction: int
    how: str
    what: str  # the instruction
    place: str  # file:line (inlined at file:line)

    @property
    def source(self) -> str:
        """The line of source that says what is ordered: of the caller, where a primitive was inlined."""
        return source_line(re.findall(r"[\w/.]+:\d+", self.place)[-1])

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Copies of one line in one kernel."""
        return self.kernel, self.how, self.what, self.place


EQUIVALENT: tuple[tuple[str, str, str], ...] = ()
"""(how, a pattern of the source line or of the kernel and it, why nothing depends on it)."""


@functools.cache
def _files() -> dict[str, list[str]]:
    paths = (p for part in ("kernels", "proxy") for p in (ROOT / part).rglob("*.h"))
    return {"/".join(p.parts[-2:]): p.read_text(encoding="utf-8").splitlines() for p in paths}


def source_line(place: str) -> str:
    """The text at "folder/file.h:12"; "" where there is none."""
    file, _, number = place.partition(":")
    lines = _files().get(file, [])
    return lines[int(number) - 1].strip() if 0 < int(number) <= len(lines) else ""


def mutants(arch: str) -> list[Mutant]:
    """All of the product's kernels."""
    found: list[Mutant] = []
    kernel, number, places = "", 0, []
    for line in product(arch).splitlines():
        if line.startswith("kernel "):
            kernel, number, places = line.split()[1], 0, []
        elif line.startswith("place "):
            places.append(line[6:])
        else:
            op, _, _, _, _, memory, place = line.split("\t")
            for how, what in _changes(op, memory):
                found.append(Mutant(kernel, number, how, what, places[int(place)]))
            number += 1
    return found


def _changes(op: str, memory: str) -> list[tuple[str, str]]:
    if op in ("barsync", "barand", "barwarp"):
        return [("remove", op)]
    if not memory:
        return []
    order, scope = (int(part) for part in memory.split(" ")[4:])
    what = f"{op}.{ORDERS[order]}.{SCOPES[scope]}"
    return [("relax", what)] * (order > 1) + [("narrow", what)] * (scope > 1)


# ---- scenarios -------------------------------------------------------------------------------------------------------


def _play(group: object, platform: FakePlatform, steps: list[Step], ranks: Ranks) -> None:
    with buffer_for(group, platform, steps, ranks.ranks_per_node) as buffer:
        for step in steps:
            if isinstance(step, LowLatencyStep):
                low_latency(buffer, platform, step)
            else:
                throughput(buffer, platform, step, ranks.node_sizes)


def _low(**changed: object) -> list[Step]:
    """Rounds of one size, so that buffer sets come round again."""
    return [LowLatencyStep(40 + n, max_tokens=9, hidden=256, topk=4, **changed) for n in range(5)]  # type: ignore[arg-type]


def _high(**changed: object) -> list[Step]:
    return [ThroughputStep(60 + n, max_tokens=24, hidden=128, topk=3, num_sms=8, **changed) for n in range(3)]  # type: ignore[arg-type]


SCENARIOS: dict[str, tuple[Ranks, Callable[[], list[Step]], dict[str, str]]] = {
    "low latency, 1 node of 3": (Ranks(3), lambda: _low(format="fp8"), {}),
    "low latency, 2 nodes of 2": (Ranks(4, 2), lambda: _low(format="bf16", send="hook"), {}),
    "low latency, zero copy": (Ranks(3), lambda: _low(combine="zero_copy"), {}),
    "low latency, sums in the node": (Ranks(4, 2), lambda: _low(), {"UCCL_EP_LOW_LATENCY_COMBINE": "node"}),
    "throughput, 1 node of 3": (Ranks(3), lambda: _high(), {}),
    "throughput, 2 nodes of 2": (Ranks(4, 2), lambda: _high(num_bias=1), {}),
    "throughput, cached": (Ranks(2), lambda: _high(num_cached=2), {}),
}


@dataclass
class Played:
    """What became of one scenario."""

    world: World
    wrong: str
    seconds: float


def play(scenario: str, seed: int, mutant: Mutant | None = None, arch: str = "compute_90a") -> Played:
    """Plays it once, with a mutant where one is given."""
    ranks, steps, variables = SCENARIOS[scenario]
    world = World(arch, seed, 4, True)
    if mutant is not None:
        world.machine.mutate(mutant.kernel, mutant.instruction, mutant.how)
    patch, began, wrong = pytest.MonkeyPatch(), time.monotonic(), ""
    for name, value in {**variables, "UCCL_EP_TIMEOUT_S": "6"}.items():
        patch.setenv(name, value)
    try:
        with playing(world):
            platform = FakePlatform(install(patch, FakeDriver(num_sms=NUM_SMS)), "cuda")
            run(platform, Ranks(ranks.ranks, ranks.ranks_per_node, timeout_s=6.0), _play, steps(), ranks)
    except Exception as error:  # whatever it was: the mutant is found
        wrong = f"{type(error).__name__}: {error}"
    finally:
        patch.undo()
        settings.cache_clear()
    return Played(world, (world.errors or [wrong])[0], time.monotonic() - began)


# ---- the run ---------------------------------------------------------------------------------------------------------


class Coverage:
    """Which scenario executes which instruction, the quickest first.

    Raises:
        AssertionError: a scenario fails without any mutant.
    """

    def __init__(self, arch: str) -> None:
        self.executed: dict[tuple[str, str], list[int]] = {}
        self.seconds: dict[str, float] = {}
        for name in SCENARIOS:
            for seed in SEEDS:
                played = play(name, seed, arch=arch)
                assert not played.wrong, f"{name}, seed {seed}: {played.wrong}"
            self.seconds[name] = played.seconds
            for kernel in played.world.launches:
                self.executed[name, kernel] = played.world.machine.executed(kernel)

    def of(self, mutant: Mutant) -> list[str]:
        """Scenarios that execute its instruction."""
        names = [n for n in SCENARIOS if (n, mutant.kernel) in self.executed]
        names = [n for n in names if self.executed[n, mutant.kernel][mutant.instruction]]
        return sorted(names, key=self.seconds.__getitem__)


def equivalent(mutant: Mutant) -> str:
    """Why it changes nothing, or ""."""
    text = f"{mutant.kernel}: {mutant.what}: {mutant.source}"
    return next((why for how, pattern, why in EQUIVALENT if how == mutant.how and re.search(pattern, text)), "")


def find(mutant: Mutant, scenarios: Iterable[str], arch: str) -> str:
    """How it was found, or ""."""
    names = list(scenarios)
    for seed in SEEDS:
        for name in names:
            played = play(name, seed, mutant, arch)
            if played.wrong:
                return played.wrong
    return ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="compute_90a")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn by --seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernel", default="", help="of kernels whose names have this")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further mutant after this")
    options = parser.parse_args()
    began = time.monotonic()
    coverage = Coverage(options.arch)
    for name, seconds in coverage.seconds.items():
        print(f"{name}: {seconds:.1f} s", flush=True)
    made = [m for m in mutants(options.arch) if options.kernel in m.kernel]
    reached = [m for m in made if coverage.of(m)]
    random.Random(options.seed).shuffle(reached)
    chosen = reached[: options.sample or None]
    outcome: dict[str, Counter[str]] = defaultdict(Counter)
    missed: dict[tuple[str, ...], int] = Counter()
    for mutant in chosen:
        if time.monotonic() - began > 60 * options.minutes:
            break
        why = equivalent(mutant)
        result = "equivalent" if why else "found" if find(mutant, coverage.of(mutant), options.arch) else "missed"
        outcome[mutant.kernel][result] += 1
        if result == "missed":
            missed[mutant.group + (mutant.source,)] += 1  # noqa: RUF005 - a star in an index is for newer Pythons
    print(f"{'kernel':28}{'made':>7}{'reached':>9}{'tried':>7}{'found':>7}{'equivalent':>12}{'missed':>8}")
    for kernel in sorted({m.kernel for m in made}):
        tried = outcome[kernel]
        counts = (sum(m.kernel == kernel for m in made), sum(m.kernel == kernel for m in reached), tried.total())
        row = (*counts, tried["found"], tried["equivalent"], tried["missed"])
        print(f"{kernel:28}" + "".join(f"{n:{w}}" for n, w in zip(row, (7, 9, 7, 7, 12, 8), strict=True)))
    for group, count in sorted(missed.items()):
        print("missed:", count, *group, sep=" | ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
