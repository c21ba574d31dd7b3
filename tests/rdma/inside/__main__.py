"""Runs the steps in the guest: `python -m tests.rdma.inside SHARE PROGRAMS STEP...`; each leaves STEP.json in SHARE."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.rdma.inside.report import Report
from tests.rdma.inside.steps import STEPS, Context


def out_of_time(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the step's limit is over")


def run_step(name: str, context: Context) -> Report:
    """Runs one step within its limit; whatever it raises is its failure."""
    report, step, begin = Report(name), STEPS[name], time.monotonic()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(step.limit_s)
    try:
        step.run(context, report)
    except Exception as error:
        traceback.print_exc()
        report.failure = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    report.seconds = time.monotonic() - begin
    report.write(context.share)
    return report


def main() -> int:
    """1 when a step has failed."""
    context = Context(Path(sys.argv[1]), Path(sys.argv[2]))
    good = True
    for name in sys.argv[3:]:
        print(f"rdma: {name} ...", flush=True)
        report = run_step(name, context)
        for row in report.rows:
            print(f"rdma:   {'ok    ' if row.good else 'FAILED'} {row.what}: {row.figure}", flush=True)
        for reason in report.skipped:
            print(f"rdma:   SKIPPED {reason}", flush=True)
        print(f"rdma: {name} took {report.seconds:.1f} s {report.failure}", flush=True)
        good = good and report.good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
