"""Hellos of ranks that do not exist yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import SMALL, job
from uccl_ep.errors import InvalidArgument
from uccl_ep.fabric.facts import Facts
from uccl_ep.group.self_description import UNLIMITED, read_portrait
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import Job, PresumedDriver, introduce


def test_imagine_ranks_of_two_hosts() -> None:
    told = introduce(job(machines.dgx_h100(), machines.p5en(), ranks=20), Settings())
    assert [i.rank for i in told] == list(range(20))
    assert [i.hostname for i in told] == ["host0"] * 8 + ["host1"] * 8 + ["host2"] * 4
    assert len({i.process for i in told}) == 20 and {i.device for i in told} == {"cuda"}
    assert told[3].gpu == "0000:61:00.0" and told[8].gpu == told[16].gpu == "0000:56:00.0"
    first, other = Facts.from_plain(told[0].fabric, 0), Facts.from_plain(told[8].fabric, 8)
    assert first.families == ("verbs",) and other.families == ("efa",)
    assert first.gpu_memory == "dmabuf" and "presumed" in first.gpu_memory_reason


def test_imagine_cpus_near_each_rank() -> None:
    told = introduce(job(machines.dgx_h100(), ranks=8), Settings(proxy_threads=2))
    near = [read_portrait(i.self_description).suggested_cpus for i in told]
    assert len({cpu for some in near for cpu in some}) == 16  # nobody's are another's
    assert all(cpu in range(56) or cpu in range(112, 168) for some in near[:4] for cpu in some)
    assert read_portrait(told[0].self_description).num_cpus == 224
    assert read_portrait(told[0].self_description).locked_bytes == UNLIMITED


def test_imagine_kinds_of_processors() -> None:
    amd = introduce(job(machines.mi300x_thor2(), ranks=2), Settings())
    assert {i.device for i in amd} == {"hip"}
    cpu = introduce(job(machines.dgx_h100(), ranks=2), Settings(device="cpu"))
    assert {(i.device, i.gpu) for i in cpu} == {("cpu", "")}
    bare = introduce(job(machines.Recorded(), ranks=3), Settings())
    assert {i.device for i in bare} == {"cpu"}
    tcp = introduce(job(machines.dgx_h100(), ranks=2), Settings(transport="tcp"))
    assert tcp[0].fabric == {}


def test_imagine_what_a_rank_would_refuse_is_told() -> None:
    told = introduce(job(machines.dgx_h100(), ranks=2), Settings(nics="mlx9_9"))
    assert all("UCCL_EP_NICS" in i.error for i in told)


def test_imagine_gpu_memory_as_asked() -> None:
    host = introduce(job(machines.dgx_h100(), ranks=1), Settings(gpu_memory="host"))
    assert Facts.from_plain(host[0].fabric, 0).gpu_memory == "host"
    module = introduce(job(machines.dgx_h100(), ranks=1), Settings(gpu_memory="peer_memory"))
    assert "none of the kernel modules" in module[0].error


@pytest.mark.parametrize(
    "ranks, per_host, says",
    [(0, 1, "--ranks"), (4097, 8, "--ranks"), (4, 5, "--ranks-per-node"), (4, 0, "--ranks-per-node")],
)
def test_imagine_sizes(ranks: int, per_host: int, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Job(ranks, per_host, SMALL).check(4096)


def test_imagine_a_tree_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--sysfs"):
        Job(4, 2, SMALL, trees=(str(tmp_path / "none"),)).check(4096)
    assert Job(9, 4, SMALL).num_hosts == 3


def test_imagine_presumed_driver() -> None:
    driver = PresumedDriver()
    os.close(driver.dmabuf(driver.allocate(1), 1))
    driver.free(0)
