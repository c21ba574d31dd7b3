"""Which ranks share a node (reach each other by load and store), as all ranks compute it from the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uccl_ep.errors import refuse


@dataclass(frozen=True)
class Topology:
    """The nodes of a group. Nodes are numbered by their lowest rank.

    Attributes:
        node_of: node of each rank.
    """

    node_of: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return len(self.node_of)

    @property
    def num_nodes(self) -> int:
        """Nodes of the group."""
        return max(self.node_of) + 1

    def members(self, node: int) -> list[int]:
        """Ranks of a node, ascending."""
        return [rank for rank, of in enumerate(self.node_of) if of == node]

    def host_of(self, source: int, node: int) -> int:
        """The rank of `node` where rows of `source` are read: itself on its own node (kernels/layout/topology.h)."""
        if self.node_of[source] == node:
            return source
        members = self.members(node)
        return members[self.members(self.node_of[source]).index(source) % len(members)]

    @property
    def sizes(self) -> list[int]:
        """Ranks of each node."""
        return [len(self.members(node)) for node in range(self.num_nodes)]

    @property
    def fan(self) -> int:
        """Most sources of one node that one rank of another stands for (kernels/layout/topology.h)."""
        return -(-max(self.sizes) // min(self.sizes))

    @property
    def num_hosted(self) -> int:
        """Hosted slots a rank keeps for remote sources; none on a single node."""
        return self.num_nodes * self.fan if self.num_nodes > 1 else 0


def split_into_nodes(hosts: Sequence[str], ranks_per_node: int, max_ranks_per_node: int) -> Topology:
    """Nodes of a group whose rank r runs on hosts[r].

    Ranks of one host form one node, or nodes of `ranks_per_node` in rank order when that is not 0. A host with more
    ranks than a node may have is split into equal nodes.

    Raises:
        InvalidArgument: ranks_per_node is negative or above max_ranks_per_node.
    """
    if not 0 <= ranks_per_node <= max_ranks_per_node:
        refuse("UCCL_EP_RANKS_PER_NODE", ranks_per_node, f"0 to {max_ranks_per_node}", "0 means one node a host.")
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    nodes: list[list[int]] = []
    for ranks in by_host.values():
        size = ranks_per_node or -(-len(ranks) // -(-len(ranks) // max_ranks_per_node))
        nodes += [ranks[i : i + size] for i in range(0, len(ranks), size)]
    nodes.sort()
    node_of = [0] * len(hosts)
    for node, ranks in enumerate(nodes):
        for rank in ranks:
            node_of[rank] = node
    return Topology(tuple(node_of))
