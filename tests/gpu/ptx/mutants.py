"""Proof that the machine finds wrong order: each instruction of the kernels that orders memory is weakened in turn.

    python -m tests.gpu.ptx.mutants            every mutant, about half an hour on two cores
    python -m tests.gpu.ptx.mutants --sample 200 --seed 3

A release, an acquire or both become relaxed ("relax"); a scope becomes the next narrower one ("narrow"); a barrier is
taken out ("remove"). The mutant plays scenarios that execute the instruction; it is found when the machine reports an
error, a result is wrong or a rank waits in vain. Some cannot be found, or change nothing that PTX promises: KNOWN has
them, with the reason. What is neither is printed, and fails.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World as Ranks
from tests.gpu.calls import buffer_for, low_latency, throughput
from tests.gpu.places import FakePlatform, run
from tests.gpu.ptx.executor import World, playing
from tests.gpu.ptx.lower import ORDERS, SCOPES
from tests.gpu.ptx.programs import product
from tests.gpu.test_forms import NodeWorld, Rank
from tests.gpu.test_forms import _node_sums as node_sums
from tests.kernels.ptx import ROOT
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, reference_of
from tests.uccl_ep.ranks import low_latency as uneven
from uccl_ep.reference import low_latency_combine_by_node
from uccl_ep.settings import settings

SEEDS = (1, 2, 3)  # each with another way to be late
NUM_SMS = 12


@dataclass(frozen=True)
class Mutant:
    """One change of one instruction."""

    kernel: str
    instruction: int
    how: str
    what: str  # the instruction
    place: str  # file:line, and behind each "<" where that was inlined

    @property
    def source(self) -> str:
        """The lines of source that say what is ordered: callers of the primitive, the nearest first."""
        places = self.place.split(" < ")
        return " < ".join(source_line(place) for place in places[1:] or places)

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Copies of one line in one kernel."""
        return self.kernel, self.how, self.what, self.place


_STREAM = "kernels of one rank run one after the other: the stream orders them"
_FAILED = "it ends a wait that has failed, or keeps a rank that has failed from starting: no row is read after it"
_HOST = "it orders the host's read of a slot before this rank overwrites it, and the machine does not see the host read"
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "relax|narrow",
        r"call\.epoch|call\.state|epochs_of|\bs\.(dispatch|combine)\.|\bp\.(consumed|ahead|told)",
        _STREAM,
    ),
    ("narrow", r"identities->calls|a\.(geometry|settled|last)\b", _STREAM),
    ("relax|narrow", r"st_release_gpu\(ticket, 0u\)", _STREAM),
    (
        "narrow",
        r"c\.mask",
        "the host masks between launches; who sees it a call later leaves the peer out a call later",
    ),
    ("relax|narrow", r"context\.abort|departed|fault->|launch_failed|fail_launch", _FAILED),
    ("remove", r"aborted\(wait\)|launch_failed|all_see_ok", _FAILED),
    ("relax", r"ring\.tail|ring\.done", _HOST),
    (
        "relax",
        r"word\(c\.data\[i\], word_offset\), consumed",
        "whoever needs it has acquired a later flag of that rank",
    ),
)
"""Mutants that are not found: (how, a pattern of instruction and source lines, why)."""


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


Body = Callable[[FakePlatform], object]


def _play(group: Any, platform: FakePlatform, steps: list[Step], ranks: Ranks, slack: int) -> None:
    with buffer_for(group, platform, steps, ranks.ranks_per_node, slack) as buffer:
        for step in steps:
            if isinstance(step, LowLatencyStep):
                low_latency(buffer, platform, step)
            else:
                throughput(buffer, platform, step, ranks.node_sizes)
        buffer.barrier()
        buffer.barrier()


def _rounds(ranks: Ranks, steps: Callable[[], list[Step]], slack: int = 4) -> Body:
    return lambda platform: run(platform, ranks, _play, steps(), ranks, slack)


def _low(**changed: Any) -> Callable[[], list[Step]]:
    """Rounds of one size, so that buffer sets come round again."""
    return lambda: [LowLatencyStep(40 + n, max_tokens=9, hidden=256, topk=4, **changed) for n in range(5)]


def _high(tokens: int = 24, **changed: Any) -> Callable[[], list[Step]]:
    return lambda: [
        ThroughputStep(60 + n, max_tokens=tokens, hidden=128, topk=3, num_sms=8, **changed) for n in range(3)
    ]


