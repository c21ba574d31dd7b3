"""Slurm: one task is one rank; nothing but srun's own variables is read.

    srun --nodes 2 --ntasks-per-node 8 python -m uccl_ep.examples.launch.slurm

Rank 0 is on the first host of the step's node list. Its port comes from the job's number, so that jobs that share a
host do not meet each other's ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from torch import distributed

from uccl_ep.examples.launch.rendezvous import Place, number
from uccl_ep.examples.launch.step import run, say

FIRST_PORT, PORTS = 20000, 10000


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list: "gpu[07-09,12],login1" -> "gpu07".

    Raises:
        ValueError: this is no node list.
    """
    found = re.fullmatch(r"([\w.-]+)(?:\[(\w+)[^]]*\]([\w.-]*))?(?:,.*)?", node_list)
    if found is None:
        raise ValueError(f"SLURM_STEP_NODELIST={node_list!r}: host names such as gpu[07-09],gpu12 are needed")
    name, first, suffix = found.groups()
    return name + (first or "") + (suffix or "")


def place(environment: Mapping[str, str]) -> Place:
    """This task's place in the step.

    Raises:
        ValueError: srun has not set what is needed.
    """
    job = number(environment, "SLURM_JOB_ID", 0, "srun") + number(environment, "SLURM_STEP_ID", 0, "srun")
    return Place(
        rank=number(environment, "SLURM_PROCID", 0, "srun"),
        size=number(environment, "SLURM_NTASKS", 1, "srun"),
        address=first_host(environment.get("SLURM_STEP_NODELIST", "")),
        port=FIRST_PORT + job % PORTS,
    )


def main() -> None:
    """One task."""
    group = place(os.environ).join()
    try:
        say(run(group))
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
