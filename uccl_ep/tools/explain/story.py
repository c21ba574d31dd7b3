"""What happened, from the records of one or several ranks: who was lost, who waited for whom since when, and what each
rank was doing, on one clock. Facts first (`Story`), words from them (`tell`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from uccl_ep._native import EventKind, FaultKind, WaitPhase
from uccl_ep.membership.fault_errors import PROGRESS, phase_name
from uccl_ep.recorder.events import (
    CONNECTION,
    ENDED,
    EPOCH_BITS,
    EXPECT,
    GOODBYE,
    NOBODY,
    immediate,
    phase_words,
    words_of_key,
)
from uccl_ep.recorder.journal import KILLED
from uccl_ep.recorder.record import Call, Record
from uccl_ep.tools.explain.clock import Clocks

NO_CALL = "no call was made"
# The Phase (proxy/wire/immediate.h) whose rows a WaitPhase (proxy/wire/control.h) is for.
_ROWS_OF = {wait: phase for wait, phase in PROGRESS.items() if wait != WaitPhase.BARRIER}


@dataclass
class Waiting:
    """One rank in vain for another.

    Attributes:
        rank, peer: who for whom. phase: in what. since_s: the beginning.
        expected, seen: arrivals due and here; None where they were not counted.
        announced: the last call of that phase that the peer has announced to the rank, and when, by the peer's own
            record; empty: it has announced none. None: there is no record of the peer.
    """

    rank: int
    peer: int
    phase: str
    since_s: float
    expected: int | None = None
    seen: int | None = None
    announced: str | None = None


@dataclass
class Loss:
    """A rank that is gone.

    Attributes:
        at_s, at: when it was first noticed: relative, and seconds since 1970. by: who noticed, first one first.
        last_heard_s: the last arrival from it anywhere. goodbye: it had left in good order, too early for the others.
    """

    rank: int
    host: str
    at_s: float
    at: float
    by: list[int]
    last_heard_s: float | None = None
    goodbye: bool = False


@dataclass
class RankStory:
    """One rank's record.

    Attributes:
        doing: the call it was in, or the last one. since_s: that call's beginning. open: it had not returned.
        written_s, reason, error: of the record.
    """

    rank: int
    host: str
    doing: str
    since_s: float
    open: bool
    written_s: float
    reason: str
    error: str
    masked: list[int] = field(default_factory=list)


@dataclass
class Story:
    """Everything, relative to `zero` (seconds since 1970): the first loss or fault, or the first record.

    Attributes:
        root_cause: the rank that the others' trouble leads to; None: none is known. missing: ranks without a record.
        clocks: how the hosts' clocks were compared.
    """

    job: str
    num_ranks: int
    zero: float
    root_cause: int | None
    lost: list[Loss]
    waits: list[Waiting]
    ranks: list[RankStory]
    missing: list[int]
    absent: list[int]
    clocks: list[dict[str, Any]]

    def plain(self) -> dict[str, Any]:
        """For JSON; with the sentences."""
        return {**asdict(self), "story": tell(self)}


def read_story(records: Sequence[Record]) -> Story:
    """The story of one session's records, ascending by rank, at least one."""
    return _Reading(records).story()


