"""What the launcher of the expert-parallel run and its ranks agree on: files of the job, and a key of its store."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

OPTIONS_FILE = "options.json"
QUIET_FILE = "quiet"
"""Present when nothing may be shown on standard output."""
READY_TO_DIE = "ready to die"
"""Key of the launcher's store: the rank of --kill is in the middle of its step."""
GROUP_TIMEOUT = timedelta(seconds=120)


def result_file(job: Path, rank: int) -> Path:
    return job / f"result-{rank}.json"


def error_file(job: Path, rank: int) -> Path:
    return job / f"error-{rank}.json"


def log_file(job: Path, rank: int) -> Path:
    return job / f"stderr-{rank}.log"
