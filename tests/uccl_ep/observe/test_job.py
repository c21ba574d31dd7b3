"""A job's name is the user's, else the launcher's, else one that its ranks on this host share."""

from __future__ import annotations

import os
import socket

import pytest

from uccl_ep.observe.job import job_id

HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("named", "environment", "expected"),
    [
        ("mine", {"TORCHELASTIC_RUN_ID": "run", "SLURM_JOB_ID": "7"}, "mine"),
        ("", {"TORCHELASTIC_RUN_ID": "run", "SLURM_JOB_ID": "7"}, "run"),
        ("", {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, "7"),
        ("", {"TORCHELASTIC_RUN_ID": "none"}, f"{HERE}-{os.getppid()}"),
        ("", {}, f"{HERE}-{os.getppid()}"),
    ],
)
def test_job_name(named: str, environment: dict[str, str], expected: str) -> None:
    assert job_id(named, False, environment) == expected


def test_job_of_threads_is_the_process() -> None:
    assert job_id("", True, {}) == f"{HERE}-{os.getpid()}"
