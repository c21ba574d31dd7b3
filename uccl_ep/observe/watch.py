"""Samples of all ranks that can be seen, again and again: what `uccl-ep top` shows and Prometheus is told.

Ranks that start are found within RESCAN_S seconds, at once when one of those known has gone (a Buffer that recovers has
a new session). A session is dropped when all of its ranks have gone and another has come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from uccl_ep.observe.attach import Attached, attach, find
from uccl_ep.observe.page import Page
from uccl_ep.observe.rates import RankRates, rates
from uccl_ep.observe.sample import Sample, take
from uccl_ep.observe.waits import Waits, find_waits

RESCAN_S = 5.0
"""Looking through the processes of a host is the only part that takes milliseconds."""


@dataclass(frozen=True)
class Job:
    """The ranks of one Buffer that can be seen, between two samples.

    Attributes:
        pages: by rank. pids: by which this process reaches them. samples: the later ones. rates: what happened between.
        waits: who waited for whom.
    """

    pages: Mapping[int, Page]
    pids: Mapping[int, int]
    samples: Mapping[int, Sample]
    rates: Mapping[int, RankRates]
    waits: Waits

    @property
    def page(self) -> Page:
        """Of its lowest rank here; what is said of the whole group is alike in all."""
        return self.pages[min(self.pages)]

    @property
    def alive(self) -> bool:
        """Some rank of it has not ended."""
        return any(sample.alive for sample in self.samples.values())


class Watcher:
    """Takes samples of the ranks that `find` finds with the same arguments.

    Args:
        pid, directory: see find.
        job_id: only ranks of this job; None: of all.

    Attributes:
        left_out: why ranks that were found are not shown.
    """

    def __init__(
        self,
        pid: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        job_id: str | None = None,
    ) -> None:
        self._where, self._job_id = (pid, directory), job_id
        self._ranks: dict[tuple[int, int], Attached] = {}
        self._last: dict[tuple[int, int], Sample] = {}
        self._scanned_at = 0.0
        self.left_out: list[str] = []
        self._scan()

    @property
    def attached(self) -> list[Attached]:
        """Ranks that are mapped, by session and rank."""
        return [self._ranks[key] for key in sorted(self._ranks)]

    @property
    def over(self) -> bool:
        """Ranks were seen, and all have ended with their processes: none of them begins another Buffer."""
        ranks = self._ranks.values()
        return bool(ranks) and not any(rank.alive or _lives(rank.pid) for rank in ranks)

    def samples(self) -> list[tuple[Attached, Sample]]:
        """One sample of each rank."""
        gone = any(not rank.alive for rank in self._ranks.values())
        if gone or time.monotonic() - self._scanned_at >= RESCAN_S:
            self._scan()
        return [(rank, take(rank)) for rank in self.attached]

    def step(self) -> list[Job]:
        """What has happened since the last step, by job; ranks that are new appear in the next."""
        jobs: dict[int, dict[int, tuple[Attached, Sample, Sample]]] = {}
        now = {}
        for rank, sample in self.samples():
            key = (rank.page.session, rank.page.rank)
            now[key] = sample
            before = self._last.get(key)
            if before is not None and sample.time_ns > before.time_ns:
                jobs.setdefault(key[0], {})[key[1]] = (rank, before, sample)
        self._last = now
        return [_job(jobs[session]) for session in sorted(jobs)]

    def _scan(self) -> None:
        self._scanned_at = time.monotonic()
        found = [f for f in find(*self._where) if (f.page.session, f.page.rank) not in self._ranks]
        if self._job_id is not None:
            found = [f for f in found if f.page.job_id == self._job_id]
        attached, self.left_out = attach(found)
        self._ranks |= {(rank.page.session, rank.page.rank): rank for rank in attached}
        living = {rank.page.session for rank in self._ranks.values() if rank.alive}
        if living:
            self._ranks = {key: rank for key, rank in self._ranks.items() if key[0] in living}


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _job(ranks: Mapping[int, tuple[Attached, Sample, Sample]]) -> Job:
    pairs = {rank: (before, after) for rank, (_, before, after) in sorted(ranks.items())}
    pages = {rank: attached.page for rank, (attached, _, _) in sorted(ranks.items())}
    return Job(
        pages=pages,
        pids={rank: attached.pid for rank, (attached, _, _) in ranks.items()},
        samples={rank: after for rank, (_, after) in pairs.items()},
        rates={rank: rates(before, after) for rank, (before, after) in pairs.items()},
        waits=find_waits(pairs, pages[min(pages)].topology),
    )
