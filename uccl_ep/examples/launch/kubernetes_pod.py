"""Kubernetes: one pod of an indexed job, or of a LeaderWorkerSet, is one rank.

    kubectl apply -f kubernetes.yaml
    kubectl apply -f leaderworkerset.yaml

Kubernetes numbers the pods of a job (JOB_COMPLETION_INDEX); the job's own variables say how many there are and the name
that its headless service gives pod 0. A LeaderWorkerSet's controller says all of that by itself. For several GPUs a pod
let torchrun start the ranks, as kubernetes_rdma.yaml and kubernetes_efa.yaml do.
Rows in host memory are memfds: they count against the pod's memory limit, and need no larger /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import distributed

from uccl_ep.examples.launch.rendezvous import Place, number
from uccl_ep.examples.launch.step import run, say


def place(environment: Mapping[str, str]) -> Place:
    """This pod's place in the job.

    Raises:
        ValueError: a variable is missing.
    """
    if address := environment.get("LWS_LEADER_ADDRESS", ""):
        lws = "a LeaderWorkerSet such as leaderworkerset.yaml"
        return Place(
            rank=number(environment, "LWS_WORKER_INDEX", 0, lws),
            size=number(environment, "LWS_GROUP_SIZE", 1, lws),
            address=address,
            port=number(environment, "FIRST_POD_PORT", 1, lws),
        )
    job = "an indexed job such as kubernetes.yaml"
    address = environment.get("FIRST_POD", "")
    if not address:
        raise ValueError(f"FIRST_POD='': the name of pod 0 is needed. Was this started by {job}?")
    return Place(
        rank=number(environment, "JOB_COMPLETION_INDEX", 0, job),
        size=number(environment, "PODS", 1, job),
        address=address,
        port=number(environment, "FIRST_POD_PORT", 1, job),
    )


def main() -> None:
    """One pod."""
    group = place(os.environ).join()
    try:
        say(run(group))
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
