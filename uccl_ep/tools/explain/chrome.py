"""The records of all ranks as one trace in the Chrome format, which Perfetto (ui.perfetto.dev) and chrome://tracing
open. A process a rank; rows: calls, kernels, and for each proxy thread its ring, network, arrivals and flags. Arrows
lead from each command in a ring to its arrival at the other rank. All times are on one clock, in microseconds from the
first event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from uccl_ep._native import EventKind
from uccl_ep.membership.fault_errors import phase_name
from uccl_ep.recorder.events import NOBODY, SEQUENCE, STREAM, words_of, words_of_key
from uccl_ep.recorder.record import Record, WorkerEvents
from uccl_ep.tools.explain.clock import Clocks
from uccl_ep.tools.explain.story import phase_of_flag

_CALLS, _KERNELS, _FIRST_OF_WORKER = 0, 1, 2
_ROWS = ("ring", "network", "arrivals", "flags", "trouble")  # of a worker
_RING, _NETWORK, _ARRIVALS, _FLAGS, _TROUBLE = range(len(_ROWS))
_MARK_NS = 200  # what has no length is drawn this long
_MESSAGE = "message"  # of a row until arrows are drawn: way, peer, immediate
Row = dict[str, Any]


def trace_of(records: Sequence[Record]) -> dict[str, Any]:
    """The trace as the JSON object's parts: traceEvents, displayTimeUnit, otherData."""
    clocks = Clocks(records)
    rows = [row for record in records for row in _rows(record, clocks)]
    rows += _arrows(rows)
    first = min((row["ts"] for row in rows if "ts" in row), default=0)
    for row in rows:
        if "ts" in row:
            row["ts"] = (row["ts"] - first) / 1e3
            if "dur" in row:
                row["dur"] /= 1e3
    hosts = {clock.host: f"{clock.source}, within {clock.error_ns} ns" for clock in clocks.hosts.values()}
    traced = all(worker.traced for record in records for worker in record.workers)
    about = {"job": records[0].job, "clocks": hosts, "every_command": traced}
    return {"traceEvents": rows, "displayTimeUnit": "ns", "otherData": about}


def _arrows(rows: Sequence[Row]) -> list[Row]:
    """A flow for each command whose arrival is here too. Equal messages of two ranks are matched in order, an arrival
    with the first command that is not later; a clock's error may hide an arrow, and draws no wrong one backwards."""
    sent: dict[tuple[int, int, int], deque[Row]] = {}
    arrived: list[tuple[tuple[int, int, int], Row]] = []
    for row in rows:
        way, peer, word = row.pop(_MESSAGE, ("", 0, 0))
        if way == "sent":
            sent.setdefault((row["pid"], peer, word), deque()).append(row)
        elif way == "arrived":
            arrived.append(((peer, row["pid"], word), row))
    flows: list[Row] = []
    for message, end in sorted(arrived, key=lambda pair: pair[1]["ts"]):
        waiting = sent.get(message)
        if waiting and waiting[0]["ts"] <= end["ts"]:
            begin, flow = waiting.popleft(), {"cat": "message", "name": "message", "id": len(flows)}
            flows.append({**flow, "ph": "s", "pid": begin["pid"], "tid": begin["tid"], "ts": begin["ts"]})
            flows.append({**flow, "ph": "f", "bp": "e", "pid": end["pid"], "tid": end["tid"], "ts": end["ts"]})
    return flows


def _rows(record: Record, clocks: Clocks) -> Iterator[Row]:
    yield from _names(record)
    for row in (*_calls(record), *(row for i, w in enumerate(record.workers) for row in _worker(record, i, w))):
        yield {**row, "pid": record.rank, "ts": clocks.common(record, row["ts"])}