class _Reading:
    def __init__(self, records: Sequence[Record]) -> None:
        self.records = {record.rank: record for record in records}
        self.first = records[0]
        self.clocks = Clocks(records)
        self.noticed = sorted((ns, by, rank) for by, r in self.records.items() for rank, ns in self._losses(r).items())
        faults = [ns for r in self.records.values() if (ns := self._fault_ns(r)) is not None]
        written = [self.clocks.common(r, r.written_ns) for r in self.records.values()]
        self.zero = min([ns for ns, *_ in self.noticed] + faults or written)

    def story(self) -> Story:
        absent = self.first.absent
        lost, waits = self._lost(), self._waits()
        missing = [r for r in range(self.first.num_ranks) if r not in self.records and r not in absent]
        return Story(
            job=self.first.job,
            num_ranks=self.first.num_ranks,
            zero=self.clocks.wall(self.zero),
            root_cause=self._root_cause(lost, waits),
            lost=lost,
            waits=waits,
            ranks=[self._rank(record) for record in self.records.values()],
            missing=missing,
            absent=list(absent),
            clocks=[asdict(clock) for clock in self.clocks.hosts.values()],
        )

    def seconds(self, common_ns: int) -> float:
        return round((common_ns - self.zero) / 1e9, 6)

    # ---- losses ------------------------------------------------------------------------------------------------

    def _losses(self, record: Record) -> dict[int, int]:
        """Ranks that a record says are lost, and when that was noticed. Who said goodbye is not lost."""
        parted = {
            peer: ns
            for ns, kind, peer, key, _ in reversed(_events(record))
            if kind == EventKind.FAULT or (kind == EventKind.PARTED and key in (ENDED, CONNECTION))
        }
        lost = {peer for peer in record.masked if peer in parted}  # with enable_shrink a loss is no fault
        if record.error.startswith("PeerLost"):
            lost.add(record.blamed)  # whoever else has left has left because of that one
        elif record.fault.get("kind") == FaultKind.PEER_LOST:
            lost.add(record.fault["peer"])
        elif record.reason == KILLED and parted:  # it was ended before it could say so
            lost.add(min(parted, key=lambda peer: parted[peer]))
        others = [peer for peer in lost if 0 <= peer < record.num_ranks and peer != record.rank]
        return {peer: self.clocks.common(record, parted.get(peer, record.written_ns)) for peer in others}

    def _lost(self) -> list[Loss]:
        found: dict[int, Loss] = {}
        for ns, by, rank in self.noticed:
            if rank not in found:
                found[rank] = Loss(rank, self.first.hostnames[rank], self.seconds(ns), self.clocks.wall(ns), [])
                found[rank].last_heard_s = self._last_heard(rank)
                found[rank].goodbye = self._said_goodbye(rank)
            found[rank].by.append(by)
        return [found[rank] for rank in sorted(found)]

    def _last_heard(self, rank: int) -> float | None:
        heard = [
            self.clocks.common(r, r.peers[rank]["last_arrival_ns"])
            for r in self.records.values()
            if r.peers[rank].get("last_arrival_ns")
        ]
        return self.seconds(max(heard)) if heard else None

    def _said_goodbye(self, rank: int) -> bool:
        partings = [
            key
            for r in self.records.values()
            for _, kind, peer, key, _ in _events(r)
            if kind == EventKind.PARTED and peer == rank
        ]
        return GOODBYE in partings

    # ---- waits -------------------------------------------------------------------------------------------------

    def _fault_ns(self, record: Record) -> int | None:
        """When a rank's fault was there, on the common clock."""
        if not record.fault:
            return None
        seen = [ns for ns, kind, *_ in _events(record) if kind == EventKind.FAULT]
        return self.clocks.common(record, min(seen, default=record.written_ns))  # written as the error is raised

    def _waits(self) -> list[Waiting]:
        waits = []
        for record in self.records.values():
            fault, at_ns = record.fault, self._fault_ns(record)
            if at_ns is None or fault["kind"] != FaultKind.TIMEOUT:
                continue
            peer = record.blamed if record.blamed >= 0 else fault["peer"]
            since = self.seconds(at_ns - fault["waited_ns"])
            wait = Waiting(record.rank, peer, phase_name(fault["phase"]), since)
            phase = _ROWS_OF.get(fault["phase"])
            if phase is not None and phase < len(record.progress) and 0 <= peer < record.num_ranks:
                if record.node_of[peer] != record.node_of[record.rank]:
                    due, wait.seen = record.progress[phase][peer]
                    wait.expected = due or None
                    wait.announced = self._announced(peer, record.rank, phase)
            waits.append(wait)
        return sorted(waits, key=lambda wait: wait.since_s)

    def _announced(self, sender: int, receiver: int, phase: int) -> str | None:
        """The last announcement of a phase that a rank's proxy took for another."""
        record = self.records.get(sender)
        if record is None:
            return None
        last = ""
        for ns, kind, peer, key, _ in _events(record):
            if kind == EventKind.POPPED and peer == receiver:
                of, _, about = immediate(key & 0xFFFFFFFF)
                if of == EXPECT and about >> EPOCH_BITS & 7 == phase:
                    last = f"{words_of_key(of, about)} {_when(self.seconds(self.clocks.common(record, ns)))}"
        return last

    def _root_cause(self, lost: list[Loss], waits: list[Waiting]) -> int | None:
        """Who was lost first; else whom most ranks blame that is not itself waiting for somebody else."""
        if lost:
            return min(lost, key=lambda loss: loss.at_s).rank
        waiting = {wait.rank for wait in waits}
        blamed = Counter(wait.peer for wait in waits if wait.peer != NOBODY)
        free = [rank for rank in blamed if rank not in waiting]
        return max(free or blamed, key=lambda rank: (blamed[rank], -rank), default=None)

    # ---- ranks -------------------------------------------------------------------------------------------------

    def _rank(self, record: Record) -> RankStory:
        call = record.calls[-1] if record.calls else None
        doing = NO_CALL if call is None else _call_in_words(call)
        since = record.written_ns if call is None else call.begin_ns
        return RankStory(
            rank=record.rank,
            host=record.host,
            doing=doing,
            since_s=self.seconds(self.clocks.common(record, since)),
            open=call is not None and call.end_ns == 0,
            written_s=self.seconds(self.clocks.common(record, record.written_ns)),
            reason=record.reason,
            error=record.error,
            masked=record.masked,
        )


