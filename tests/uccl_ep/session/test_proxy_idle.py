"""Whether a proxy thread without work naps."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.uccl_ep.ranks import MIB
from uccl_ep import Buffer, ThreadGroup, run_ranks
from uccl_ep.session.proxy_idle import cores_of, may_nap
from uccl_ep.system.cgroups import Cgroups


@pytest.mark.parametrize(
    ("wanted", "gpu", "family", "cores", "naps"),
    [
        ("auto", True, "verbs", 16, False),
        ("auto", True, "efa", 64, False),
        ("auto", True, "verbs", 15, True),
        ("auto", False, "verbs", 64, True),
        ("auto", True, "tcp", 64, True),
        ("nap", True, "verbs", 64, True),
        ("spin", False, "tcp", 1, False),
    ],
)
def test_naps_only_where_threads_outnumber_cores_or_no_gpu_has_a_nic(
    wanted: str, gpu: bool, family: str, cores: int, naps: bool
) -> None:
    napping, why = may_nap(wanted, gpu, family, cores, threads=16)
    assert napping == naps and why


def test_cores_are_those_of_all_ranks_and_no_more_than_the_cgroup_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = {11: {0, 1}, 12: {1, 2, 3}}

    def affinity(pid: int) -> set[int]:
        if pid == 13:
            raise ProcessLookupError
        return bound.get(pid, {8})

    monkeypatch.setattr(Cgroups, "cpu_limit", lambda self: 0.0)
    assert cores_of([11, 12], affinity) == 4
    assert cores_of([11, 13], affinity) == 3  # the one that has ended: as this process
    monkeypatch.setattr(Cgroups, "cpu_limit", lambda self: 2.5)
    assert cores_of([11, 12], affinity) == 2


@pytest.mark.parametrize("idle", ["spin", "nap"])
def test_proxy_naps_as_it_is_told(variables: Any, idle: str) -> None:
    variables(TRANSPORT="tcp", RANKS_PER_NODE=1, PROXY_IDLE=idle)

    def body(group: ThreadGroup) -> bool:
        buffer = Buffer(group, MIB)
        buffer.barrier()
        rest = "naps" if idle == "nap" else "keeps its core"
        assert (f"a proxy thread without work {rest}", f"UCCL_EP_PROXY_IDLE={idle}") in buffer._session.notes
        until = time.monotonic() + (0.05 if idle == "spin" else 10.0)
        while not (naps := buffer._session.regions.read_counters()[0][0]["naps"]) and time.monotonic() < until:
            time.sleep(0.005)
        buffer.destroy()
        return bool(naps)

    assert run_ranks(2, body) == [idle == "nap"] * 2
