"""Who waits for whom, how long, and why: the wait matrix, and the rank or the link that holds the others up.

All of it is about one interval of T seconds, from two samples of each rank that can be seen on this host. For a rank r
that waits and a rank s that is waited for:

- **waited** W(r, s) is how long kernels of r waited for s: what they have added up (a wait counts when it ends), at
  most T. A wait that lasts through the whole interval adds nothing up, so it is seen by what it waits for: if r has
  made more calls of some phase than r sees of s, and neither number changed, or r's proxy waited for s in a barrier at
  both ends of the interval and heard nothing of it, then W = T.
- **link** L(r, s) is the part of W for which bytes of s were under way. Let h be the rank in whose memory r reads rows
  of s (itself, or its node's host for s). L is the least of W and the greatest of
  - arriving: at h or r, the time from the first sign of a call of s (a write or its announcement) to its last write;
  - sending: at s, the time that writes to h or r were posted and not complete, when s can be seen here;
  - T, when writes to h or r stayed open through the interval and nothing moved, or when s has announced a call that
    has not wholly come, at both ends of the interval.
  Ranks of one node load and store: there is no link between them, L = 0.
- **late** is the rest, W - L: s had not begun. Its flag came late while its bytes came fast, or have not been sent.

A rank that is late may itself have waited for another: who keeps all others waiting and waits for nobody is at the end
of the chain. So ranks are taken by their *net*, the greatest first: caused(s), the mean of late(r, s) over the ranks r
that can be seen, less own(s), the longest that s waited itself, max over q of W(s, q). One is *suspected of being late*
when caused(s), less what it waited for those suspected before it, matters, and its net does, or stands out from the
median of all by as much: on a busy machine everybody waits for everybody, and one the least.

A *link* from s costs the mean of L(r, s) over the ranks r whose bytes of s were longest under way to the same h. It is
suspected when that stands out from the median of all links by what matters: where all are alike, rows take as long as
this network needs for them. When most links out of a rank, or most into it, are suspected, it is that rank's.

What matters is at least SHARE of T and MOMENT seconds. The costliest suspect comes first: it is the slow rank or link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep._native import Phase
from uccl_ep.errors import InvalidArgument
from uccl_ep.group.topology import NO_NODE, Topology
from uccl_ep.observe.sample import Row, Sample

Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Pair = tuple[Sample, Sample]
Link = tuple[int, int]

SHARE = 0.05
"""Of the interval: a suspect holds others up for at least so much of it."""
MOMENT = 0.005
"""Seconds; the same."""
LATE, SLOW_LINK = "late", "slow link"
_REDUCED = (Phase.WEIGHTS, Phase.REDUCED)  # phases of combines that are reduced in the node
_MOST_NAMED = 8


@dataclass(frozen=True)
class Suspect:
    """Who holds others up.

    Attributes:
        rank: the rank. kind: LATE or SLOW_LINK. seconds: what it cost a waiting rank, on average, in the interval.
        peer: the other end when it is one link, which goes from `rank` to `peer`; else None.
        evidence: what was seen, as a sentence.
    """

    rank: int
    kind: str
    seconds: float
    peer: int | None
    evidence: str


@dataclass(frozen=True)
class Waits:
    """The wait matrix of one interval, and what follows from it.

    Attributes:
        seconds: T. ranks: those that could be seen, ascending; row i of the matrices is ranks[i].
        waited, link: float64 [len(ranks), num_ranks], seconds; waited - link is late.
        suspects: greatest first. The first is the slow rank.
    """

    seconds: float
    ranks: tuple[int, ...]
    waited: Matrix
    link: Matrix
    suspects: tuple[Suspect, ...]

    @property
    def late(self) -> Matrix:
        """Seconds for which the rank that was waited for had not begun."""
        late: Matrix = self.waited - self.link
        return late

    def row(self, rank: int) -> int:
        """The row of a rank."""
        return self.ranks.index(rank)


def find_waits(pairs: Mapping[int, Pair], topology: Topology) -> Waits:
    """The waits between two samples of each rank.

    Args:
        pairs: by rank, the earlier sample and the later one; of ranks of one Buffer.
        topology: that Buffer's.

    Raises:
        InvalidArgument: there is no rank, or samples are out of order.
    """
    if not pairs or any(after.time_ns <= before.time_ns for before, after in pairs.values()):
        raise InvalidArgument(f"samples of ranks {sorted(pairs)}: give two of each rank, the earlier first")
    view = _View(pairs, topology)
    ranks = tuple(sorted(pairs))
    waited = np.stack([view.waited(r) for r in ranks])
    under_way = [view.under_way(r) for r in ranks]
    link = np.minimum(np.stack([seconds for seconds, _ in under_way]), waited)
    waits = Waits(view.seconds, ranks, waited, link, ())
    suspects = [*_late(waits, topology), *_links(waits, [ends for _, ends in under_way])]
    least = max(SHARE * waits.seconds, MOMENT)
    kept = [s for s in suspects if s.seconds >= least]
    return Waits(view.seconds, ranks, waited, link, tuple(sorted(kept, key=lambda s: -s.seconds)))


class _View:
    """What can be asked of the samples."""

    def __init__(self, pairs: Mapping[int, Pair], topology: Topology) -> None:
        self.pairs, self.ranks = pairs, topology.num_ranks
        self.seconds = max((after.time_ns - before.time_ns) / 1e9 for before, after in pairs.values())
        self.node_of = np.array(topology.node_of)
        self.topology = topology
        self.present = self.node_of != NO_NODE
        ends = zip(*pairs.values(), strict=True)
        tables = [[t for s in end for t in (s.flags, s.own_flags) if t is not None] for end in ends]
        self.calls = [
            np.max([table[: Phase.SPARE] for table in end], axis=0) for end in tables
        ]  # that anybody knows of
        self.summed = [max(int(table[list(_REDUCED)].max()) for table in end) for end in tables]  # of its combines
        self._busy = {end: self._arriving(end) for end in pairs}

    def waited(self, rank: int) -> Matrix:
        """Seconds that a rank waited for each."""
        before, after = self.pairs[rank]
        waited = np.zeros(self.ranks)
        if "wait_ns" in after.peers:
            waited = np.clip((after.peers["wait_ns"] - before.peers["wait_ns"]) / 1e9, 0.0, self.seconds)
        if after.alive:
            waits_now = self._behind(rank) | _absent_in_barrier(before, after)
            waited[waits_now & self.present & ~after.excluded] = self.seconds
        waited[rank] = 0.0  # its own flag: it is there or comes with the rows
        return waited

    def _behind(self, rank: int) -> Mask:
        """Whom `rank` was ahead of by a call of some phase through the whole interval, and neither went on."""
        first, last = (self._seen(rank, end) for end in (0, 1))
        own_first, own_last = (calls[:, rank : rank + 1] for calls in self.calls)
        stuck = (first >= 0) & (first == last) & (own_first == own_last) & (first < own_first)
        return np.asarray(stuck.any(axis=0))

    def _seen(self, rank: int, end: int) -> Row:
        """int64 [3, ranks]: the last call of each that has arrived where `rank` reads it; -1 where that is not seen."""
        seen = np.full((Phase.SPARE, self.ranks), -1, dtype=np.int64)
        local = self.node_of == self.node_of[rank]
        mine, at = self.pairs[rank][end], self.read_at(rank)
        # Rows of a combine go to whom they belong; those of one that was reduced in the node come from hosts alone.
        sums = np.where(self._sums_for(rank), mine.flags[Phase.REDUCED], self.summed[end])
        seen[Phase.COMBINE, ~local] = (mine.flags[Phase.COMBINE] + sums)[~local]
        if mine.own_flags is not None:
            seen[Phase.COMBINE, local] = mine.own_flags[Phase.COMBINE, local]
        for host in set(at.tolist()) & set(self.pairs):
            there, table = self.pairs[host][end], self.pairs[host][end].own_flags
            sources = (at == host) & ~local
            for phase in (Phase.DISPATCH, Phase.COUNTS):
                seen[phase, sources] = there.flags[phase, sources]
                if local[host] and table is not None:
                    seen[phase, host] = table[phase, host]
        return seen

    def _sums_for(self, owner: int) -> Mask:
        """bool [ranks]: who stands for `owner` in each cell of other nodes."""
        hosts = np.zeros(self.ranks, dtype=bool)
        hosts[self.topology.landing_ranks.of_source(owner)] = True
        hosts[self.node_of == self.node_of[owner]] = False
        return hosts

    def read_at(self, reader: int) -> Row:
        """int64 [ranks]: Topology.read_at of each source for one reader, in one go; of an absent source itself."""
        at = np.array(self.topology.landing_ranks.in_cell(self.topology.cell_of[reader]), dtype=np.int64)
        return np.where(self.present, at, np.arange(self.ranks))

    def under_way(self, rank: int) -> tuple[Matrix, Row]:
        """Seconds for which bytes of each were on their way to where a rank reads them; and to whom of the two that it
        reads at, -1 for ranks of its node."""
        at = self.read_at(rank)
        remote = self.present & (self.node_of != self.node_of[rank])
        there = np.zeros(self.ranks)
        for host in set(at[remote].tolist()):
            there[at == host] = self.busy(host)[at == host]
        here = self.busy(rank)
        ends = np.where(remote, np.where(there >= here, at, rank), -1)
        return np.where(remote, np.maximum(there, here), 0.0), ends

    def busy(self, end: int) -> Matrix:
        """Seconds for which bytes were on their way from each to `end`, where either can be seen."""
        busy = self._busy.setdefault(end, np.zeros(self.ranks))
        for source in self.pairs:
            busy[source] = min(max(busy[source], self._sending(source, end)), self.seconds)
        return busy

    def _arriving(self, end: int) -> Matrix:
        before, after = self.pairs[end]
        seconds = (after.peers["arriving_ns"] - before.peers["arriving_ns"]) / 1e9
        same = (before.due == after.due) & (before.flags == after.flags)
        half_here = same & (np.maximum(before.arrived, after.arrived) < after.due)  # announced, and not wholly come
        seconds[half_here[[Phase.DISPATCH, Phase.COMBINE, Phase.COUNTS, *_REDUCED]].any(axis=0)] = self.seconds
        return np.clip(seconds, 0.0, self.seconds)

    def _sending(self, source: int, end: int) -> float:
        before, after = self.pairs[source]
        moved = any(after.peers[name][end] != before.peers[name][end] for name in ("writes", "sending_ns"))
        if not moved and before.peers["in_flight"][end] > 0 and after.peers["in_flight"][end] > 0:
            return self.seconds
        return float(after.peers["sending_ns"][end] - before.peers["sending_ns"][end]) / 1e9


def _absent_in_barrier(before: Sample, after: Sample) -> Mask:
    """Of whom the same barrier of the proxies had not heard, at both ends."""
    if before.workers["barriers"] != after.workers["barriers"]:
        return np.zeros(before.due.shape[1], dtype=bool)
    absent = [(end.due[Phase.SPARE] == 1) & (end.arrived[Phase.SPARE] == 0) for end in (before, after)]
    return np.asarray(absent[0] & absent[1])


def _late(waits: Waits, topology: Topology) -> list[Suspect]:
    """Ranks that others waited for because they were late."""
    least = max(SHARE * waits.seconds, MOMENT)
    present = [s for s, node in enumerate(topology.node_of) if node != NO_NODE]
    others = {s: [i for i, r in enumerate(waits.ranks) if r != s] for s in present}
    late = waits.late
    caused = {s: float(late[rows, s].mean()) if rows else 0.0 for s, rows in others.items()}
    own = {s: float(waits.waited[waits.row(s)].max()) if s in waits.ranks else 0.0 for s in others}
    net = {s: caused[s] - own[s] for s in others}
    usual = float(np.median(list(net.values())))
    suspects: list[Suspect] = []
    for s in sorted(net, key=lambda s: -net[s]):
        chain = [float(waits.waited[waits.row(s), q.rank]) for q in suspects] if s in waits.ranks else []
        seconds = caused[s] - max(chain, default=0.0)
        if seconds >= least and max(net[s], net[s] - usual) >= least:
            suspects.append(Suspect(s, LATE, seconds, None, _lateness(waits, s, others[s])))
    return suspects


def _lateness(waits: Waits, rank: int, others: Sequence[int]) -> str:
    late = waits.late[others, rank]
    who = int((late >= max(SHARE * waits.seconds, MOMENT)).sum())
    itself = "it runs on another host: look there too"
    if rank in waits.ranks:
        itself = f"it waited {waits.waited[waits.row(rank)].max():.3f} s itself"
    return (
        f"{who} of {len(others)} ranks waited for it before it had begun, {late.mean():.3f} s of {waits.seconds:.2f} s "
        f"on average, {late.max():.3f} s at most; its bytes were under way for "
        f"{waits.link[others, rank].mean():.3f} s; {itself}"
    )


def _links(waits: Waits, ends: Sequence[Row]) -> list[Suspect]:
    """Each link that bytes were slow on; several of one rank as that rank's. `ends`: where each row's bytes came in."""
    readers: dict[Link, list[float]] = {}
    for i, of in enumerate(ends):
        for s in np.flatnonzero(of >= 0).tolist():
            readers.setdefault((s, int(of[s])), []).append(float(waits.link[i, s]))
    cost = {link: sum(seconds) / len(seconds) for link, seconds in readers.items()}
    usual = float(np.median(list(cost.values()))) if cost else 0.0
    slow = {link for link, seconds in cost.items() if seconds - usual >= max(SHARE * waits.seconds, MOMENT)}
    suspects = []
    for side, words in ((0, "to"), (1, "from")):
        of_rank: dict[int, list[Link]] = {}
        for link in cost:
            of_rank.setdefault(link[side], []).append(link)
        for rank, links in of_rank.items():
            bad = sorted(slow & set(links))
            if len(bad) > 1 and 2 * len(bad) > len(links):
                seconds = sum(cost[link] for link in bad) / len(bad)
                peers = ", ".join(str(link[1 - side]) for link in bad[:_MOST_NAMED]) + "..." * (len(bad) > _MOST_NAMED)
                text = f"bytes {words} {len(bad)} of {len(links)} ranks ({peers}) were under way for {seconds:.3f} s"
                suspects.append(Suspect(rank, SLOW_LINK, seconds, None, f"{text} of {waits.seconds:.2f} s on average"))
    whole = {s.rank for s in suspects}
    for s, h in sorted(slow):
        if not {s, h} & whole:
            text = f"bytes were under way for {cost[s, h]:.3f} s of {waits.seconds:.2f} s while "
            text += f"{len(readers[s, h])} rank(s) waited for them"
            suspects.append(Suspect(s, SLOW_LINK, cost[s, h], h, text))
    return suspects


def as_json(waits: Waits) -> dict[str, Any]:
    """The same in plain numbers. Rows of the matrices are `ranks`, columns all ranks."""
    return {
        "seconds": waits.seconds,
        "ranks": list(waits.ranks),
        "late_s": waits.late.round(6).tolist(),
        "slow_link_s": waits.link.round(6).tolist(),
        "suspects": [vars(s) for s in waits.suspects],
    }


def story(suspects: Sequence[Suspect]) -> str:
    """The first of them in one line; empty when nobody holds anybody up."""
    if not suspects:
        return ""
    s = suspects[0]
    if s.kind == LATE:
        return f"rank {s.rank} is late: {s.evidence}"
    where = f"the link from rank {s.rank} to rank {s.peer}" if s.peer is not None else f"the link of rank {s.rank}"
    return f"{where} is slow: {s.evidence}"
