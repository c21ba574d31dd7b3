"""The parts of the steps that need no guest: limits, sides that fail, what a fault must raise, perftest's output."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rdma.inside import __main__ as driver
from tests.rdma.inside import faults, rate
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import Side, SideFailed, connected
from tests.rdma.inside.steps import STEPS, Context, Step

ECHO = """
import sys
for line in sys.stdin:
    if line.startswith("address"): print('{"address": "00"}', flush=True)
    elif line.startswith("refuse"): print('{"error": "no such thing"}', flush=True)
    elif line.startswith("leave"): sys.exit(3)
    elif not line.startswith("wait"): print('{"heard": %d}' % len(line.split()), flush=True)
"""


def side() -> Side:
    return Side("rank 0", [sys.executable, "-c", ECHO])


def test_rdma_steps_sides_answer_refuse_and_leave() -> None:
    with connected(side(), side()) as (a, b):
        assert a.ask("write", 1, 2, 3)["heard"] == 4
        with pytest.raises(SideFailed, match="no such thing"):
            b.ask("refuse")
        with pytest.raises(SideFailed, match="not answered within"):
            b.ask("wait", limit_s=0.2)
        with pytest.raises(SideFailed, match="ended with 3"):
            a.ask("leave")


def test_rdma_steps_a_killed_side_is_gone() -> None:
    with side() as a:
        before = time.monotonic()
        assert before <= a.kill() <= time.monotonic()
        with pytest.raises(SideFailed):
            a.ask("anything")


def test_rdma_steps_what_a_step_raises_is_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(context: Context, report: Report) -> None:
        report.add("first half", "done")
        while True:
            time.sleep(0.01)

    def wrong(context: Context, report: Report) -> None:
        raise RuntimeError("a row differs")

    monkeypatch.setitem(STEPS, "endless", Step(endless, 1))
    monkeypatch.setitem(STEPS, "wrong", Step(wrong, 5))
    context = Context(tmp_path, tmp_path)
    late, bad = (driver.run_step(name, context) for name in ("endless", "wrong"))
    assert "TimeoutError" in late.failure and late.passed == 1 and not late.good
    assert bad.failure == "RuntimeError: a row differs" and (tmp_path / "wrong.json").exists()


def event(code: int = faults._REMOTE_ACCESS, text: str = "remote access error", after_s: float = 0.1) -> dict[str, Any]:
    return {"peer": 1, "fault": 2, "code": code, "text": text, "after_s": after_s}


@pytest.mark.parametrize(
    ("events", "good"),
    [
        ([event()], True),
        ([], False),
        ([event(), event()], False),
        ([event(code=5)], False),
        ([event(text="")], False),
        ([event(after_s=500.0)], False),
    ],
)
def test_rdma_steps_a_fault_raises_one_right_event_in_time(events: list[Any], good: bool) -> None:
    report = Report("faults")
    faults._event(report, "stale key", {"events": events}, (faults._REMOTE_ACCESS,))
    assert report.good == good and len(report.rows) == 1


def test_rdma_steps_reads_perftest() -> None:
    output = """
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 7168       6000             12.59              10.37              0.001517
---------------------------------------------------------------------------------------
"""
    found = rate._FIGURES.search(output)
    assert found is not None and float(found[2]) == 0.001517


def test_rdma_steps_the_rate_must_be_near_perftests() -> None:
    figure, good = rate.compared(7168, [4000.0, 9100.0, 9100.0], [10000.0], [13000.0])
    assert good and "9.1 k writes/s, 65.2 MB/s" in figure and "ratio 0.91, 0.70" in figure
    assert not rate.compared(7168, [8900.0], [10000.0], [8000.0])[1]
    assert rate.compared(8, [1.0], [10000.0], [8000.0])[1]  # shown, not demanded


def test_rdma_steps_all_fit_into_the_guests_time() -> None:
    """The steps are run one after the other; a limit is what a step takes when all goes wrong."""
    listed = subprocess.run([sys.executable, "-m", "tests.rdma", "--list"], capture_output=True, text=True).stdout
    assert listed.split() == list(STEPS) and all(10 <= step.limit_s <= 450 for step in STEPS.values())
