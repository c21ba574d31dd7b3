"""Proxy threads and memory at the NICs' NUMA node, where the machine says which that is."""

from __future__ import annotations

import pytest

from uccl_ep.fabric.nearness import Nearness, near_nics
from uccl_ep.fabric.sysfs import UNKNOWN_NUMA, Machine, Nic, PciFunction

EIGHT = frozenset(range(8))


def machine(nodes: int = 2, numa_node: int = 1) -> Machine:
    function = PciFunction("0000:81:00.0", ("pci0000:80", "0000:81:00.0"), numa_node)
    nics = Nic("mlx5_0", "verbs", "mlx5_core", function), Nic("rxe0", "verbs")
    cpus = [frozenset(range(4)), frozenset(range(4, 8))]
    return Machine(nics=nics, cpus_of_node=tuple(enumerate(cpus[:nodes])))


def test_threads_and_memory_are_at_the_node_of_the_nearest_nic() -> None:
    near = near_nics(["mlx5_0"], machine(), EIGHT)
    assert (near.node, near.cpus) == (1, (4, 5, 6, 7)) and "mlx5_0" in near.reason
    assert near_nics(["rxe0", "mlx5_0"], machine(), EIGHT) == near  # software is nowhere


def test_a_process_that_is_bound_keeps_its_cpus() -> None:
    assert near_nics(["mlx5_0"], machine(), frozenset({4, 5})).cpus == ()  # they are there already
    assert near_nics(["mlx5_0"], machine(), frozenset({3, 4, 5})).cpus == (4, 5)
    elsewhere = near_nics(["mlx5_0"], machine(), frozenset({0, 1}))
    assert (elsewhere.node, elsewhere.cpus) == (1, ()) and "may not run there" in elsewhere.reason


@pytest.mark.parametrize(
    ("nics", "known"),
    [
        ([], machine()),
        (["rxe0"], machine()),
        (["mlx5_9"], machine()),
        (["mlx5_0"], machine(nodes=1, numa_node=0)),
        (["mlx5_0"], machine(numa_node=UNKNOWN_NUMA)),
        (["mlx5_0"], machine(numa_node=5)),
    ],
)
def test_nothing_is_chosen_where_nothing_is_known(nics: list[str], known: Machine) -> None:
    assert near_nics(nics, known, EIGHT) == Nearness()
