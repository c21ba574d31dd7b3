"""What a rank tells of its network: gathered from recorded machines, carried as plain data, checked on arrival."""

from __future__ import annotations

import ipaddress
import re
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Nic, Recorded
from uccl_ep import InvalidArgument, UcclEpError, __version__
from uccl_ep.fabric import facts as facts_module
from uccl_ep.fabric.distance import Distance
from uccl_ep.fabric.facts import NIC_FAMILIES, Facts, Probes, gather, networks_of_this_host, tell
from uccl_ep.fabric.registration import IN_HOST_MEMORY, Attempt, Registration
from uccl_ep.settings import Settings

DMABUF = Registration("dmabuf", (Attempt("dmabuf", True, "the GPU's driver exports its memory as one"),))


def probes(root: str, absent: str = "", limits: Any = None, cpus: range = range(8)) -> Probes:
    return Probes(
        root=root,
        can_load=lambda name: name != absent,
        networks=dict,
        limits=lambda: limits or {},
        cpus=lambda: frozenset(cpus),
    )


def facts(recorded: Recorded, gpu: str = "", absent: str = "", **changes: Any) -> Facts:
    return gather(Settings(**changes), gpu, lambda nics: DMABUF, probes(recorded.tree(), absent))


def test_facts_of_a_machine_without_nics() -> None:
    found = facts(Recorded())
    assert found.families == () and found.ports == () and found.version == __version__
    assert found.missing == {
        "efa": "no EFA device",
        "verbs": "no active InfiniBand or RoCE port",
        "libfabric": "no Slingshot NIC (cxi)",
    }
    assert (found.gpu_memory, found.gpu_memory_reason) == ("host", "no NIC could reach it")


def test_facts_of_a_dgx() -> None:
    found = facts(machines.dgx_h100(), "0000:1B:00.0")
    assert found.families == ("verbs",) and found.where == "GPU 0000:1B:00.0"
    by_name = {port.name: port for port in found.ports}
    assert len(by_name) == 12
    near, far = by_name["mlx5_0"], by_name["mlx5_11"]
    assert (near.kind, near.rate_gbps, near.distance, near.pci) == (
        "infiniband", 400.0, int(Distance.SAME_SWITCH), "0000:18:00.0",
    )  # fmt: skip
    assert far.distance == int(Distance.ACROSS_SOCKETS) and by_name["mlx5_1"].kind == "ethernet"
    assert (found.gpu_memory, found.gpu_memory_reason) == ("dmabuf", DMABUF.reason)


def test_facts_of_a_rank_on_cpus() -> None:
    recorded = machines.dgx_h100()
    found = facts(recorded, pin_cpus=(60, 61))
    assert found.where == "NUMA node 1"
    assert {p.name: Distance(p.distance) for p in found.ports}["mlx5_11"] == Distance.SAME_NUMA_NODE
    both = gather(Settings(), "", lambda nics: IN_HOST_MEMORY, probes(recorded.tree(), cpus=range(100)))
    assert both.where == "the CPU" and {p.distance for p in both.ports} == {int(Distance.UNKNOWN)}


def test_facts_of_amazons_machines() -> None:
    found = facts(machines.p6_b200(), "0000:86:00.0")
    assert found.families == ("efa", "verbs")  # NVLink's ports look like InfiniBand
    assert [p.name for p in found.of("efa") if p.distance == int(Distance.SAME_SWITCH)] == ["rdmap132s0", "rdmap133s0"]
    assert facts(machines.p5en(), "0000:a4:00.0").families == ("efa",)


def test_facts_of_slingshot() -> None:
    found = facts(machines.slingshot())
    assert found.families == () and "UCCL_EP_TRANSPORT=libfabric tries it" in found.missing["libfabric"]
    assert facts(machines.slingshot(), transport="libfabric").families == ("libfabric",)
    assert {p.kind for p in found.ports} == {"slingshot"}


@pytest.mark.parametrize(
    "recorded, absent, family, says",
    [
        (machines.dgx_h100, "libibverbs.so.1", "verbs", "libibverbs.so.1 is not installed (packages: libibverbs1"),
        (machines.p5, "libefa.so.1", "efa", "libefa.so.1 is not installed"),
        (machines.slingshot, "libfabric.so.1", "libfabric", "libfabric.so.1 is not installed"),
        (machines.soft_roce, "", "verbs", "only soft-RoCE, which is slower than tcp: UCCL_EP_TRANSPORT=verbs"),
    ],
)
def test_facts_why_a_family_is_missing(recorded: Any, absent: str, family: str, says: str) -> None:
    found = facts(recorded(), absent=absent)
    assert family not in found.families and says in found.missing[family]


def test_facts_soft_roce_counts_for_who_asks() -> None:
    found = facts(machines.soft_roce(), transport="verbs")
    assert found.families == ("verbs",) and found.ports[0].software and found.ports[0].name == "rxe0"


def test_facts_libfabric_by_name_needs_no_nic() -> None:
    assert facts(Recorded(), absent="libfabric.so.1", transport="libfabric").families == ("libfabric",)


@pytest.mark.parametrize(
    "nic, says",
    [
        (Nic("mlx5_0", state="1: DOWN"), "mlx5_0:1 is DOWN: check the cable, the switch port and the subnet manager"),
        (Nic("mlx5_0", state="2: INIT", layer="Ethernet"), "mlx5_0:1 is INIT: check the cable, the switch port"),
        (Nic("siw0", node_type="4: RNIC", layer="Ethernet"), "siw0:1 is iWARP, which has no write with immediate"),
        (Nic("mlx5_0", layer="Ethernet"), "mlx5_0:1 has no RoCE v2 address: give its network interface an IP address"),
    ],
)
def test_facts_ports_that_cannot_be_used_say_why(nic: Nic, says: str) -> None:
    found = facts(Recorded(nics=[nic]))
    assert found.ports == () and found.left_out[0].startswith(says) and says in found.missing["verbs"]


