"""The one table of `make test-rdma`: what ran, its figures, and what failed or was left out."""

from __future__ import annotations

from tests.rdma.guest.machine import Outcome
from tests.rdma.inside.report import Report

_LEAST_WIDTH = 46


def render(reports: list[Report], outcome: Outcome, ran_on: str, seconds: float) -> str:
    """The table as text. Failures and skips are repeated at its end, where they are seen."""
    lines = ["", "real verbs in a guest (soft-RoCE)", ""]
    width = max([_LEAST_WIDTH, *(len(row.what) for report in reports for row in report.rows)])
    for report in reports:
        lines.append(f"{report.step} ({report.seconds:.1f} s)")
        lines += [f"  {'ok    ' if r.good else 'FAILED'} {r.what:<{width}}  {r.figure}" for r in report.rows]
        lines += [f"  SKIPPED {reason}" for reason in report.skipped]
        if report.failure:
            lines.append(f"  FAILED {report.failure}")
    passed = sum(report.passed for report in reports)
    failed = sum(not row.good for report in reports for row in report.rows)
    failed += sum(bool(report.failure) for report in reports)
    skipped = sum(len(report.skipped) for report in reports)
    lines.append("")
    lines.append(f"checks passed {passed:,}, failed {failed:,}, SKIPPED {skipped:,}")
    lines.append(f"rows compared with the reference {sum(report.rows_compared for report in reports):,}")
    spent = f"{outcome.seconds:.0f} s, {outcome.cpu_seconds:.0f} s of this host's processors"
    lines.append(f"guest {spent}, in {outcome.tries} start(s), ran on: {ran_on}; {seconds:.0f} s in all")
    return "\n".join(lines)
