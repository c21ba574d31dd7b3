"""Step: the whole product, `Buffer` with torch, over verbs between two nodes; the proxy as threads and as processes."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.rdma.inside.context import Context
from tests.rdma.inside.report import Report

_LIMIT_S = 400


def run(context: Context, report: Report) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rdma.inside.torch_ranks", "2"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            report.rows_compared += result["rows"]
            figure = f"{result['rows']:,} rows right, transport {result['family']}, {result['seconds']:.1f} s"
            report.add(result["what"], figure, result["family"] == "verbs" and result["rows"] > 0)
    if done.returncode != 0 or report.passed < 2:
        raise RuntimeError(f"the ranks ended with {done.returncode} after {report.passed} results")
