"""Each rank's choices with their reasons, and what they were chosen over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import agree, job, plan
from uccl_ep.fabric.visibility import WORDS
from uccl_ep.layout.plan import BillItem, MemoryBill
from uccl_ep.plan.fill import fill
from uccl_ep.plan.record import Choice, RankPlan
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import introduce


def choice(rank: RankPlan, what: str) -> Choice:
    return next(c for c in rank.choices if c.what == what)


def test_fill_infiniband() -> None:
    made = plan(machines.dgx_h100())
    assert (made.num_ranks, made.num_hosts, made.num_nodes, made.transport) == (16, 2, 2, "verbs")
    names = [f"mlx5_{n}:1" for n in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert [[str(nic) for nic in rank.nics] for rank in made.ranks] == [[name] for name in names] * 2
    third = made.ranks[3]
    assert (third.host, third.node, third.device, third.gpu) == ("host0", 0, "cuda", "0000:61:00.0")
    assert third.nics[0].address == "LID" and third.nics[0].gbps == 400 and third.registration == "dmabuf"
    nics = choice(third, "NICs")
    assert nics.why == "on the same PCIe switch as GPU 0000:61:00.0; no other rank uses it"
    assert "mlx5_1:1: on the same NUMA node, 200 Gb/s" in nics.over and "7 more ports" in nics.over[4]
    assert "the LID is enough" in choice(third, "address of mlx5_5:1").why
    assert choice(third, "registration").chosen == "dma-buf"
    assert "near this rank" in choice(third, "CPUs").why and "NUMA node" in choice(third, "CPUs").why


def test_fill_says_why_not_the_others() -> None:
    made = plan(machines.dgx_h100())
    by_name = {c.what: c for c in made.choices}
    assert by_name["transport"].over == (
        "efa: all ranks: no EFA device",
        "libfabric: all ranks: no Slingshot NIC (cxi)",
        "tcp: always possible, and slower than a NIC that writes memory",
    )
    assert by_name["rows"].chosen == "device memory" and "host memory: always possible" in by_name["rows"].over[0]
    assert by_name["nodes"].chosen == "2 of 8 rank(s)"


def test_fill_roce_with_many_addresses() -> None:
    made = plan(machines.roce_many_gids(), ranks=2, per_host=1)
    nic = made.ranks[0].nics[0]
    assert (nic.gid, nic.address, nic.mtu) == (5, "RoCE v2, IPv4 10.7.0.11", 4096)
    address = choice(made.ranks[0], "address of mlx5_0:1")
    assert address.chosen == "GID 5" and "the first of 2 of its kind" in address.why
    assert any(over.startswith("GID 7: RoCE v2, IPv4 192.168.7.11") for over in address.over)
    assert any("mlx5_1:1 has no RoCE v2 address" in over for over in choice(made.ranks[0], "NICs").over)


@pytest.mark.parametrize(
    "recorded, transport, nics", [(machines.p5, "efa", 4), (machines.p5en, "efa", 2), (machines.p6_b200, "efa", 1),
                                  (machines.mi300x_thor2, "verbs", 1), (machines.openshift_pod, "verbs", 1)],
)  # fmt: skip
def test_fill_machines(recorded: Any, transport: str, nics: int) -> None:
    made = plan(recorded(), ranks=14, per_host=7)
    assert made.transport == transport and {len(rank.nics) for rank in made.ranks} >= {nics}
    assert all(rank.choices and all(c.why for c in rank.choices) for rank in made.ranks)


def test_fill_slingshot_moves_rows_of_gpus_through_host_memory() -> None:
    made = plan(machines.slingshot(), ranks=8, per_host=4, settings=Settings(transport="libfabric"))
    assert (made.transport, made.placement) == ("libfabric", "host")
    assert [str(nic) for nic in made.ranks[5].nics] == ["cxi1:1"]


def test_fill_one_host() -> None:
    made = plan(machines.dgx_h100(), ranks=8)
    assert (made.transport, made.num_nodes, made.ranks[0].nics) == ("shared_memory", 1, ())
    over = {c.what: c for c in made.choices}["transport"].over
    assert over[1] == "verbs: possible; all ranks share a host"
    assert choice(made.ranks[0], "registration").chosen == "none"


def test_fill_pinned_cpus() -> None:
    made = plan(machines.dgx_h100(), settings=Settings(pin_cpus=(4, 5), proxy_threads=2))
    assert made.ranks[0].cpus == (4, 5) and made.ranks[0].threads == 2
    assert choice(made.ranks[0], "CPUs").chosen == "2 proxy thread(s) on 4, 5"


def test_fill_says_how_nics_writes_become_visible() -> None:
    by_family = {}
    for recorded in (machines.dgx_h100, machines.p5en):
        made = plan(recorded())
        (found,) = [c for c in made.choices if c.what == "visible by"]
        by_family[made.transport] = found.chosen
        assert found.why.startswith("presumed: the GPU's driver can be asked when the job starts")
    assert by_family == {"verbs": WORDS["nic_read"], "efa": WORDS["driver"]}
    beside = plan(machines.p5en(), settings=Settings(proxy="process"))
    assert beside.placement == "host" and "visible by" not in [c.what for c in beside.choices]


def test_fill_who_shares_a_nic() -> None:
    made = plan(machines.roce_many_gids(), ranks=6, per_host=3)
    assert [rank.nics[0].shared_with for rank in made.ranks[:3]] == [(1, 2), (0, 2), (0, 1)]
    assert made.ranks[3].nics[0].shared_with == (4, 5)


def test_fill_describes_as_many_ranks_as_asked() -> None:
    told = introduce(job(machines.dgx_h100()), Settings())
    agreed = agree(told, Settings())
    bill = MemoryBill(
        (BillItem("low-latency rows", 1000, "x"), BillItem("control", 24, "y"), BillItem("z", 7, "", True))
    )
    made = fill(agreed, "a test", bill, most_ranks=3)
    assert [rank.rank for rank in made.ranks] == [0, 1, 2] and made.num_ranks == 16
    assert (made.total_bytes, made.locked_bytes) == (1024, 24)  # rows lie in the GPU's own memory
    assert fill(agreed, "a test", None).bill == ()


def test_fill_a_rank_that_cannot_is_refused() -> None:
    made = plan(machines.soft_roce("eth0", "10.0.0.1"), machines.soft_roce(), ranks=2, per_host=1,
                settings=Settings(transport="verbs", gid_index=1))  # fmt: skip
    assert made.transport == "verbs"
    wrong = plan(machines.soft_roce(), ranks=2, per_host=1, settings=Settings(transport="verbs", gid_index=7))
    refused = choice(wrong.ranks[1], "network")
    assert refused.chosen == "refused" and "UCCL_EP_GID_INDEX" in refused.why
