"""Manifests for clusters: Kubernetes' own schemas take them, no container may more than its network needs, and the
numbers and names in each go together. slurm_containers.sh calls srun with the words that pyxis and apptainer know."""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from uccl_ep.examples import launch
from uccl_ep.examples.launch.kubernetes_pod import place

FOLDER = Path(launch.__file__).parent
SCRIPT = FOLDER / "slurm_containers.sh"
MANIFESTS = {path.name: list(yaml.safe_load_all(path.read_text(encoding="utf-8"))) for path in FOLDER.glob("*.yaml")}
VERSIONS = ("1.29", "1.37")
LOCKED = ["IPC_LOCK"]  # memory that a NIC reads and writes is locked
NEEDS: dict[str, tuple[list[str], set[str]]] = {  # capabilities added, and devices
    "kubernetes.yaml": ([], set()),
    "leaderworkerset.yaml": ([], set()),
    "kubernetes_rdma.yaml": (LOCKED, {"nvidia.com/gpu", "rdma/hca_shared_devices_a"}),
    "kubernetes_efa.yaml": (LOCKED, {"nvidia.com/gpu", "vpc.amazonaws.com/efa"}),
}
GPU_JOBS = ["kubernetes_rdma.yaml", "kubernetes_efa.yaml"]
# Of leaderworkerset.x-k8s.io/v1, whose schema kubernetes-validate does not hold. Its pods are judged as PodTemplates.
LWS_FIELDS = {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
LWS_TEMPLATE_FIELDS = {"size", "restartPolicy", "leaderTemplate", "workerTemplate", "subGroupPolicy"}
LWS_RESTARTS = {"Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"}


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """The pod that a Job or a LeaderWorkerSet makes; None of a Service."""
    if document["kind"] == "LeaderWorkerSet":
        return document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return document["spec"].get("template")


def pods(name: str) -> list[dict[str, Any]]:
    return [pod["spec"] for document in MANIFESTS[name] if (pod := pod_of(document)) is not None]


def known(document: dict[str, Any]) -> dict[str, Any]:
    """The document, or what Kubernetes itself knows of one of LeaderWorkerSet's.

    Raises:
        AssertionError: a LeaderWorkerSet has a field that its definition has not.
    """
    if document["kind"] != "LeaderWorkerSet":
        return document
    assert document["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec, template = document["spec"], document["spec"]["leaderWorkerTemplate"]
    assert set(spec) <= LWS_FIELDS and set(template) <= LWS_TEMPLATE_FIELDS
    assert template["restartPolicy"] in LWS_RESTARTS
    metadata = document["metadata"]
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": pod_of(document)}


@functools.cache
def definitions(version: str) -> Any:
    """What schemas of one release refer to. kubernetes_validate.validate reads it anew, for seconds, in every call."""
    import referencing
    from kubernetes_validate.utils import schema_contents

    contents = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
    return (referencing.Resource.from_contents(contents) @ referencing.Registry()).crawl()


def complaints(document: dict[str, Any]) -> list[str]:
    """Of the oldest and of the newest release, strictly: an unknown field is wrong."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        assert os.environ.get("UCCL_EP_REQUIRE_TOOLS", "0") == "0", "kubernetes-validate is not installed"
        pytest.skip("NOT RUN: kubernetes-validate is not installed: make .venv/.stamp-manifests")
    import jsonschema
    from kubernetes_validate.utils import schema_contents

    document, found = known(document), []
    api = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", document["apiVersion"])
    for version in VERSIONS:
        file = f"kubernetes-json-schema/v{version}.0-local-strict/{document['kind'].lower()}-{api}.json"
        validator = jsonschema.Draft202012Validator(schema_contents(file, version), registry=definitions(version))
        found += [f"{version}: {error.message}" for error in validator.iter_errors(document)]
    return found


def test_examples_launch_manifests_are_all_known() -> None:
    assert set(MANIFESTS) == set(NEEDS)
    assert all(name in (FOLDER / "README.md").read_text(encoding="utf-8") for name in NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_examples_launch_manifests_fit_the_schemas(name: str) -> None:
    for document in MANIFESTS[name]:
        assert not complaints(document)


@pytest.mark.parametrize("name", NEEDS)
def test_examples_launch_manifests_wrong_ones_are_found(name: str) -> None:
    document = copy.deepcopy(MANIFESTS[name][-1])
    pod = pod_of(document)
    assert pod is not None
    pod["spec"]["containers"][0]["securityContexts"] = {}
    found = complaints(document)
    assert len(found) == len(VERSIONS) and all("'securityContexts' was unexpected" in words for words in found)


@pytest.mark.parametrize("name", NEEDS)
def test_examples_launch_manifests_ask_for_nothing_more(name: str) -> None:
    capabilities, devices = NEEDS[name]
    (pod,) = pods(name)
    assert not set(pod) & {"hostNetwork", "hostPID", "hostIPC", "volumes", "securityContext", "initContainers"}
    (container,) = pod["containers"]
    dropped = {"drop": ["ALL"], **({"add": capabilities} if capabilities else {})}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": dropped}
    resources = container["resources"]
    assert set(resources["limits"]) == {"memory"} | devices and set(resources["requests"]) == {"cpu", "memory"}
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


@pytest.mark.parametrize("name", GPU_JOBS)
def test_examples_launch_manifests_of_hosts_go_together(name: str) -> None:
    service, job = MANIFESTS[name]
    (pod,) = pods(name)
    (container,) = pod["containers"]
    words = dict(re.findall(r"--([\w-]+)=(\S+)", " ".join(container["command"])))
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(words["nnodes"])
    assert words["node-rank"] == "$(JOB_COMPLETION_INDEX)" and job["spec"]["completionMode"] == "Indexed"
    assert words["master-addr"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert int(words["nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert container["command"][0] == "torchrun" and container["command"][-2:] == ["-m", f"{launch.__name__}.torchrun"]


def test_examples_launch_leaderworkerset_goes_with_its_program() -> None:
    (document,) = MANIFESTS["leaderworkerset.yaml"]
    (container,) = pods("leaderworkerset.yaml")[0]["containers"]
    assert container["command"][-1] == f"{launch.__name__}.kubernetes_pod"
    size = document["spec"]["leaderWorkerTemplate"]["size"]
    theirs = {"LWS_LEADER_ADDRESS": "experts-0.experts", "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "1"}
    at = place(theirs | {row["name"]: row["value"] for row in container["env"]})
    assert (at.rank, at.size, at.address, at.port) == (1, 2, "experts-0.experts", 29500)


CALLS = [("pyxis", "--container-image=IMAGE"), ("apptainer", "apptainer exec --nv IMAGE")]


@pytest.mark.parametrize(("how", "words"), CALLS)
def test_examples_launch_slurm_containers(how: str, words: str, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho srun "$@"\n', encoding="utf-8")
    srun.chmod(0o755)
    image = (tmp_path / "uccl-ep.image").resolve()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(SCRIPT), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = called(how, image.name)
    wanted = f"srun {words} python -m {launch.__name__}.slurm\n"
    assert done.stdout == wanted.replace("IMAGE", str(image)), done.stderr
    wrong = called()
    assert wrong.returncode == 2 and "usage: sbatch" in wrong.stderr


def test_examples_launch_slurm_containers_ask_for_a_gpu_a_rank() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.M))
    assert options["ntasks-per-node"] == options["gpus-per-node"]
