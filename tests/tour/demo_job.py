"""`uccl-ep demo` for ranks that torchrun starts on several hosts: options before them, the comparison after them.

demo_job.py prepare FOLDER, then torchrun ... -m uccl_ep.tools.demo.worker FOLDER on each host, then
demo_job.py compare FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from uccl_ep.tools.demo.job import OPTIONS_FILE, QUIET_FILE, result_file
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.report import Report, show
from uccl_ep.tools.demo.result import RunResult
from uccl_ep.tools.demo.run import run_one_process

# Few steps: the tour shows that two hosts learn what one process learns, not how well.
OPTIONS = DemoOptions(steps=4, ranks=4, ranks_per_node=2, transport="auto")


def main(what: str, job: Path) -> int:
    if what == "prepare":
        OPTIONS.save(job / OPTIONS_FILE)
        (job / QUIET_FILE).touch()
        return 0
    ranks = [RunResult.load(result_file(job, rank)) for rank in range(OPTIONS.ranks)]
    report = Report(OPTIONS, ranks, run_one_process(OPTIONS, None))
    show(report, Console())
    return 1 if report.problems() else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2])))