def test_facts_roce_v1_only_when_its_index_is_asked_for() -> None:
    old = Recorded(nics=[Nic("mlx5_0", "0000:00/00:01.0/01:00.0", layer="Ethernet",
                             gids=[machines.Gid(0, machines.mapped("10.0.0.1"), machines.V1)])])  # fmt: skip
    assert facts(old, gid_index=0).families == ("verbs",)


def test_facts_selection_and_slow_ports() -> None:
    found = facts(machines.mi300x_thor2(), "0000:05:00.0")
    assert len(found.ports) == 8 and "bnxt_re8:1 runs at 25 Gb/s where others have 400" in found.left_out
    named = facts(machines.mi300x_thor2(), "0000:05:00.0", nics="bnxt_re8,bnxt_re0")
    assert [p.name for p in named.ports] == ["bnxt_re0", "bnxt_re8"]
    assert "bnxt_re1:1 is left out by UCCL_EP_NICS" in named.left_out
    assert len(facts(machines.mi300x_thor2(), nics="^bnxt_re0").ports) == 7
    with pytest.raises(InvalidArgument, match="UCCL_EP_NICS must be .*; got 'mlx5_9'."):
        facts(machines.mi300x_thor2(), nics="mlx5_9")


def test_facts_limits_come_from_verbs_where_it_is_known() -> None:
    root = machines.dgx_h100().tree()
    limits = {("mlx5_0", 1): (131072, 4096), ("mlx5_1", 1): (99, 0)}
    by_name = {p.name: p for p in gather(Settings(), "", lambda nics: DMABUF, probes(root, limits=limits)).ports}
    assert (by_name["mlx5_0"].max_queue_pairs, by_name["mlx5_0"].mtu) == (131072, 4096)
    assert (by_name["mlx5_1"].max_queue_pairs, by_name["mlx5_1"].mtu) == (99, 4096)  # sysfs' guess stays
    assert by_name["mlx5_3"].max_queue_pairs == 0
    assert isinstance(facts_module.limits_of_this_host(), dict)


def test_facts_come_back_from_the_wire() -> None:
    for recorded in (machines.dgx_h100(), machines.p5(), machines.soft_roce(), Recorded()):
        found = facts(recorded)
        wire = msgpack.packb(found.plain())
        assert Facts.from_plain(msgpack.unpackb(wire), 3) == found and len(wire) < 1 << 14
    assert Facts.from_plain({}, 0) == Facts()


@pytest.mark.parametrize("seed", range(9))
def test_facts_of_another_form_name_the_rank(seed: int) -> None:
    plain: Any = msgpack.unpackb(msgpack.packb(facts(machines.dgx_h100()).plain()))
    breakages: list[Any] = [
        lambda p: p.pop("ports"),
        lambda p: p.update(ports=3),
        lambda p: p["ports"].append({}),
        lambda p: p["ports"][0].update(rate_gbps="fast"),
        lambda p: p["ports"][0].update(surprise=1),
        lambda p: p["ports"][0]["gids"][0].update(address="no address"),
        lambda p: p.update(missing=[1]),
        lambda p: p["ports"][0].update(distance=True),
        lambda p: p["ports"][0]["gids"].append(["no", "mapping"]),
    ]
    breakages[seed](plain)
    with pytest.raises(UcclEpError, match="rank 3 describes its network in a form that is not known here"):
        Facts.from_plain(plain, 3)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ports", "gids", "v"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Facts().plain(), "x"]), json_like, min_size=1))
def test_facts_any_map_is_refused_and_nothing_else(values: dict[str, Any]) -> None:
    with pytest.raises(UcclEpError):
        Facts.from_plain(values, 1)


def test_facts_networks_are_those_of_this_host() -> None:
    found = networks_of_this_host()
    assert "127.0.0.1/8" in found["lo"]
    assert all(ipaddress.ip_interface(text) for texts in found.values() for text in texts)


def test_facts_are_gathered_only_for_who_could_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for transport in ("tcp", "loopback", "shared_memory"):
        assert tell(Settings(transport=transport), None) == {}
    for transport in ("auto", *NIC_FAMILIES):
        told = tell(Settings(transport=transport), None)
        assert Facts.from_plain(told["fabric"], 0).version == __version__
    told = tell(Settings(nics="no_such_nic"), None)
    assert told == {"error": told["error"]} and re.match(
        "InvalidArgument: UCCL_EP_NICS must be .*; got 'no_such_nic'.", told["error"]
    )


def test_facts_ask_the_gpus_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    root = machines.dgx_h100().tree()
    monkeypatch.setattr(facts_module, "Probes", lambda: probes(root))
    driver: Any = SimpleNamespace(facts=SimpleNamespace(arch="gfx942", identity="0000:43:00.0"))
    seen: list[Any] = []

    def choose(*arguments: Any, nics: list[str]) -> Registration:
        seen.append((*arguments, nics))
        return DMABUF

    monkeypatch.setattr(facts_module, "choose_registration", choose)
    told = tell(Settings(gpu_memory="dmabuf", proxy="process"), driver)["fabric"]
    assert seen == [("dmabuf", "hip", driver, "process", ["mlx5_3"])] and told["gpu_memory"] == "dmabuf"
    near = [p["name"] for p in told["ports"] if p["distance"] == int(Distance.SAME_SWITCH)]
    assert near == ["mlx5_3"]