def _events(record: Record) -> list[tuple[int, int, int, int, int]]:
    """(ns, kind, peer, key, value) of all workers, in order of time; * commands of a trace are left out."""
    merged = [w.events[~np.isin(w.events["kind"], (EventKind.POSTED, EventKind.COMPLETED))] for w in record.workers]
    rows = [row for events in merged for row in events.tolist()]
    return sorted(rows, key=lambda row: row[0])


def _call_in_words(call: Call) -> str:
    shape = " of " + " and ".join("x".join(map(str, s)) for s in call.shapes[:1]) if call.shapes else ""
    return f"{call.name} number {call.number}{shape}"


def _when(seconds: float) -> str:
    return f"at T{seconds:+.3f} s"


# ---- words -------------------------------------------------------------------------------------------------------


def tell(story: Story) -> list[str]:
    """The story, a sentence each, the most important first."""
    try:
        zero = datetime.fromtimestamp(story.zero, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError):  # a damaged event's
        zero = f"{story.zero:.3f} s after the beginning of 1970"
    told = [_first(story)]
    told += [_loss_in_words(loss) for loss in story.lost]
    told += [_wait_in_words(wait) for wait in story.waits]
    told += [_rank_in_words(rank, story) for rank in story.ranks]
    if story.missing:
        told.append(f"No record: {named_ranks(story.missing)}. {_why_missing(story)}")
    if story.absent:
        told.append(f"{named_ranks(story.absent).capitalize()} took no part: recover() had gone on without.")
    guessed = [c for c in story.clocks if c["error_ns"] < 0]
    told += [f"Clock of host {c['host']}: by {c['source']}; times between hosts are only as good." for c in guessed]
    told.append(f"T is {zero} UTC.")
    return told


def _first(story: Story) -> str:
    if story.lost:
        return (
            f"Rank {story.root_cause} was lost first." if len(story.lost) > 1 else f"Rank {story.root_cause} was lost."
        )
    if story.root_cause is not None:
        waiting = sorted({wait.rank for wait in story.waits if wait.peer == story.root_cause})
        return f"Rank {story.root_cause} held the others up: {named_ranks(waiting)} waited for it in vain."
    if any(rank.error for rank in story.ranks):
        return "No rank can be blamed from these records."
    return "No rank has failed in these records."


def _loss_in_words(loss: Loss) -> str:
    heard = "" if loss.last_heard_s is None else f"; its last message came {_when(loss.last_heard_s)}"
    how = "had said goodbye; it was missed" if loss.goodbye else "was gone"
    by = f"by {named_ranks(loss.by)}" if loss.goodbye else f"noticed by {named_ranks(loss.by)}"
    return f"Rank {loss.rank} (host {loss.host}) {how} {_when(loss.at_s)}, {by}{heard}."


def whom(wait: Waiting) -> str:
    """Whom a rank waited for, in words."""
    return "somebody" if wait.peer == NOBODY else "its own half" if wait.peer == wait.rank else f"rank {wait.peer}"


def _wait_in_words(wait: Waiting) -> str:
    text = f"Rank {wait.rank} waited for {whom(wait)} in {wait.phase} from T{wait.since_s:+.3f} s on"
    if wait.seen is not None:
        due = "an unannounced number of" if wait.expected is None else f"{wait.expected}"
        text += f": {wait.seen} of {due} arrivals were there"
    if wait.announced is not None:
        said = f"was of {wait.announced}" if wait.announced else "was none that its record still has"
        text += f"; rank {wait.peer}'s last announcement to it {said}"
    return text + "."


def _rank_in_words(rank: RankStory, story: Story) -> str:
    if rank.doing == NO_CALL:
        text = f"Rank {rank.rank} (host {rank.host}) had made no call"
    elif rank.open:
        text = f"Rank {rank.rank} (host {rank.host}) was in {rank.doing}, begun {_when(rank.since_s)}"
    else:
        text = f"Rank {rank.rank} (host {rank.host}) was in no call; the last one, {rank.doing}, began "
        text += _when(rank.since_s)
    if rank.error:
        text += f", and raised {rank.error.partition(':')[0]} {_when(rank.written_s)}"
    elif rank.reason == KILLED:
        text += ", when it ended without raising anything"
    if rank.masked:
        text += f"; it leaves out {named_ranks(rank.masked)}"
    return text + "."


def _why_missing(story: Story) -> str:
    gone = {loss.rank for loss in story.lost}
    if set(story.missing) <= gone:
        return (
            "The journal of a rank that is killed lies in /dev/shm of its host: run uccl-ep explain there, or copy it."
        )
    who = "It" if len(story.missing) == 1 else "They"
    return f"{who} may have been killed, or have met no error; Buffer.dump_flight_record() writes one at any time."


def named_ranks(ranks: Sequence[int]) -> str:
    """ "rank 2", or "ranks 0, 1 and 5"."""
    names = list(map(str, ranks))
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}" if names else "no rank"


def phase_of_flag(key: int) -> str:
    """The name of a flag's phase in a PUBLISHED event."""
    return phase_words(key & 7)
