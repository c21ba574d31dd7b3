"""A plan from a job: memory and bytes of both modes, and refusals in the job's own words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import SMALL, job, plan
from uccl_ep.cost_model.expected_bytes import Load
from uccl_ep.errors import InvalidArgument
from uccl_ep.layout.plan import memory_bill
from uccl_ep.plan.record import GroupPlan
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import Job
from uccl_ep.tools.plan.make import make_plan

BIG = Load(128, 7168, 256, 8, row_format="fp8")


def test_make_low_latency() -> None:
    made = plan(machines.dgx_h100(), load=BIG)
    bill = {line.name: line for line in made.bill}
    rows = memory_bill(128, 7168, 16, 256, ranks_per_node=8).total_bytes
    assert 0 <= bill["low-latency rows"].num_bytes - rows < 8192  # and what aligns them
    assert bill["zero-copy rows"].reserved  # a NIC registers what is asked for
    assert made.locked_bytes == bill["control"].num_bytes
    assert made.traffic is not None and made.traffic.seconds > 0
    assert made.source == "before the job"


def test_make_throughput() -> None:
    made = plan(machines.dgx_h100(), load=Load(4096, 7168, 256, 8, "throughput"))
    bill = {line.name: line.num_bytes for line in made.bill}
    assert bill["throughput rings"] > 100 << 20 and "zero-copy rows" not in bill
    assert made.traffic is not None and made.traffic.dispatch_bytes > 4000 * 14336 * 0.99


def test_make_combine_reduced_in_the_node() -> None:
    def made(form: str, **changes: Any) -> GroupPlan:
        settings = Settings(low_latency_combine=form, low_latency_topk=8)
        return plan(machines.dgx_h100(), load=BIG, settings=settings, **changes)

    direct, node, auto = (made(form) for form in ("direct", "node", "auto"))
    chosen = {p: next(c for c in p.choices if c.what == "combine") for p in (direct, node, auto)}
    assert [chosen[p].chosen for p in (direct, node, auto)] == ["direct", "node", "node"]
    assert "us less" in chosen[auto].why and len(chosen[auto].over) == 2
    assert node.total_bytes == auto.total_bytes > direct.total_bytes
    assert direct.traffic is not None and node.traffic is not None
    assert node.traffic.combine_bytes < 0.6 * direct.traffic.combine_bytes


def test_make_of_a_rack() -> None:
    """Of two domains of two hosts, as the setting for nodes cuts them."""

    def made(mnnvl: str, *hosts: machines.Recorded, per_node: int = 0) -> GroupPlan:
        settings = Settings(mnnvl=mnnvl, ranks_per_node=per_node)
        return plan(*hosts, settings=settings, ranks=32, load=BIG)

    hosts, rack = made("auto", machines.dgx_h100()), made("1", machines.dgx_h100(), per_node=16)
    assert (hosts.num_nodes, rack.num_nodes, rack.num_hosts, rack.placement) == (4, 2, 4, "device")
    why = next(c for c in rack.choices if c.what == "nodes").why
    assert why == (
        "UCCL_EP_RANKS_PER_NODE=16; UCCL_EP_MNNVL=1 (presumed of all hosts: NVML can be asked when the job starts): "
        "hosts that share an NVLink domain are one node"
    )
    assert next(c for c in hosts.choices if c.what == "nodes").over == ()  # nobody knows of a domain
    assert rack.traffic is not None and hosts.traffic is not None
    assert rack.traffic.remote_places < 0.7 * hosts.traffic.remote_places


def test_make_shrink_costs_more() -> None:
    plain, apart = plan(machines.p5()), plan(machines.p5(), shrink=True)
    assert apart.total_bytes > plain.total_bytes
    assert plain.traffic is not None and apart.traffic is not None
    assert apart.traffic.dispatch_bytes > plain.traffic.dispatch_bytes


def test_make_on_cpus_and_one_rank() -> None:
    made = plan(machines.Recorded(), ranks=1, per_host=1)
    assert (made.transport, made.placement, made.locked_bytes) == ("shared_memory", "host", 0)
    assert made.traffic is not None and made.traffic.dispatch_bytes == 0 and made.traffic.seconds == 0.0
    tcp = plan(machines.Recorded(), ranks=5, per_host=2)
    assert (tcp.transport, tcp.num_hosts, tcp.num_nodes) == ("tcp", 3, 3)


def test_make_emulated_nodes_on_one_host() -> None:
    made = plan(machines.dgx_h100(), ranks=8, settings=Settings(ranks_per_node=4))
    assert (made.num_hosts, made.num_nodes, made.transport) == (1, 2, "shared_memory")
    assert made.choices[0].why == "UCCL_EP_RANKS_PER_NODE=4"


def test_make_a_large_job() -> None:
    made = plan(machines.p5en(), ranks=256)
    assert len(made.ranks) == 256 and made.num_nodes == 32 and made.cautions == ()
    assert made.ranks[255].nics == made.ranks[7].nics


@pytest.mark.parametrize(
    "settings, says",
    [
        (Settings(transport="efa"), "UCCL_EP_TRANSPORT=efa cannot reach all ranks"),
        (Settings(nics="mlx7_*"), r"rank 0 \(host0\): UCCL_EP_NICS"),
        (Settings(transport="shared_memory"), "needs all ranks on one host"),
        (Settings(gpu_memory="peer_memory"), "UCCL_EP_GPU_MEMORY=peer_memory does not work here"),
    ],
)
def test_make_refuses_as_the_job_would(settings: Settings, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        make_plan(job(machines.dgx_h100()), settings)


def test_make_refuses_sizes_first() -> None:
    with pytest.raises(InvalidArgument, match="--ranks"):
        make_plan(Job(5000, 8, SMALL), Settings())
