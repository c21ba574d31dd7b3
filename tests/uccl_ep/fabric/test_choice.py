"""The family and its NICs from hellos: every order of preference, every refusal, all of it with its reason."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from uccl_ep import InvalidArgument, SettingsMismatch
from uccl_ep.fabric.choice import choose_fabric, explain
from uccl_ep.fabric.facts import Probes, gather
from uccl_ep.fabric.registration import IN_HOST_MEMORY
from uccl_ep.group.handshake import Hello, pack, unpack
from uccl_ep.group.topology import Topology, split_into_nodes
from uccl_ep.settings import Settings

Networks = dict[str, list[str]]


class Cluster:
    """Hosts with recorded machines, and ranks on their GPUs."""

    def __init__(self, settings: Settings, per_host: int = 2) -> None:
        self.settings, self.per_host = settings, per_host
        self.hellos: list[Hello] = []

    def host(self, name: str, recorded: Recorded, networks: Networks | None = None, absent: str = "") -> Cluster:
        root = recorded.tree()
        for local in range(self.per_host):
            gpu = recorded.gpus[local % len(recorded.gpus)].address if recorded.gpus else ""
            found = Probes(root, lambda lib: lib != absent, lambda: networks or {}, dict, lambda: frozenset([0]))
            facts = gather(self.settings, gpu, lambda nics: IN_HOST_MEMORY, found)
            rank = len(self.hellos)
            told = Hello(rank, name, name, f"p{rank}", 1, "", {}, 0, b"", fabric=facts.plain())
            self.hellos.append(unpack(Hello, pack(told), rank))
        return self

    @property
    def topology(self) -> Topology:
        return split_into_nodes([i.host_id for i in self.hellos], self.settings.ranks_per_node, 64)

    def family(self) -> tuple[str, str]:
        chosen = choose_fabric(self.settings, self.hellos, self.topology, 0)
        return chosen.family, chosen.whole_reason

    def choose(self, rank: int = 0) -> Any:
        chosen = choose_fabric(self.settings, self.hellos, self.topology, rank)
        chosen.checked_config()
        return chosen


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    return lambda per_host=2, **changes: Cluster(Settings(**changes), per_host)


@pytest.mark.parametrize(
    "recorded, family, says",
    [
        (machines.p5, "efa", "every rank has an EFA device"),
        (machines.p6_b200, "efa", "EFA"),
        (machines.dgx_h100, "verbs", "every rank has an active InfiniBand port"),
        (machines.mi300x_thor2, "verbs", "every rank has an active RoCE port"),
        (machines.slingshot, "tcp", "libfabric: on all ranks Slingshot's provider refuses writes with completion data"),
        (machines.soft_roce, "tcp", "on all ranks only soft-RoCE"),
        (Recorded, "tcp", "efa: on all ranks no EFA device; verbs: on all ranks no active"),
    ],
)
def test_choice_of_the_family(cluster: Any, recorded: Callable[[], Recorded], family: str, says: str) -> None:
    made = cluster().host("a", recorded()).host("b", recorded())
    assert made.family()[0] == family and says in made.family()[1]
    assert made.choose().family == family
    if family == "tcp":
        choice = made.choose()
        assert "10 to 20 times faster than libfabric's tcp" in choice.reason
        assert [word.split(":")[0] for word in choice.over] == ["efa", "verbs", "libfabric"]
        assert not any(word in choice.reason for word in choice.over), "each fact once"
        assert choice.whole_reason == f"{choice.reason} ({'; '.join(choice.over)})"


def plain(hosts: str, processes: str) -> list[Hello]:
    return [
        Hello(r, h, h, p, 1, "127.0.0.1", {}, 0, b"") for r, (h, p) in enumerate(zip(hosts, processes, strict=True))
    ]


@pytest.mark.parametrize(
    "wanted, hosts, processes, nodes, family",
    [
        ("auto", "aa", "pp", (0, 0), "shared_memory"),
        ("auto", "aa", "pq", (0, 1), "shared_memory"),
        ("auto", "ab", "pq", (0, 1), "tcp"),
        ("loopback", "aa", "pp", (0, 1), "loopback"),
        ("tcp", "aa", "pq", (0, 1), "tcp"),
        ("shared_memory", "aa", "pq", (0, 1), "shared_memory"),
    ],
)
def test_choice_without_a_look_at_nics(
    wanted: str, hosts: str, processes: str, nodes: tuple[int, ...], family: str
) -> None:
    chosen = choose_fabric(Settings(transport=wanted), plain(hosts, processes), Topology(nodes), 0)
    assert chosen.family == family and chosen.reason


@pytest.mark.parametrize("wanted, instead", [("loopback", "shared_memory or tcp"), ("shared_memory", "use tcp")])
def test_choice_family_that_cannot_reach_everybody(wanted: str, instead: str) -> None:
    with pytest.raises(InvalidArgument, match=f"UCCL_EP_TRANSPORT={wanted} needs .*{instead}"):
        choose_fabric(Settings(transport=wanted), plain("ab", "pq"), Topology((0, 1)), 0)


def test_choice_ranks_of_one_host_never_touch_a_nic_unless_asked(cluster: Any) -> None:
    assert cluster(per_host=8).host("a", machines.dgx_h100()).family()[0] == "shared_memory"
    emulated = cluster(per_host=4, ranks_per_node=2).host("b", machines.dgx_h100())
    assert emulated.topology.num_nodes == 2 and emulated.family()[0] == "shared_memory"
    assert emulated.choose().config.nics == ()


def test_choice_one_rank_without_it_is_named(cluster: Any) -> None:
    made = cluster(per_host=1).host("a", machines.dgx_h100()).host("b", Recorded()).host("c", machines.dgx_h100())
    family, reason = made.family()
    assert family == "tcp" and "verbs: rank 1 (b) no active InfiniBand or RoCE port" in reason


def test_choice_mixed_link_layers(cluster: Any) -> None:
    made = cluster(per_host=1).host("a", Recorded(nics=[machines.Nic("mlx5_0", "0000:00/00:01.0/01:00.0", lid=3)]))
    made.host("b", machines.mi300x_thor2())
    family, reason = made.family()
    assert (
        family == "tcp" and "no link layer is on all of them: rank 0 (a) has infiniband, rank 1 (b) has eth" in reason
    )


def test_choice_the_link_layer_with_more_bandwidth_for_the_poorest(cluster: Any) -> None:
    roce = machines.mi300x_thor2()
    roce.nics.append(machines.Nic("mlx5_0", "0000:30/30:01.0/31:00.0", rate="100 Gb/sec (4X EDR)", lid=4))
    made = cluster().host("a", roce).host("b", roce)
    assert "RoCE" in made.family()[1]
    assert [name for name, _, _ in made.choose().config.nics] == ["bnxt_re0"]


def test_choice_of_the_link_layer_looks_at_the_poorest_rank(cluster: Any) -> None:
    def host(roce_gbps: int) -> Recorded:
        gids = machines.roce("eth0", "10.0.0.7")
        return Recorded(
            nics=[
                machines.Nic(
                    "mlx5_0", "0000:00/00:01.0/01:00.0", layer="Ethernet", rate=f"{roce_gbps} Gb/sec", gids=gids
                ),
                machines.Nic("mlx5_1", "0000:00/00:02.0/02:00.0", rate="100 Gb/sec (4X EDR)", lid=4),
            ]
        )

    made = cluster(per_host=1).host("rich", host(400)).host("poor", host(50))
    assert "InfiniBand" in made.family()[1]
    made = cluster(per_host=1).host("rich too", host(400)).host("not poor", host(200))
    assert "RoCE" in made.family()[1]


@pytest.mark.parametrize(
    "wanted, says",
    [
        ("verbs", "rank 0 (a) no active InfiniBand or RoCE port, rank 1 (a)"),
        ("efa", "on all ranks no EFA device"),
    ],
)
def test_choice_a_family_by_name_that_cannot_be(cluster: Any, wanted: str, says: str) -> None:
    made = cluster(transport=wanted).host("a", Recorded()).host("b", machines.dgx_h100())
    with pytest.raises(InvalidArgument) as caught:
        made.family()
    assert f"UCCL_EP_TRANSPORT={wanted} cannot reach all ranks" in str(caught.value) and says in str(caught.value)


def test_choice_soft_roce_on_one_host_of_two_emulated_nodes(cluster: Any) -> None:
    """What runs in a virtual machine: by itself it finds rxe0 and its IPv4 address, loopback or not."""
    for ip in ("127.0.0.1", "10.0.0.2"):
        made = cluster(per_host=4, ranks_per_node=2, transport="verbs").host(f"vm{ip}", machines.soft_roce("lo", ip))
        chosen = made.choose(rank=3)
        assert (chosen.family, chosen.reason) == ("verbs", "UCCL_EP_TRANSPORT says so")
        assert chosen.config.nics == (("rxe0", 1, 1),) and chosen.config.mtu == 0
        assert any("shared with rank(s) 0, 1, 2" in reason for _, reason in chosen.notes)
    named = cluster(per_host=2, ranks_per_node=1, transport="verbs", nics="rxe0").host("vm", machines.soft_roce())
    assert named.choose().config.nics == (("rxe0", 1, 1),)


def test_choice_loopback_addresses_do_not_reach_another_host(cluster: Any) -> None:
    made = cluster(transport="verbs").host("a", machines.soft_roce()).host("b", machines.soft_roce())
    assert made.choose().config.nics == (("rxe0", 1, 0),)  # the link-local address


def test_choice_of_nics_and_addresses_on_infiniband(cluster: Any) -> None:
    made = cluster(per_host=8).host("a", machines.dgx_h100()).host("b", machines.dgx_h100())
    for rank, name in enumerate([f"mlx5_{n}" for n in (0, 3, 4, 5, 6, 9, 10, 11)] * 2):
        chosen = made.choose(rank)
        assert chosen.config.nics == ((name, 1, -1),)  # by LID
    notes = dict(made.choose(3).notes)
    assert notes["rank 3 uses mlx5_5:1"] == "on the same PCIe switch as GPU 0000:61:00.0; no other rank uses it"
    assert "the LID is enough" in notes["address of mlx5_5:1: LID"]


def test_choice_of_addresses_on_roce(cluster: Any) -> None:
    networks = {f"ens{i}np0": [f"10.2.{i}.7/24"] for i in range(8)}
    made = cluster().host("a", machines.mi300x_thor2(), networks).host("b", machines.mi300x_thor2(), networks)
    chosen = made.choose(1)
    assert chosen.config.nics == (("bnxt_re1", 1, 3),)
    assert "not used" in dict(chosen.notes) and "bnxt_re8:1 runs at 25" in dict(chosen.notes)["not used"]


def test_choice_of_efa(cluster: Any) -> None:
    made = cluster(per_host=8).host("a", machines.p5en()).host("b", machines.p5en())
    chosen = made.choose(15)
    assert chosen.config.nics == (("rdmap162s0", 1, 0), ("rdmap163s0", 1, 0)) and chosen.config.service_level == 8
    assert cluster(service_level=5).host("c", machines.p5()).host("d", machines.p5()).choose().config.service_level == 5


@pytest.mark.parametrize(
    "recorded, per_node, asked, provider, nics",
    [
        (machines.slingshot, 0, "", "cxi", (("cxi0", 1, -1),)),
        (machines.p5en, 0, "", "efa", (("rdmap82s0", 1, 0), ("rdmap83s0", 1, 0))),
        (Recorded, 0, "", "tcp", ()),
        (Recorded, 0, "sockets", "sockets", ()),
    ],
)
def test_choice_of_libfabrics_provider(
    cluster: Any, recorded: Any, per_node: int, asked: str, provider: str, nics: Any
) -> None:
    made = cluster(transport="libfabric", provider=asked).host("a", recorded()).host("b", recorded())
    chosen = made.choose()
    assert (chosen.config.provider, chosen.config.nics) == (provider, nics)
    assert f"libfabric provider {provider}" in dict(chosen.notes)
    one_host = cluster(transport="libfabric", ranks_per_node=1).host("x", Recorded())
    assert one_host.choose().config.provider == "shm"


def test_choice_settings_are_handed_on(cluster: Any) -> None:
    values = {"queue_pairs": 3, "service_level": 2, "traffic_class": 104, "hop_limit": 7, "udp_source_port": 50000,
              "relaxed_ordering": False}  # fmt: skip
    made = cluster(**values, mtu=1024).host("a", machines.mi300x_thor2()).host("b", machines.mi300x_thor2())
    config = made.choose().config
    assert {name: getattr(config, name) for name in values} == values and config.mtu == 1024


def test_choice_mtus_that_differ_are_said(cluster: Any) -> None:
    small = machines.mi300x_thor2()
    small.mtus["ens1np0"] = 1500
    made = cluster().host("a", machines.mi300x_thor2()).host("b", small)
    chosen = made.choose()
    assert chosen.config.mtu == 0  # the transport takes the smaller of both ends
    assert dict(chosen.notes)["MTU by port"].startswith("rank 3 (b), bnxt_re1:1 has 1024, others up to 4096; each")
    made.settings = replace(made.settings, mtu=2048)
    with pytest.raises(InvalidArgument, match=r"UCCL_EP_MTU=2048 is refused: rank 3 \(b\), bnxt_re1:1 is at 1024"):
        made.choose()


def test_choice_queue_pairs_beyond_the_device(cluster: Any) -> None:
    made = cluster(proxy_threads=4, queue_pairs=8).host("a", machines.dgx_h100()).host("b", machines.dgx_h100())
    assert made.choose().config.queue_pairs == 8
    for told in made.hellos:
        for port in told.fabric["ports"]:
            port["max_queue_pairs"] = 63  # of 2 peers x 4 threads x 8
    with pytest.raises(InvalidArgument) as caught:
        made.choose()
    assert "64 queue pairs are needed on mlx5_0 of rank 0 (a)'s host, which allows 63" in str(caught.value)
    assert "lower UCCL_EP_QUEUE_PAIRS (now 8) or UCCL_EP_PROXY_THREADS (now 4)" in str(caught.value)


def test_choice_versions_must_agree(cluster: Any) -> None:
    made = cluster(per_host=1).host("a", machines.dgx_h100()).host("b", machines.dgx_h100())
    made.hellos[1].fabric["version"] = "9.9"
    with pytest.raises(SettingsMismatch, match=r"one version of uccl-ep.*rank 0 \(a\): .*rank 1 \(b\): 9.9"):
        made.choose()


def test_choice_every_rank_agrees_on_who_has_what(cluster: Any) -> None:
    made = cluster(per_host=8).host("a", machines.p5()).host("b", machines.p5())
    by_rank: Sequence[Any] = [made.choose(rank).config.nics for rank in range(16)]
    names = [name for nics in by_rank[:8] for name, _, _ in nics]
    assert len(names) == len(set(names)) == 32 and list(by_rank[:8]) == list(by_rank[8:])


def test_choice_what_stands_against_one_rank_is_not_raised_before_the_others_can_be_told(cluster: Any) -> None:
    """Only rank 1's address is a loopback one: all ranks agree on verbs, and rank 1 says later why it cannot."""
    made = cluster(per_host=1, transport="verbs").host("a", machines.soft_roce("eth0", "10.0.0.1"))
    made.host("b", machines.soft_roce("lo", "127.0.0.1"))
    made.hellos[1].fabric["ports"][0]["gids"] = [
        gid for gid in made.hellos[1].fabric["ports"][0]["gids"] if gid["index"] == 1
    ]
    choices = [choose_fabric(made.settings, made.hellos, made.topology, rank) for rank in range(2)]
    assert [c.family for c in choices] == ["verbs", "verbs"] and choices[0].checked_config().nics == (("rxe0", 1, 1),)
    with pytest.raises(InvalidArgument, match="RoCE port.*127.0.0.1.*IP address"):
        choices[1].checked_config()


def test_choice_is_explained_line_by_line() -> None:
    stream = io.StringIO()
    explain([("transport tcp", "because"), ("x", "y")], stream)
    assert stream.getvalue() == "uccl-ep: transport tcp: because\nuccl-ep: x: y\n"
