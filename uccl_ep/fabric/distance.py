"""How far a NIC is from where a rank's rows lie: a GPU, or the memory of a NUMA node."""

from __future__ import annotations

from enum import IntEnum

from uccl_ep.fabric.sysfs import UNKNOWN_NUMA, PciFunction

_ROOT_PORT = 2  # of a chain: the host bridge, the root port, then switches


class Distance(IntEnum):
    """Classes in the order of preference; each is a different piece of hardware that every byte has to pass."""

    SAME_SWITCH = 1
    SAME_ROOT_PORT = 2
    SAME_HOST_BRIDGE = 3
    SAME_NUMA_NODE = 4
    ACROSS_SOCKETS = 5
    UNKNOWN = 6

    @property
    def words(self) -> str:
        """For people."""
        return {
            Distance.SAME_SWITCH: "on the same PCIe switch",
            Distance.SAME_ROOT_PORT: "under the same PCIe root port",
            Distance.SAME_HOST_BRIDGE: "under the same PCIe host bridge",
            Distance.SAME_NUMA_NODE: "on the same NUMA node",
            Distance.ACROSS_SOCKETS: "across sockets",
            Distance.UNKNOWN: "at an unknown distance",
        }[self]


def pci_distance(one: PciFunction | None, other: PciFunction | None) -> tuple[Distance, int]:
    """(class, bridges to pass) between two PCI functions. Within a class fewer bridges are nearer; where the way leads
    through the CPU they say nothing, and are 0."""
    if one is None or other is None:
        return Distance.UNKNOWN, 0
    shared = 0
    for a, b in zip(one.chain[:-1], other.chain[:-1], strict=False):
        if a != b:
            break
        shared += 1
    hops = len(one.chain) + len(other.chain) - 2 * shared - 1
    if shared > _ROOT_PORT:
        return Distance.SAME_SWITCH, hops
    if shared == _ROOT_PORT:
        return Distance.SAME_ROOT_PORT, hops
    if shared == 1:
        return Distance.SAME_HOST_BRIDGE, 0
    return numa_distance(one.numa_node, other), 0


def numa_distance(numa_node: int, nic: PciFunction | None) -> Distance:
    """Between a NUMA node and a NIC."""
    if nic is None or UNKNOWN_NUMA in (numa_node, nic.numa_node):
        return Distance.UNKNOWN
    return Distance.SAME_NUMA_NODE if numa_node == nic.numa_node else Distance.ACROSS_SOCKETS
