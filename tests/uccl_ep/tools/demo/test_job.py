"""Ranks of a demo's run write files of their own."""

from __future__ import annotations

from pathlib import Path

from uccl_ep.tools.demo.job import OPTIONS_FILE, QUIET_FILE, error_file, log_file, result_file


def test_job_no_file_is_anothers() -> None:
    job = Path("job")
    files = [name(job, rank) for name in (result_file, error_file, log_file) for rank in range(12)]
    files += [job / OPTIONS_FILE, job / QUIET_FILE]
    assert len(set(files)) == 3 * 12 + 2 and {file.parent for file in files} == {job}
