"""Where a rank's proxy threads run, and where host memory that its NICs use lies: at the NICs' NUMA node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uccl_ep.fabric.sysfs import UNKNOWN_NUMA, Machine


@dataclass(frozen=True)
class Nearness:
    """What is near a rank's NICs.

    Attributes:
        node: NUMA node for memory; UNKNOWN_NUMA: wherever it is first used.
        cpus: for proxy threads; empty: wherever the process may run.
        reason: for people; empty when nothing was chosen.
    """

    node: int = UNKNOWN_NUMA
    cpus: tuple[int, ...] = ()
    reason: str = ""


def near_nics(nics: Sequence[str], machine: Machine, allowed: frozenset[int]) -> Nearness:
    """What is near these NICs, of which the first is the nearest to the rank.

    Args:
        allowed: CPUs that this process may run on.
    """
    found = next((nic for nic in map(machine.nic, nics) if nic is not None and nic.pci is not None), None)
    if found is None or found.pci is None or len(machine.cpus_of_node) < 2:
        return Nearness()
    node = found.pci.numa_node
    own = dict(machine.cpus_of_node).get(node, frozenset())
    if node == UNKNOWN_NUMA or not own:
        return Nearness()
    cpus = own & allowed
    if not cpus:
        return Nearness(node, (), f"{found.name} is there; proxy threads may not run there")
    return Nearness(node, () if allowed <= own else tuple(sorted(cpus)), f"{found.name} is there")
