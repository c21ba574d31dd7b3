"""Runs cycles and mixed modes over several worlds, and says what grew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.end_to_end.world import Crew, World
from tests.endurance.bodies import cycles, mixed
from tests.endurance.measure import Sample, beyond_noise, growth, settled

WORLDS = (
    World(4, 2, "tcp", timeout_s=60.0),
    World(3, 2, "tcp", proxy="process", timeout_s=60.0),
    World(2, 1, "shared_memory", timeout_s=60.0),
    World(4, 2, "shared_memory", proxy="process", timeout_s=60.0),
)
_SLICES = 12  # measures of the cycles of one world
_SLICE_S = 300.0  # longest life of one Buffer in the mixed part

Progress = Callable[[str, float], None]  # what is going on, and the fraction of all that is done


@dataclass(frozen=True)
class Plan:
    """How much: cycles and minutes over all worlds together."""

    cycles: int
    minutes: float
    worlds: tuple[World, ...] = WORLDS


@dataclass(frozen=True)
class Finding:
    """One rank of one world in one part: its first and last measure that count, and what grew beyond noise."""

    part: str
    world: str
    rank: int
    repeated: int  # cycles, or rounds
    before: Sample
    after: Sample
    growth: dict[str, int]
    beyond: dict[str, int]


def name_of(world: World) -> str:
    """Short words for a world."""
    return f"{world.ranks} ranks, {world.ranks_per_node} a node, {world.transport}, proxy {world.proxy}"


@dataclass(frozen=True)
class _Told:
    """Progress of one part of one world, as a fraction of everything."""

    progress: Progress
    what: str
    begin: float
    share: float

    def __call__(self, fraction: float) -> None:
        self.progress(self.what, self.begin + fraction * self.share)

    def next(self) -> _Told:
        """The part after this one."""
        return _Told(self.progress, self.what, self.begin + self.share, self.share)


def run(plan: Plan, progress: Progress = lambda what, done: None) -> list[Finding]:
    """All parts over all worlds.

    Raises:
        AssertionError: a rank failed, or got a row that is not the reference's.
    """
    findings: list[Finding] = []
    for index, world in enumerate(plan.worlds):
        crew = Crew(world.ranks)  # new processes: what one world leaves is not another's
        try:
            told = _Told(progress, name_of(world), index / len(plan.worlds), 0.5 / len(plan.worlds))
            findings += _cycles(crew, world, plan, told)
            findings += _mixed(crew, world, plan, told.next())
        finally:
            crew.close()
    return findings


def _cycles(crew: Crew, world: World, plan: Plan, progress: Callable[[float], None]) -> list[Finding]:
    each = max(1, -(-plan.cycles // (len(plan.worlds) * _SLICES)))
    series: list[list[Sample]] = [[] for _ in range(world.ranks)]
    for number in range(_SLICES):
        limit_s = 60.0 + 10.0 * each
        for rank, sample in enumerate(
            crew.run(world, cycles, world.ranks_per_node, number * each, each, limit_s=limit_s)
        ):
            series[rank].append(sample)
        progress((number + 1) / _SLICES)
    return [_finding("cycles", world, rank, each * _SLICES, samples) for rank, samples in enumerate(series)]


def _mixed(crew: Crew, world: World, plan: Plan, progress: Callable[[float], None]) -> list[Finding]:
    seconds = plan.minutes * 60.0 / len(plan.worlds)
    lives = max(1, round(seconds / _SLICE_S))
    findings: list[Finding] = []
    first = 0
    for life in range(lives):
        limit_s = 4.0 * seconds / lives + 120.0
        results = crew.run(world, mixed, world.ranks_per_node, first, seconds / lives, limit_s=limit_s)
        for rank, (rounds, samples) in enumerate(results):
            findings.append(_finding("mixed", world, rank, rounds, samples))
        first += results[0][0]
        progress((life + 1) / lives)
    return findings


def _finding(part: str, world: World, rank: int, repeated: int, samples: list[Sample]) -> Finding:
    judged = settled(samples)
    return Finding(part, name_of(world), rank, repeated, judged[0], judged[-1], growth(samples), beyond_noise(samples))


def table(findings: list[Finding]) -> str:
    """One row a finding, figures before and after."""
    rows = [
        f"{'part':<7} {'world':<48} {'rank':>4} {'times':>6} {'rss MiB':>15} {'pss MiB':>15} {'descr.':>9} "
        f"{'segm.':>9} {'threads':>9}"
    ]
    for f in findings:
        mib = [f"{getattr(f.before, n) / 2**20:.1f} {getattr(f.after, n) / 2**20:.1f}" for n in ("rss", "pss")]
        counts = [f"{getattr(f.before, n)} {getattr(f.after, n)}" for n in ("descriptors", "segments", "threads")]
        row = f"{f.part:<7} {f.world:<48} {f.rank:>4} {f.repeated:>6} {mib[0]:>15} {mib[1]:>15} "
        rows.append(row + " ".join(f"{count:>9}" for count in counts) + (f"  GREW {f.beyond}" if f.beyond else ""))
    total = sum(f.repeated for f in findings if f.part == "cycles" and f.rank == 0)
    rounds = sum(f.repeated for f in findings if f.part == "mixed" and f.rank == 0)
    grew = sum(bool(f.beyond) for f in findings)
    return "\n".join([*rows, f"endurance: {total} cycles, {rounds} mixed rounds, {grew} of {len(findings)} grew"])


def write_json(findings: list[Finding], path: Path) -> None:
    """The findings as one JSON list."""
    path.write_text(json.dumps([asdict(f) for f in findings], indent=1) + "\n", encoding="utf-8")
