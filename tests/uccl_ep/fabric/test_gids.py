"""The address rule: IPv4 RoCE v2 first, RoCE v1 never unasked, LID on InfiniBand; always with the reason."""

from __future__ import annotations

import random

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import V1, V2, Gid, mapped
from uccl_ep import InvalidArgument
from uccl_ep.fabric import sysfs
from uccl_ep.fabric.gids import LID, GidEntry, Wanted, choose_gid, entries_of, wanted_gid
from uccl_ep.fabric.sysfs import read_machine
from uccl_ep.settings import Settings

GLOBAL = "2001:0db8:0000:0001:0000:0000:0000:0007"
LOCAL = "fe80:0000:0000:0000:0a00:27ff:fe00:0007"


def entry(index: int, address: str, kind: str = "v2", network: str = "") -> GidEntry:
    return GidEntry(index, kind, mapped(address) if "." in address else address, network)


def roce(table: list[GidEntry], peers: list[list[GidEntry]] | None = None, wanted: int = -1, one_host: bool = False):  # type: ignore[no-untyped-def]
    return choose_gid("ethernet", 0, table, peers or [], Wanted(wanted), one_host)


TABLE = [entry(0, LOCAL, "v1"), entry(1, LOCAL), entry(2, "10.0.0.7", "v1"), entry(3, "10.0.0.7"), entry(5, GLOBAL)]


def test_gids_ipv4_comes_first_wherever_it_is() -> None:
    for seed in range(20):
        shuffled = random.Random(seed).sample(TABLE, len(TABLE))
        choice = roce(shuffled)
        assert (choice.index, choice.reason) == (3, "RoCE v2, IPv4 10.0.0.7")


@pytest.mark.parametrize("without, index, words", [((3,), 5, "IPv6 2001:db8"), ((3, 5), 1, "only one network segment")])
def test_gids_then_global_then_link_local(without: tuple[int, ...], index: int, words: str) -> None:
    choice = roce([e for e in TABLE if e.index not in without])
    assert choice.index == index and words in choice.reason


def test_gids_roce_v1_is_never_chosen_and_can_be_asked_for() -> None:
    first_version = [e for e in TABLE if e.kind == "v1"]
    with pytest.raises(
        InvalidArgument, match="RoCE port must be .*; got 0: RoCE v1 fe80.*; 2: .* 10.0.0.7.*IP address"
    ):
        roce(first_version)
    assert roce(TABLE, wanted=2).reason == "UCCL_EP_GID_INDEX asks for it (RoCE v1 10.0.0.7)"
    with pytest.raises(InvalidArgument, match="UCCL_EP_GID_INDEX must be .*3: RoCE v2, IPv4 10.0.0.7.*; got 4."):
        roce(TABLE, wanted=4)
    with pytest.raises(InvalidArgument, match="no entry"):
        roce([])


def test_gids_the_peers_network_decides_between_equals() -> None:
    table = [entry(3, "10.0.0.7", network="10.0.0.0/24"), entry(7, "192.168.5.7", network="192.168.5.0/24")]
    peers = [[entry(3, "192.168.5.8", network="192.168.5.0/24")], [entry(1, "192.168.5.9", network="192.168.5.0/24")]]
    choice = roce(table, peers)
    assert choice.index == 7 and "in 192.168.5.0/24 like all peers" in choice.reason
    assert roce(table).index == 3 and "the first of 2" in roce(table).reason
    elsewhere = [*peers, [entry(3, "172.16.0.1", network="172.16.0.0/16")]]
    assert roce(table, elsewhere).index == 3  # routed: no network is everybody's
    assert roce(table, [*peers, [entry(3, "192.168.5.9")]]).index == 7  # one peer does not know its network


def test_gids_loopback_only_within_a_host() -> None:
    table = [entry(0, LOCAL), entry(1, "127.0.0.1")]
    assert roce(table, one_host=True).index == 1
    assert roce(table).index == 0
    with pytest.raises(InvalidArgument, match="127.0.0.1"):
        roce(table[1:])


