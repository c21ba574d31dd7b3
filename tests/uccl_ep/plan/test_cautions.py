"""Every warning: raised where it should be, silent where it should not, and it says whom it concerns and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from tests.uccl_ep.plan.plans import Change, agree, job, kinds, plan, with_portrait
from uccl_ep.layout.plan import BillItem, MemoryBill
from uccl_ep.plan.cautions import find_cautions, find_loud, ranks_of
from uccl_ep.plan.fill import fill
from uccl_ep.plan.record import ERROR, LOUD, QUIET, Caution, GroupPlan
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import introduce


def changed(changes: Mapping[int, Change], settings: Settings | None = None, **rest: Any) -> GroupPlan:
    """The plan of two DGX H100 whose ranks say something else than they should."""
    settings = settings or Settings()
    told = introduce(job(rest.pop("recorded", machines.dgx_h100()), **rest), settings)
    for rank, change in changes.items():
        told[rank] = change(told[rank])
    agreed = agree(told, settings)
    return find_cautions(fill(agreed, "a test", MemoryBill((BillItem("control", 1 << 20, ""),))), agreed)


def with_fabric(**values: Any) -> Change:
    return lambda i: replace(i, fabric={**i.fabric, **values})


def only(made: GroupPlan, kind: str) -> Caution:
    assert kinds(made) == [kind], made.cautions
    assert made.cautions[0].fix
    return made.cautions[0]


@pytest.mark.parametrize(
    "recorded", [machines.p5, machines.p5en, machines.p6_b200, machines.dgx_h100, machines.mi300x_thor2]
)
def test_cautions_none_on_machines_as_they_should_be(recorded: Callable[[], Recorded]) -> None:
    assert plan(recorded()).cautions == ()


def test_cautions_two_ranks_on_one_nic() -> None:
    made = plan(machines.roce_many_gids(), ranks=6, per_host=2)
    assert kinds(made) == ["shared NIC", "shared GPU"]
    shared = made.cautions[0]
    assert shared.level == LOUD and shared.ranks == tuple(range(6))
    assert "on host0 mlx5_0:1 (ranks 0, 1), and the same on 2 more host(s)" in shared.text
    assert "on host0 0000:12:00.0 (ranks 0, 1), and the same on 2 more host(s)" in made.cautions[1].text


def test_cautions_a_nic_that_nobody_uses_while_others_are_shared() -> None:
    """Two GPUs on one switch with one NIC; the other NIC is on the other socket."""
    recorded = machines.p5en()
    recorded.nics, recorded.gpus = [recorded.nics[0], recorded.nics[-1]], recorded.gpus[:2]
    made = plan(recorded, ranks=4, per_host=2)
    shared = only(made, "shared NIC")
    assert "rdmap82s0:1 (ranks 0, 1)" in shared.text and "rdmap163s0:1 carry nothing" in shared.text
    assert "UCCL_EP_NICS" in shared.fix


def test_cautions_soft_roce_is_shared_without_harm() -> None:
    settings = Settings(transport="verbs", ranks_per_node=2)
    assert "shared NIC" not in kinds(plan(machines.soft_roce(), ranks=4, per_host=4, settings=settings))


def test_cautions_a_fallback_that_nobody_asked_for() -> None:
    made = plan(machines.dgx_h100(), Recorded(), ranks=9, settings=Settings(device="cpu"))
    loud = [caution for caution in made.cautions if caution.kind == "fallback"]
    assert made.transport == "tcp" and len(loud) == 1 and loud[0].level == LOUD and loud[0].ranks == (8,)
    assert "ranks 0, 1, 2, 3, 4, 5 and 2 more have a NIC that writes memory (mlx5_0:1" in loud[0].text
    assert "rank 8: " in loud[0].text and "verbs: no active InfiniBand or RoCE port" in loud[0].text
    assert "uccl-ep doctor on host1" in loud[0].fix
    asked = Settings(device="cpu", transport="tcp")
    meant = plan(machines.dgx_h100(), Recorded(), ranks=9, settings=asked)
    assert "fallback" not in kinds(meant)
    nothing = plan(Recorded(), ranks=4, per_host=2)
    assert nothing.transport == "tcp" and "fallback" not in kinds(nothing)


def test_cautions_mixed_link_layers_fall_back_too() -> None:
    infiniband = Recorded(nics=[machines.Nic("mlx5_0", "0000:00/00:01.0/01:00.0", lid=3)])
    roce = Recorded(
        nics=[machines.Nic("r", "0000:00/00:01.0/01:00.0", layer="Ethernet", gids=machines.roce("e", "10.0.0.1"))]
    )
    made = plan(infiniband, roce, ranks=2, per_host=1, settings=Settings(device="cpu"))
    assert made.transport == "tcp" and "no link layer is on all of them" in made.cautions[0].text


def test_cautions_rows_of_gpus_in_host_memory() -> None:
    closed = with_fabric(gpu_memory="host", gpu_memory_reason="no module is loaded")
    made = changed({5: closed})
    assert made.placement == "host" and made.cautions[0].kind == "fallback" and made.cautions[0].level == LOUD
    assert made.cautions[0].ranks == (5,) and "no module is loaded" in made.cautions[0].text
    assert {c.kind for c in made.cautions} == {"fallback", "mismatch"}
    meant = plan(machines.dgx_h100(), settings=Settings(gpu_memory="host"))
    assert meant.placement == "host" and "fallback" not in kinds(meant)


def test_cautions_settings_that_differ() -> None:
    other = [["UCCL_EP_TIMEOUT_S", "5.0"], ["UCCL_EP_RINGS", "2"]]
    usual = [["UCCL_EP_TIMEOUT_S", "100.0"], ["UCCL_EP_RINGS", "2"]]
    changes = {rank: with_portrait(settings=other if rank in (3, 9) else usual) for rank in range(16)}
    caution = only(changed(changes), "mismatch")
    assert caution.level == LOUD and caution.ranks == (3, 9)
    assert (
        "UCCL_EP_TIMEOUT_S differs between ranks: 100.0 on ranks 0, 1, 2, 4, 5, 6 and 8 more; 5.0 on ranks 3, 9"
        in caution.text
    )


@pytest.mark.parametrize("name", ["torch", "kernel", "python"])
def test_cautions_versions_that_differ(name: str) -> None:
    changes = {rank: with_portrait(**{name: "2" if rank == 7 else "1"}) for rank in range(16)}
    caution = only(changed(changes), "mismatch")
    assert caution.level == QUIET and caution.ranks == (7,) and f"{name} differs" in caution.text


def test_cautions_networks_that_differ() -> None:
    slow = machines.mi300x_thor2()
    slow.nics[2] = replace(slow.nics[2], rate="200 Gb/sec (2X NDR)")
    slow.mtus["ens4np0"] = 1500
    made = plan(machines.mi300x_thor2(), slow)
    texts = {c.text.split(" differs")[0]: c.ranks for c in made.cautions}
    assert texts == {"NIC bandwidth of a rank": (10,), "MTU": (12,)}
    ways = changed({2: with_fabric(gpu_memory="peer_memory")})
    assert "the way NICs reach GPU memory differs" in only(ways, "mismatch").text


def test_cautions_far_nics() -> None:
    recorded = machines.dgx_h100()
    recorded.nics = recorded.nics[:4]  # those of the first socket
    made = plan(recorded)
    far = next(c for c in made.cautions if c.kind == "distance")
    assert far.ranks == (4, 5, 6, 7, 12, 13, 14, 15) and "across sockets" in far.text and far.level == QUIET


def test_cautions_processors() -> None:
    pinned = plan(machines.dgx_h100(), settings=Settings(pin_cpus=(2, 3), proxy_threads=2))
    caution = only(pinned, "CPUs")
    assert "to the same CPU(s) 2, 3" in caution.text and caution.ranks == tuple(range(16))
    small = machines.dgx_h100()
    small.numa_cpus = ("0-7", "8-11")
    few = only(plan(small), "CPUs")
    assert "host0 has 12 CPU(s) for 16 busy threads of its 8 rank(s)" in few.text
    assert few.fix == "use fewer ranks on a host", "one proxy thread a rank is the least"
    many = only(plan(small, settings=Settings(proxy_threads=2)), "CPUs")
    assert many.fix.endswith("or UCCL_EP_PROXY_THREADS=1")
    apart = {rank: with_portrait(pin_cpus=[rank]) for rank in range(16)}
    assert changed(apart).cautions == ()


def test_cautions_locked_memory() -> None:
    made = changed({4: with_portrait(locked_bytes=65536), 5: with_portrait(locked_bytes=1 << 30)})
    caution = only(made, "limits")
    assert caution.ranks == (4,) and "rank 4 may lock 64 KiB of memory, and each needs 1 MiB" in caution.text


def test_cautions_refusals_come_first() -> None:
    settings = Settings(transport="verbs", gid_index=7)
    made = plan(machines.roce_many_gids(), machines.soft_roce(), ranks=2, per_host=1, settings=settings)
    assert [c.ranks for c in made.cautions[:2]] == [(0,), (1,)] and {c.level for c in made.cautions[:2]} == {ERROR}
    refusal = made.cautions[1].text
    assert refusal.startswith("rank 1 (host1): UCCL_EP_GID_INDEX must be an entry") and refusal.endswith("; got 7.")


def test_cautions_of_a_start_are_the_loud_ones() -> None:
    settings = Settings(pin_cpus=(1,))
    told = introduce(job(machines.roce_many_gids(), ranks=4, per_host=2), settings)
    agreed = agree(told, settings)
    assert [c.kind for c in find_loud(fill(agreed, "x", None, 2), agreed)] == ["shared NIC", "shared GPU"]
    assert "CPUs" in kinds(find_cautions(fill(agreed, "x", None), agreed))


def test_cautions_ranks_in_words() -> None:
    assert ranks_of([3]) == "rank 3" and ranks_of([1, 2]) == "ranks 1, 2"
    assert ranks_of(range(9)) == "ranks 0, 1, 2, 3, 4, 5 and 3 more"
