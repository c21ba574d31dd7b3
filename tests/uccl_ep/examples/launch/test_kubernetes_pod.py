"""uccl_ep.examples.launch.kubernetes_pod: its manifest sets what it reads, a LeaderWorkerSet's variables do as well,
and two pods meet by variables alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launchers import hosts
from tests.launchers.hosts import Hosts, finish, ranks_say
from uccl_ep.examples import launch
from uccl_ep.examples.launch.kubernetes_pod import place

EXAMPLE = "uccl_ep.examples.launch.kubernetes_pod"
MANIFEST = (Path(launch.__file__).parent / "kubernetes.yaml").read_text(encoding="utf-8")


def pod(index: int, **more: str) -> dict[str, str]:
    """The manifest's variables, and the one that Kubernetes adds."""
    set_there = dict(re.findall(r'{name: (\w+), value: "?([\w.-]+)"?}', MANIFEST))
    return {**set_there, "JOB_COMPLETION_INDEX": str(index), **more}


def test_examples_launch_kubernetes_manifest_sets_what_the_example_reads() -> None:
    at = place(pod(1))
    assert (at.rank, at.size, at.port) == (1, 2, 29500)
    numbers = {int(n) for n in re.findall(r"(?:completions|parallelism): (\d+)", MANIFEST)}
    assert numbers == {at.size}, "PODS, completions and parallelism are one number"
    service, job = re.findall(r"^  name: (\S+)$", MANIFEST, re.MULTILINE)
    assert at.address == f"{job}-0.{service}" and f"subdomain: {service}" in MANIFEST
    assert f'"{EXAMPLE}"' in MANIFEST
    for name in pod(0):
        with pytest.raises(ValueError, match=name):
            place({k: v for k, v in pod(0).items() if k != name})


def test_examples_launch_kubernetes_reads_a_leaderworkersets_variables() -> None:
    theirs = {"LWS_LEADER_ADDRESS": "experts-0.experts", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}
    given = {**theirs, "FIRST_POD_PORT": "29500"}
    at = place({**pod(0), **given})  # of both, as when a job's variables come from an image: theirs win
    assert (at.rank, at.size, at.address, at.port) == (3, 4, "experts-0.experts", 29500)
    for name in ("LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "FIRST_POD_PORT"):
        with pytest.raises(ValueError, match=f"{name}=.*a LeaderWorkerSet"):
            place({k: v for k, v in given.items() if k != name})


@pytest.mark.slow  # each rank imports torch
@pytest.mark.timeout(300)
def test_examples_launch_kubernetes_two_pods_by_variables() -> None:
    hosts.require()
    with Hosts(2) as pair:
        pods = [pair.module(index, EXAMPLE, **pod(index, FIRST_POD=pair.name(0))) for index in range(2)]
        said = ranks_say(finish(pods))
    starts = [f"rank {r} of 2 on host-{r + 1}: node {r} of 2, transport tcp; " for r in range(2)]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts
