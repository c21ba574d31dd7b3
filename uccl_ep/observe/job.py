"""The name of the job that a rank is of, the same for all its Buffers: what tells jobs of one host apart."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_NO_NAME = ("", "none")  # torchrun's without --rdzv-id


def job_id(named: str, one_process: bool, environment: Mapping[str, str]) -> str:
    """The job's name.

    Args:
        named: UCCL_EP_JOB_ID.
        one_process: all ranks of the Buffer are threads of this process.

    Returns:
        What the user or the launcher calls it; else the host and the process that has started the ranks here, so that
        each host of a job has a name of its own.
    """
    for name in (named, *(environment.get(variable, "") for variable in _LAUNCHERS)):
        if name not in _NO_NAME:
            return name
    return f"{socket.gethostname()}-{os.getpid() if one_process else os.getppid()}"