def _only_dispatches(group: Any, platform: FakePlatform) -> None:
    """No combine between them tells the others how far a rank has read."""
    c = case(17, "uniform", num_ranks=group.size(), num_experts=2 * group.size(), num_topk=2, hidden=256, max_tokens=9)
    due = reference_of(c)[group.rank()]
    with uneven(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(6):
            assert_low_latency(rank.received(rank.dispatch(use_fp8=False)), due)


def _node_sums(platform: FakePlatform) -> None:
    c = case(41, "mixed", num_ranks=4, num_experts=8, num_topk=4, hidden=256, max_tokens=16)
    outputs = [expert_rows(rank, c.shape) for rank in range(4)]
    due = low_latency_combine_by_node(outputs, c.topk_idx, c.topk_weights, reference_of(c), 2)
    run(platform, NodeWorld(4, 2), node_sums, c, due, False)


SCENARIOS: dict[str, Body] = {
    "low latency, 1 node of 3": _rounds(Ranks(3), _low(format="fp8")),
    "low latency, 2 nodes of 2": _rounds(Ranks(4, 2), _low(send="hook")),
    "low latency, zero copy": _rounds(Ranks(3), _low(combine="zero_copy")),
    "low latency, only dispatches": lambda platform: run(platform, Ranks(3), _only_dispatches),
    "low latency, only dispatches, 2 nodes": lambda platform: run(platform, Ranks(2, 1), _only_dispatches),
    "low latency, sums in the node": _node_sums,
    "throughput, 1 node of 3": _rounds(Ranks(3), _high()),
    "throughput, 2 nodes of 2": _rounds(Ranks(4, 2), _high(num_bias=1)),
    "throughput, cached": _rounds(Ranks(2), _high(num_cached=2)),
    "throughput, rings that wrap": _rounds(Ranks(2), _high(90), 1),
    "throughput, rings that wrap, 2 nodes": _rounds(Ranks(2, 1, ring_capacity=16), _high(90), 1),
}


@dataclass
class Played:
    """What became of one scenario."""

    world: World
    wrong: str
    seconds: float


def play(scenario: str, seed: int, mutant: Mutant | None = None, arch: str = "compute_90a") -> Played:
    """Plays it once, with a mutant where one is given."""
    world = World(arch, seed, 4, True)
    if mutant is not None:
        world.machine.mutate(mutant.kernel, mutant.instruction, mutant.how)
    patch, began, wrong = pytest.MonkeyPatch(), time.monotonic(), ""
    try:
        with playing(world):
            SCENARIOS[scenario](FakePlatform(install(patch, FakeDriver(num_sms=NUM_SMS)), "cuda"))
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


def known(mutant: Mutant) -> str:
    """Why it is not found, or ""."""
    text = f"{mutant.kernel}: {mutant.what}: {mutant.source}"
    return next((why for how, pattern, why in KNOWN if mutant.how in how.split("|") and re.search(pattern, text)), "")


def find(mutant: Mutant, scenarios: Iterable[str], arch: str) -> str:
    """How it was found, or "". Each scenario with one seed, then with the others."""
    names = list(scenarios)
    for turn in range(len(SEEDS)):
        for n, name in enumerate(names):
            played = play(name, SEEDS[(n + turn) % len(SEEDS)], mutant, arch)
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
    logging.disable(logging.WARNING)  # every world says that its ranks share a GPU
    began = time.monotonic()
    coverage = Coverage(options.arch)
    for name, seconds in coverage.seconds.items():
        print(f"{name}: {seconds:.1f} s", flush=True)
    made = [m for m in mutants(options.arch) if options.kernel in m.kernel]
    reached = [m for m in made if coverage.of(m)]
    random.Random(options.seed).shuffle(reached)
    chosen = reached[: options.sample or None]
    outcome: dict[str, Counter[str]] = defaultdict(Counter)
    missed = 0
    for mutant in chosen:
        if time.monotonic() - began > 60 * options.minutes:
            break
        why = known(mutant)
        result = "known" if why else "found" if find(mutant, coverage.of(mutant), options.arch) else "missed"
        outcome[mutant.kernel][result] += 1
        if result == "missed":
            missed += 1
            print("missed:", mutant.instruction, *mutant.group, mutant.source, sep=" | ", flush=True)
    print(f"{'kernel':28}{'made':>7}{'reached':>9}{'tried':>7}{'found':>7}{'known':>12}{'missed':>8}")
    for kernel in sorted({m.kernel for m in made}):
        tried = outcome[kernel]
        counts = (sum(m.kernel == kernel for m in made), sum(m.kernel == kernel for m in reached), tried.total())
        row = (*counts, tried["found"], tried["known"], tried["missed"])
        print(f"{kernel:28}" + "".join(f"{n:{w}}" for n, w in zip(row, (7, 9, 7, 7, 12, 8), strict=True)))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
