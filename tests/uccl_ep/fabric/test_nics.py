"""Which rank uses which port: on recorded machines, and on random ones, where the rules must hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from uccl_ep import InvalidArgument
from uccl_ep.fabric.distance import Distance, numa_distance, pci_distance
from uccl_ep.fabric.nics import (
    NicPort,
    Place,
    Selection,
    check_selection,
    nearest,
    parse_selection,
    share_out,
    without_slow,
)
from uccl_ep.fabric.sysfs import read_machine


def places(recorded: Recorded, kind: str = "", gpus: bool = True, ranks: int = 8) -> list[Place]:
    """Ranks on the machine's GPUs, in their order, or on its NUMA nodes in turn."""
    machine = read_machine(recorded.tree())
    made = []
    for rank in range(ranks):
        gpu = machine.gpus[rank % len(machine.gpus)] if gpus else None
        numa = rank % len(machine.cpus_of_node)
        ports = []
        for nic in machine.nics:
            for port in nic.ports:
                distance = pci_distance(gpu, nic.pci) if gpu else (numa_distance(numa, nic.pci), 0)
                layer = "efa" if nic.kind == "efa" else port.link_layer.lower()
                address = nic.pci.address if nic.pci else ""
                ports.append(
                    NicPort(nic.name, port.number, layer, port.rate_gbps, 0, int(distance[0]), distance[1], address)
                )
        kept, _ = without_slow([port for port in ports if kind in ("", port.kind)])
        made.append(Place(rank, f"GPU {gpu.address}" if gpu else f"NUMA node {numa}", tuple(kept)))
    return made


def names(shares: dict[int, object]) -> list[list[str]]:
    return [[port.name for port in shares[rank].ports] for rank in sorted(shares)]  # type: ignore[attr-defined]


def test_nics_p5_each_gpu_has_its_four() -> None:
    shares = share_out(places(machines.p5(), "efa"))
    assert names(shares)[0] == ["rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0"]
    assert names(shares)[7] == ["rdmap198s0", "rdmap199s0", "rdmap200s0", "rdmap201s0"]
    assert shares[0].reason == "on the same PCIe switch as GPU 0000:53:00.0; no other rank uses them"


def test_nics_p5en_two_gpus_split_a_switch() -> None:
    shares = names(share_out(places(machines.p5en(), "efa")))
    assert shares[6:] == [["rdmap160s0", "rdmap161s0"], ["rdmap162s0", "rdmap163s0"]]
    assert len({name for some in shares for name in some}) == 16


def test_nics_p5en_alone_on_a_switch_a_rank_takes_all_of_it() -> None:
    shares = names(share_out(places(machines.p5en(), "efa", ranks=1)))
    assert shares == [[f"rdmap{0x52 + n}s0" for n in range(4)]]


def test_nics_p6_b200_leaves_nvlinks_own_ports_alone() -> None:
    shares = names(share_out(places(machines.p6_b200(), "efa")))
    assert shares[6:] == [["rdmap132s0"], ["rdmap133s0"]] and len({n for s in shares for n in s}) == 8