def _names(record: Record) -> Iterator[Row]:
    yield {"ph": "M", "name": "process_name", "pid": record.rank, "args": {"name": f"rank {record.rank} {record.host}"}}
    threads = ["calls", "kernels"]
    threads += [f"proxy {i} {row}" for i in range(len(record.workers)) for row in _ROWS]
    for tid, name in enumerate(threads):
        yield {"ph": "M", "name": "thread_name", "pid": record.rank, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": record.rank, "tid": tid, "args": {"sort_index": tid}}


def _slice(tid: int, name: str, begin_ns: int, end_ns: int, **args: Any) -> Row:
    return {"ph": "X", "tid": tid, "name": name, "ts": begin_ns, "dur": max(0, end_ns - begin_ns), "args": args}


def _calls(record: Record) -> Iterator[Row]:
    """A kernel's row begins when it is queued, and ends with the next one's or with its call."""
    for call in record.calls:
        end = call.end_ns or record.written_ns
        about = {"number": call.number, "shapes": call.shapes, "error": call.error}
        yield _slice(_CALLS, call.name, call.begin_ns, end, **about)
        ends = [ns for ns, _ in call.kernels[1:]] + [end]
        for (begin, kernel), until in zip(call.kernels, ends, strict=False):
            yield _slice(_KERNELS, kernel, begin, until, number=call.number)


def _worker(record: Record, index: int, worker: WorkerEvents) -> Iterator[Row]:
    base = _FIRST_OF_WORKER + index * len(_ROWS)
    popped: dict[int, tuple[int, int]] = {}  # by token: when, immediate
    posted: dict[int, tuple[int, str]] = {}
    for ns, kind, peer, key, value in worker.events.tolist():
        if kind == EventKind.POPPED:
            popped[value] = (ns, key & 0xFFFFFFFF)
            if not worker.traced:
                row = _slice(base + _RING, f"{words_of(key & 0xFFFFFFFF)} to {peer}", ns, ns + _MARK_NS)
                yield {**row, _MESSAGE: ("sent", peer, key & 0xFFFFFFFF)}
        elif kind == EventKind.POSTED:
            word = key & 0xFFFFFFFF
            name = f"{words_of(word)} to {peer}"
            begin = popped.pop(value, (ns, word))[0]
            about = {"bytes": key >> 32, "ring": value >> 48, "ticket": value & (1 << 48) - 1}
            yield {**_slice(base + _RING, name, begin, ns, **about), _MESSAGE: ("sent", peer, word)}
            posted[value] = (ns, name)
        elif kind == EventKind.COMPLETED and value in posted:
            begin, name = posted.pop(value)
            yield from _flight(base + _NETWORK, name, (begin, ns), f"{record.rank}.{index}.{value}")
        elif kind == EventKind.ARRIVAL:
            row = _slice(base + _ARRIVALS, f"{words_of(key & 0xFFFFFFFF)} from {peer}", ns, ns + _MARK_NS)
            yield {**row, _MESSAGE: ("arrived", peer, key & 0xFFFFFFFF)}
        else:
            yield from _rare(base, ns, kind, (peer, key, value))


def _flight(tid: int, name: str, span: tuple[int, int], identity: str) -> Iterator[Row]:
    """Writes are under way side by side, which slices of one row cannot be."""
    for phase, ns in zip("be", span, strict=True):
        yield {"ph": phase, "cat": "network", "id": identity, "tid": tid, "name": name, "ts": ns}


def _rare(base: int, ns: int, kind: int, what: tuple[int, int, int]) -> Iterator[Row]:
    peer, key, value = what
    if kind == EventKind.PUBLISHED:
        stream = words_of_key(SEQUENCE, key & 0x1FFFF).partition(",")[0]
        name = f"{stream}: {value} chunks" if key & STREAM else f"{phase_of_flag(key)} {value}"
        yield _slice(base + _FLAGS, f"{name} from {peer}", ns, ns + _MARK_NS)
        return
    who = "" if peer == NOBODY else f" {peer}"
    if kind == EventKind.STALLED:
        name = f"ring {key} waits for room to{who}"
    elif kind == EventKind.FAULT:
        name = f"fault in {phase_name(key >> 32)}, rank{who}"
    elif kind == EventKind.PARTED:
        name = f"parted with{who}"
    elif kind == EventKind.BARRIER:
        name = f"barrier {value} {'over' if key else 'entered'}"
    else:
        return
    yield {"ph": "i", "s": "t", "tid": base + _TROUBLE, "name": name, "ts": ns}
