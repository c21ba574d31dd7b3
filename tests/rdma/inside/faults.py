"""Step: what goes wrong on a real verbs stack, the error that the transport raises for it, and after how long."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.rdma.inside.context import Context, sh
from tests.rdma.inside.exchange import both_ways
from tests.rdma.inside.network import harmed
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import Answer, Side, connect, connected, native, pyverbs

_DEADLINE_S = 20.0
_FLAPS_S = (0.3, 1.0, 5.0, 20.0)
_FIELDS = {"timeout": 20, "retries": 7}  # what a job has: 34 s; soft-RoCE's 6 retries are 30 s
_REMOTE_ACCESS, _RETRY_EXCEEDED = 0x10000 | 10, 0x10000 | 12  # enum ibv_wc_status, proxy/transport/verbs/errors.h
_PORT_ERROR = 0x10100 | 10  # enum ibv_event_type: this side's own NIC has lost its link


def run(context: Context, report: Report) -> None:
    _stale_key(context, report)
    _stranger(context, report)
    _killed(context, report)
    _survivors(context, report)
    _link_down(context, report)
    _flaps(context, report)


def _event(report: Report, what: str, done: Answer, codes: tuple[int, ...]) -> None:
    """A row for the one event that a fault must raise."""
    events = done["events"]
    if len(events) != 1:
        report.add(what, f"{len(events)} events instead of one: {events}", False)
        return
    (event,) = events
    figure = f"{event['text'] or 'no words'} after {event['after_s']:.2f} s"
    good = event["code"] in codes and bool(event["text"]) and event["after_s"] < _DEADLINE_S
    report.add(what, figure, good)


def _stale_key(context: Context, report: Report) -> None:
    """The peer's memory is gone while its address is still believed."""
    with connected(native(context.programs, 0), pyverbs(1)) as (ours, theirs):
        assert ours.ask("write", 1, 1, 64, 5, 20)["completed"] == 1
        theirs.ask("forget-memory")
        done = ours.ask("write", 1, 1, 64, 6, _whole(_DEADLINE_S))
        _event(report, "stale key", done, (_REMOTE_ACCESS,))


def _stranger(context: Context, report: Report) -> None:
    """A write with a key that we never gave: refused by the NIC, and nothing of our memory changes."""
    with connected(native(context.programs, 0), pyverbs(1)) as (ours, theirs):
        theirs.ask("fill", 9)
        status = theirs.ask("stranger-write", 0)["status"]
        landed = ours.ask("check", 64, 9)["wrong"] == 0
        figure = f"the writer is told status {status}, and our memory is {'CHANGED' if landed else 'as it was'}"
        report.add("a key that we never gave", figure, status == 10 and not landed)


def _killed(context: Context, report: Report) -> None:
    """kill -9 of the peer: while we write, and while we only wait."""

    def kill(ours: Side, theirs: Side) -> None:
        theirs.kill()

    _after(context, report, "kill -9 of the peer, we write", kill, (_RETRY_EXCEEDED,))
    with connected(*(native(context.programs, rank) for rank in range(2))) as (ours, theirs):
        theirs.kill()
        done = ours.ask("event", _whole(_DEADLINE_S))
        _event(report, "kill -9 of the peer, we wait", done, (_RETRY_EXCEEDED,))


def _survivors(context: Context, report: Report) -> None:
    """After kill -9 of one of three the others go on writing; a new life takes in who comes in its place."""
    options = {"ranks": 3, "qps": 2}
    with connected(*(native(context.programs, rank, **options) for rank in range(3))) as (a, b, gone):
        gone.kill()
        for side in (a, b):
            side.tell("event", _whole(_DEADLINE_S))
        lost = [[event["peer"] for event in side.answer()["events"]] for side in (a, b)]
        writes, moved = both_ways(a, b, 6)
        figure = f"0 and 1 lost {lost}; they went on: {writes:,} writes, {moved:,} bytes, all right"
        report.add("kill -9 of one of three", figure, lost == [[2], [2]])
        for side in (a, b):
            side.ask("renew", 8)
        with native(context.programs, 2, session=8, **options) as fresh:
            connect((a, b, fresh))
            writes, moved = both_ways(a, fresh, 6, ranks=(0, 2))
            figure = f"connected with 0 and 1 in a new session: {writes:,} writes, {moved:,} bytes, all right"
            report.add("a rank that takes its place", figure)


def _link_down(context: Context, report: Report) -> None:
    def cut(ours: Side, theirs: Side) -> None:
        sh("ip link set v1 down")

    try:
        _after(context, report, "link down", cut, (_RETRY_EXCEEDED, _PORT_ERROR))
    finally:
        sh("ip link set v1 up && ip route replace 10.9.0.1/32 dev v1 src 10.9.0.2 table 101")


def _flaps(context: Context, report: Report) -> None:
    """Every packet is lost for a while: with the defaults nobody is told. What was the default lasts half a second."""
    for seconds in _FLAPS_S:
        with connected(*(native(context.programs, rank, **_FIELDS) for rank in range(2))) as (ours, theirs):
            begin = time.monotonic()
            with harmed("loss 100%"):
                ours.tell("write", 1, 64, 7168, 5, 60)
                time.sleep(seconds)
            done = ours.answer(70.0)
            came = theirs.ask("expect", 64, 20)["arrived"]
            after = time.monotonic() - begin
            figure = (
                f"{done['completed']} of 64 writes complete, {came} told, after {after:.1f} s; events {done['events']}"
            )
            report.add(
                f"link gone for {seconds:g} s", figure, (done["completed"], came, done["events"]) == (64, 64, [])
            )
    with connected(*(native(context.programs, rank, timeout=14, retries=6) for rank in range(2))) as (ours, _):
        with harmed("loss 100%"):
            done = ours.ask("write", 1, 4, 7168, 5, 20)
        _event(report, "the same with timeout 14, retries 6", done, (_RETRY_EXCEEDED,))


def _after(
    context: Context, report: Report, what: str, harm: Callable[[Side, Side], None], codes: tuple[int, ...]
) -> None:
    sides = (native(context.programs, rank) for rank in range(2))
    with connected(*sides) as (ours, theirs):
        assert ours.ask("write", 1, 4, 7168, 5, 20)["completed"] == 4
        harm(ours, theirs)
        done = ours.ask("write", 1, 4, 7168, 9, _whole(_DEADLINE_S))
        _event(report, what, done, codes)


def _whole(seconds: float) -> int:
    return int(seconds)
