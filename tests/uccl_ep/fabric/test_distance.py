"""Distance classes on recorded machines, and their order."""

from __future__ import annotations

import itertools

import pytest

from tests.uccl_ep.fabric import machines
from uccl_ep.fabric.distance import Distance, numa_distance, pci_distance
from uccl_ep.fabric.sysfs import Machine, PciFunction, read_machine


def between(machine: Machine, gpu: int, nic: str) -> tuple[Distance, int]:
    found = machine.nic(nic)
    assert found is not None
    return pci_distance(machine.gpus[gpu], found.pci)


def test_distance_on_a_dgx() -> None:
    machine = read_machine(machines.dgx_h100().tree())
    assert between(machine, 0, "mlx5_0") == (Distance.SAME_SWITCH, 3)  # down port, up port, down port
    assert between(machine, 0, "mlx5_3") == (Distance.SAME_NUMA_NODE, 0)
    assert between(machine, 0, "mlx5_6") == (Distance.ACROSS_SOCKETS, 0)
    assert between(machine, 7, "mlx5_11")[0] == Distance.SAME_SWITCH


def test_distance_behind_the_cards_own_bridges() -> None:
    machine = read_machine(machines.mi300x_thor2().tree())
    assert between(machine, 0, "bnxt_re0")[0] == Distance.SAME_SWITCH
    assert between(machine, 0, "bnxt_re1")[0] == Distance.SAME_NUMA_NODE


def test_distance_on_a_superchip_is_by_numa_node() -> None:
    machine = read_machine(machines.slingshot().tree())
    assert between(machine, 2, "cxi2")[0] == Distance.SAME_NUMA_NODE
    assert between(machine, 2, "cxi1")[0] == Distance.ACROSS_SOCKETS


def function(chain: str, numa: int = -1) -> PciFunction:
    parts = tuple(chain.split())
    return PciFunction(parts[-1], parts, numa)


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ("h r u d1 a", "h r u d2 b", (Distance.SAME_SWITCH, 3)),
        ("h r u d1 v e1 a", "h r u d2 b", (Distance.SAME_SWITCH, 5)),  # another switch below
        ("h r u d1 v e1 a", "h r u d1 v e2 b", (Distance.SAME_SWITCH, 3)),
        ("h r u d1 a", "h r u d1 b", (Distance.SAME_SWITCH, 1)),  # functions of one card
        ("h r a", "h r b", (Distance.SAME_ROOT_PORT, 1)),
        ("h r1 a", "h r2 b", (Distance.SAME_HOST_BRIDGE, 0)),
        ("h a", "h b", (Distance.SAME_HOST_BRIDGE, 0)),  # a virtual machine that shows no bridges
        ("h1 a", "h2 b", (Distance.UNKNOWN, 0)),
    ],
)
def test_distance_classes(one: str, other: str, expected: tuple[Distance, int]) -> None:
    assert pci_distance(function(one), function(other)) == expected
    assert pci_distance(function(other), function(one)) == expected


@pytest.mark.parametrize("numa, expected", [(0, Distance.SAME_NUMA_NODE), (1, Distance.ACROSS_SOCKETS)])
def test_distance_from_a_numa_node(numa: int, expected: Distance) -> None:
    assert numa_distance(0, function("h a", numa)) == expected
    assert pci_distance(function("h1 a", 0), function("h2 b", numa)) == (expected, 0)
    assert numa_distance(-1, function("h a", numa)) == numa_distance(0, None) == Distance.UNKNOWN
    assert pci_distance(None, function("h a", numa)) == (Distance.UNKNOWN, 0)


def test_distance_every_class_has_words() -> None:
    words = [d.words for d in Distance]
    assert len(set(words)) == len(words) and all(words)
    assert all(a < b for a, b in itertools.pairwise(Distance))
