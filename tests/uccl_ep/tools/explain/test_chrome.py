"""Traces: every event has its row, spans are as long as they were, ranks are on one clock, and JSON can hold it all."""

from __future__ import annotations

import json
from typing import Any

from tests.uccl_ep.recorder.records import SECOND, announcement, event, record, word, worker
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import ARRIVE, EXPECT, SEQUENCE, STREAM
from uccl_ep.recorder.record import Call
from uccl_ep.tools.explain.chrome import trace_of

ROWS_KEY = 1 << 14 | 9  # combine 9


def rows(trace: dict[str, Any], thread: str, rank: int = 0) -> list[dict[str, Any]]:
    """The rows of a named thread."""
    named = {
        row["tid"]: row["args"]["name"]
        for row in trace["traceEvents"]
        if row["name"] == "thread_name" and row["pid"] == rank
    }
    return [row for row in trace["traceEvents"] if "ts" in row and row["pid"] == rank and named[row["tid"]] == thread]


def traced() -> dict[str, Any]:
    token = 1 << 48 | 5
    message = 4096 << 32 | word(ARRIVE, 0, ROWS_KEY)
    events = worker(
        event(SECOND, EventKind.POPPED, 1, message, token),
        event(SECOND + 1_000, EventKind.POSTED, 1, message, token),
        event(SECOND + 9_000, EventKind.COMPLETED, 1, 4096 << 32, token),
        event(SECOND + 9_500, EventKind.COMPLETED, 1, 4096 << 32, token + 1),  # of a command before the first one here
        event(SECOND + 10_000, EventKind.ARRIVAL, 1, word(EXPECT, 1, 4)),
        event(SECOND + 10_500, EventKind.PUBLISHED, 1, 0, 4),
        event(SECOND + 10_600, EventKind.PUBLISHED, 1, STREAM | 1 << 16 | 3 << 10 | 7, 1031),
        event(SECOND + 11_000, EventKind.STALLED, 1, 1, 6),
        event(SECOND + 12_000, EventKind.BARRIER, key=1, value=3),
        event(SECOND + 13_000, EventKind.PARTED, 1),
        event(SECOND + 14_000, EventKind.FAULT, 1, 3 << 32 | 2),
        traced=True,
    )
    kernels = [(SECOND - 4_000, "low_latency_combine_send"), (SECOND - 1_000, "low_latency_combine_recv")]
    call = Call("low_latency_combine", 9, SECOND - 5_000, SECOND + 15_000, [[4, 8]], "", kernels)
    return trace_of([record(0, 2, workers=[events], calls=[call])])


def test_recorder_chrome_rows_and_lengths() -> None:
    trace = traced()
    (call,) = rows(trace, "calls")
    assert (call["name"], call["ts"], call["dur"], call["args"]["number"]) == ("low_latency_combine", 0.0, 20.0, 9)
    assert [(k["name"], k["ts"], k["dur"]) for k in rows(trace, "kernels")] == [
        ("low_latency_combine_send", 1.0, 3.0),
        ("low_latency_combine_recv", 4.0, 16.0),
    ]
    (ring,) = rows(trace, "proxy 0 ring")
    assert (ring["name"], ring["ts"], ring["dur"]) == ("rows of combine 9 to 1", 5.0, 1.0)
    assert ring["args"] == {"bytes": 4096, "ring": 1, "ticket": 5}
    begin, end = rows(trace, "proxy 0 network")
    assert (begin["ph"], end["ph"], begin["id"]) == ("b", "e", end["id"]) and end["ts"] - begin["ts"] == 8.0
    (arrival,) = rows(trace, "proxy 0 arrivals")
    assert arrival["name"] == "announcement of dispatch 4 from 1"
    assert [f["name"] for f in rows(trace, "proxy 0 flags")] == [
        "dispatch 4 from 1",
        "combine stream 3: 1031 chunks from 1",
    ]
    assert [r["name"] for r in rows(trace, "proxy 0 trouble")] == [
        "ring 1 waits for room to 1",
        "barrier 3 over",
        "parted with 1",
        "fault in dispatch (receive), rank 1",
    ]
    assert json.loads(json.dumps(trace)) == trace and trace["otherData"]["every_command"] is True


def test_recorder_chrome_records_of_faults_can_be_drawn() -> None:
    burst = worker(event(SECOND, EventKind.POPPED, 1, 64 << 32 | word(SEQUENCE, 0, 2 << 10 | 1), 7))
    trace = trace_of(
        [record(0, 2, workers=[burst, worker()], calls=[Call("dispatch", 1, SECOND)], written_ns=3 * SECOND)]
    )
    assert rows(trace, "proxy 0 ring")[0]["name"] == "dispatch stream 2, chunk 1 to 1"
    assert rows(trace, "calls")[0]["dur"] == 2e6  # it had not returned when the record was written
    assert trace["otherData"]["every_command"] is False
    assert trace_of([record(0)])["traceEvents"]  # nothing at all happened


def test_recorder_chrome_ranks_of_other_hosts_are_on_the_same_clock() -> None:
    lead = 500 * SECOND
    near = worker(
        event(SECOND, EventKind.POPPED, 1, announcement(0, 0, 1)),
        event(SECOND + 9_000, EventKind.ARRIVAL, 1, announcement(1, 0, 1)),
    )
    far = worker(
        event(SECOND + lead + 3_000, EventKind.ARRIVAL, 0, announcement(0, 0, 1)),
        event(SECOND + lead + 6_000, EventKind.POPPED, 0, announcement(1, 0, 1)),
    )
    trace = trace_of([record(0, 2, workers=[near]), record(1, 2, host="b", host_id="2", workers=[far])])
    assert [row["ts"] for row in rows(trace, "proxy 0 arrivals", 1) if row["ph"] == "X"] == [3.0]
    assert "within 3000 ns" in trace["otherData"]["clocks"]["b"]


def test_recorder_chrome_arrows_lead_from_commands_to_arrivals() -> None:
    """Two equal messages in a row, one whose arrival is not here, and an arrival whose command is not."""
    rows_of, last = word(ARRIVE, 0, ROWS_KEY), word(ARRIVE, 0, ROWS_KEY + 1)
    sender = worker(
        *(event(SECOND + at, EventKind.POPPED, 1, what, at) for at, what in ((0, rows_of), (50, rows_of), (90, last))),
        *(
            event(SECOND + at, EventKind.POSTED, 1, what, at - 5)
            for at, what in ((5, rows_of), (55, rows_of), (95, last))
        ),
        traced=True,
    )
    receiver = worker(
        event(SECOND + 40, EventKind.ARRIVAL, 0, rows_of),
        event(SECOND + 80, EventKind.ARRIVAL, 0, rows_of),
        event(SECOND + 85, EventKind.ARRIVAL, 0, rows_of),
        event(SECOND + 88, EventKind.ARRIVAL, 0, word(EXPECT, 0, 4)),
        traced=True,
    )
    trace = trace_of([record(0, 2, workers=[sender]), record(1, 2, workers=[receiver])])
    flows = [row for row in trace["traceEvents"] if row["ph"] in "sf"]
    assert [(row["ph"], row["pid"], row["ts"]) for row in flows] == [
        ("s", 0, 0.0),
        ("f", 1, 0.04),
        ("s", 0, 0.05),
        ("f", 1, 0.08),
    ]
    assert [row["id"] for row in flows] == [0, 0, 2, 2] and flows[1]["bp"] == "e"
    assert all("message" not in row for row in trace["traceEvents"] if row["ph"] == "X")