def test_gids_ipv4_link_local_is_no_better_than_ipv6s() -> None:
    assert roce([entry(1, "169.254.3.4"), entry(2, GLOBAL)]).index == 2


def infiniband(lid: int, subnets: list[int], wanted: int = -1, own: int = 0xFE80 << 48):  # type: ignore[no-untyped-def]
    def gids(subnet: int) -> list[GidEntry]:
        address = sysfs.ipaddress.IPv6Address(subnet << 64 | 0x1234)
        return [GidEntry(0, "v1", str(address))]

    return choose_gid("infiniband", lid, gids(own) if own else [], [gids(s) for s in subnets], Wanted(wanted), False)


def test_gids_infiniband_by_lid_or_routed() -> None:
    default, other = 0xFE80 << 48, 0xFE80 << 48 | 0x77
    assert infiniband(17, [default, default]).index == LID
    assert "the LID is enough" in infiniband(17, []).reason
    routed = infiniband(17, [default, other])
    assert routed.index == 0 and "another subnet" in routed.reason
    assert infiniband(0, [default]).index == 0 and "no LID" in infiniband(0, [default]).reason
    assert infiniband(17, [default], wanted=0).index == 0
    with pytest.raises(InvalidArgument, match="InfiniBand port must be .*subnet manager.*; got no LID and no GID."):
        infiniband(0, [], own=0)


def test_gids_efa_and_slingshot_have_nothing_to_choose() -> None:
    assert choose_gid("efa", 0, [entry(0, LOCAL, "v1")], [], Wanted(), False).index == 0
    assert choose_gid("efa", 0, [], [], Wanted(3), False).index == 3
    assert choose_gid("slingshot", 0, [], [], Wanted(), False).index == LID


def test_gids_other_libraries_mean_roce() -> None:
    nccl = Settings.from_environment({"NCCL_IB_GID_INDEX": "3"})
    assert wanted_gid(nccl, "ethernet") == Wanted(3, "NCCL_IB_GID_INDEX")
    assert wanted_gid(nccl, "infiniband") == wanted_gid(nccl, "efa") == Wanted()
    uccl = Settings.from_environment({"UCCL_IB_GID_INDEX": "0", "NCCL_IB_GID_INDEX": "3"})
    assert wanted_gid(uccl, "efa") == Wanted(0, "UCCL_IB_GID_INDEX") and wanted_gid(uccl, "infiniband") == Wanted()
    assert wanted_gid(Settings(gid_index=2), "infiniband") == Wanted(2, "UCCL_EP_GID_INDEX")
    with pytest.raises(
        InvalidArgument, match="NCCL_IB_GID_INDEX must be .*; got 4. UCCL_EP_GID_INDEX=-1 chooses by rule"
    ):
        choose_gid("ethernet", 0, TABLE, [], Wanted(4, "NCCL_IB_GID_INDEX"), False)


def test_gids_networks_come_from_the_interface() -> None:
    others = [Gid(6, mapped("10.1.0.7"), V2, "eth0.100"), Gid(7, GLOBAL, V2, "eth0"), Gid(8, LOCAL, V1, "eth9")]
    made = machines.Recorded(
        nics=[machines.Nic("mlx5_0", layer="Ethernet", gids=machines.roce("eth0", "10.0.0.7", others))]
    )
    (nic,) = read_machine(made.tree()).nics
    networks = {"eth0": ["10.0.0.7/22", "2001:db8:0:1::7/64"], "eth0.100": ["10.1.0.8/24"]}
    table = entries_of(nic.ports[0].gids, networks)
    assert [(e.index, e.network) for e in table] == [
        (3, "10.0.0.0/22"), (6, ""), (7, "2001:db8:0:1::/64"), (1, ""), (0, ""), (2, "10.0.0.0/22"), (8, ""),
    ]  # fmt: skip
    assert len(entries_of([sysfs.Gid(i, GLOBAL, "v2") for i in range(100)], {})) == 32