def test_nics_dgx_h100_pairs_as_nvidia_documents_them() -> None:
    shares = share_out(places(machines.dgx_h100(), "infiniband"))
    assert names(shares) == [[f"mlx5_{n}"] for n in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert shares[3].reason == "on the same PCIe switch as GPU 0000:61:00.0; no other rank uses it"


def test_nics_more_ranks_than_gpus_share() -> None:
    shares = share_out(places(machines.dgx_h100(), "infiniband", ranks=16))
    assert names(shares)[:8] == names(shares)[8:]
    assert "shared with rank(s) 11" in shares[3].reason


def test_nics_mi300x_each_has_its_own_and_the_slow_one_is_left() -> None:
    shares = names(share_out(places(machines.mi300x_thor2(), "ethernet")))
    assert shares == [[f"bnxt_re{i}"] for i in range(8)]


def test_nics_ranks_on_cpus_split_their_socket() -> None:
    shares = share_out(places(machines.dgx_h100(), "infiniband", gpus=False, ranks=4))
    assert names(shares) == [["mlx5_0", "mlx5_3"], ["mlx5_6", "mlx5_9"], ["mlx5_4", "mlx5_5"], ["mlx5_10", "mlx5_11"]]
    assert shares[0].reason.startswith("on the same NUMA node as NUMA node 0")


def test_nics_soft_roce_is_shared_by_all() -> None:
    shares = share_out(places(machines.soft_roce(), gpus=False, ranks=4))
    assert names(shares) == [["rxe0"]] * 4
    assert (
        "at an unknown distance from NUMA node 0, and nothing is nearer; shared with rank(s) 1, 2, 3"
        in shares[0].reason
    )


def port(name: str, distance: Distance = Distance.SAME_SWITCH, pci: str = "", rate: float = 400.0) -> NicPort:
    return NicPort(name, 1, "ethernet", rate, 0, int(distance), 0, pci or name)


def test_nics_none_near_goes_across_sockets() -> None:
    far = port("a", Distance.ACROSS_SOCKETS)
    shares = share_out([Place(0, "GPU x", (far,)), Place(1, "GPU y", (far,))])
    assert names(shares) == [["a"], ["a"]] and "across sockets from GPU x, and nothing is nearer" in shares[0].reason


def test_nics_a_rank_without_any_says_so() -> None:
    shares = share_out([Place(0, "the CPU", ()), Place(1, "the CPU", (port("a"),))])
    assert names(shares) == [[], ["a"]] and shares[0].reason == "the CPU: this rank sees no usable NIC"


def test_nics_what_is_left_over_goes_to_who_has_fewest() -> None:
    three = tuple(port(name) for name in "abc")
    shares = share_out([Place(0, "the CPU", three), Place(1, "the CPU", three)])
    assert sorted(map(len, names(shares))) == [1, 2] and sorted(n for s in names(shares) for n in s) == ["a", "b", "c"]


def test_nics_a_rank_with_a_single_near_port_is_served_first() -> None:
    """Rank 0 could use a or b, rank 1 only b: neither has to share."""
    shares = share_out([Place(0, "GPU x", (port("b"), port("c", pci="z"))), Place(1, "GPU y", (port("b"),))])
    assert names(shares) == [["c"], ["b"]]


@st.composite
def hosts(draw: st.DrawFn) -> list[Place]:
    """Any machine: every rank has a distance to every port."""
    ports = [port(f"n{i:02d}", pci=f"{i:02d}") for i in range(draw(st.integers(0, 12)))]
    made = []
    for rank in range(draw(st.integers(1, 12))):
        seen = [replace(p, distance=draw(st.integers(1, 6)), hops=draw(st.integers(0, 2))) for p in ports]
        made.append(Place(rank, f"GPU {draw(st.integers(0, 12)):02d}", tuple(seen)))
    return made


@given(hosts(), st.randoms())
def test_nics_rules_hold_on_any_machine(host: list[Place], random: object) -> None:
    shares = share_out(host)
    near = {place.rank: {p.key for p in nearest(place.ports)} for place in host}
    for place in host:
        got = [p.key for p in shares[place.rank].ports]
        assert set(got) <= near[place.rank] and len(got) == len(set(got))  # only the nearest, none twice
        assert bool(got) == bool(place.ports)
    used = {p.key for share in shares.values() for p in share.ports}
    assert used == set().union(*near.values())  # none that is near somebody stays unused
    shuffled = list(host)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert share_out(shuffled) == shares  # every rank computes the same


@given(st.integers(1, 16), st.integers(1, 16))
def test_nics_alike_ranks_have_alike_loads(num_ranks: int, num_ports: int) -> None:
    ports = tuple(port(f"n{i:02d}") for i in range(num_ports))
    shares = share_out([Place(rank, "the CPU", ports) for rank in range(num_ranks)])
    load = Counter(p.name for share in shares.values() for p in share.ports)
    assert max(load.values()) - min(load.values()) <= 1 and len(load) == num_ports
    counts = [len(share.ports) for share in shares.values()]
    assert max(counts) - min(counts) <= 1


def test_nics_slow_ports_are_left_out_with_the_reason() -> None:
    kept, dropped = without_slow([port("a"), port("b", rate=200.0), port("c", rate=100.0), port("d", rate=0.0)])
    assert [p.name for p in kept] == ["a", "b", "d"]
    assert dropped == ["c:1 runs at 100 Gb/s where others have 400"]
    assert without_slow([]) == ([], [])


@pytest.mark.parametrize(
    "text, used, unused",
    [
        ("", [("x", 1)], []),
        ("mlx5_0", [("mlx5_0", 1), ("mlx5_0", 2)], [("mlx5_00", 1), ("mlx5_1", 1)]),
        ("mlx5_0:2,mlx5_1", [("mlx5_0", 2), ("mlx5_1", 1)], [("mlx5_0", 1)]),
        ("^mlx5_6,^mlx5_7:1", [("mlx5_0", 1), ("mlx5_7", 2)], [("mlx5_6", 1), ("mlx5_6", 2), ("mlx5_7", 1)]),
        ("rdmap*", [("rdmap79s0", 1)], [("ibp171s0f0", 1)]),
        ("^ibp*", [("rdmap79s0", 1)], [("ibp171s0f0", 1)]),
    ],
)
def test_nics_selection(text: str, used: list[tuple[str, int]], unused: list[tuple[str, int]]) -> None:
    selection = parse_selection(text)
    assert all(selection.allows(*key) for key in used) and not any(selection.allows(*key) for key in unused)
    assert selection.names_some == (bool(text) and "^" not in text)


@pytest.mark.parametrize("text", ["a,^b", "a:0", "a:", ":1", "^", "a:x"])
def test_nics_selection_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="UCCL_EP_NICS"):
        parse_selection(text)


def test_nics_names_that_this_host_lacks() -> None:
    present = [("mlx5_0", 1), ("mlx5_1", 1)]
    check_selection(parse_selection("mlx5_0:1,mlx5_*"), present)
    check_selection(Selection(), [])
    with pytest.raises(InvalidArgument, match="UCCL_EP_NICS must be .*mlx5_0:1, mlx5_1:1; got 'mlx5_0:2'."):
        check_selection(parse_selection("mlx5_1,mlx5_0:2"), present)
    with pytest.raises(InvalidArgument, match="none at all"):
        check_selection(parse_selection("^rxe0"), [])
