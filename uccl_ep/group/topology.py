"""Which ranks share a node (reach each other by load and store), as all ranks compute it from the same facts.

A node is the ranks of a host, or of several hosts whose GPUs share an NVLink domain. Kernels of such a node reach each
other's GPU memory, but the words that a proxy writes lie in its host's memory. So rows of other nodes land once for
each of the node's hosts: there a cell is a node's ranks of one host.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from uccl_ep._native import NO_NODE as NO_NODE
from uccl_ep._native import GroupShape, LandingRanks
from uccl_ep.errors import refuse


@dataclass(frozen=True)
class Topology:
    """The nodes of a group, and their cells (kernels/layout/topology.h). Both are numbered by their lowest rank.

    Attributes:
        node_of: node of each rank, NO_NODE for a rank that is absent.
        apart: with several nodes, each rank is a cell of its own.
        host_of: a number for each rank's host, where some node spans several. Empty: none does, and a cell is a node.
        places: node of each rank, also of those absent ones whose place is kept: nodes, cells and memory are numbered
            and laid out as if they were there, so that they may come and go. Empty: none is kept.
    """

    node_of: tuple[int, ...]
    apart: bool = False
    host_of: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @cached_property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return len(self.node_of)

    @cached_property
    def num_nodes(self) -> int:
        """Nodes of the group."""
        return max(node for node in self.placed if node != NO_NODE) + 1

    @property
    def placed(self) -> tuple[int, ...]:
        """Node of each rank as kernels see it: NO_NODE for one that has no place."""
        return self.places or self.node_of

    def mates(self, rank: int) -> list[int]:
        """The numbers that have a place in a rank's node, ascending: as kernels index them."""
        return [mate for mate, of in enumerate(self.placed) if of == self.node_of[rank]]

    def members(self, node: int) -> list[int]:
        """Ranks of a node, ascending; of NO_NODE those that are absent."""
        return [rank for rank, of in enumerate(self.node_of) if of == node]

    def abroad(self, rank: int) -> list[int]:
        """Ranks of this rank's node that are on other hosts, ascending."""
        members = self.members(self.node_of[rank])
        return [peer for peer in members if self.host_of and self.host_of[peer] != self.host_of[rank]]

    def unreached(self, rank: int) -> list[int]:
        """Ranks that this rank's proxy never writes to, ascending: the others of its node, and the absent."""
        own = self.node_of[rank]
        return [peer for peer, of in enumerate(self.node_of) if peer != rank and of in (own, NO_NODE)]

    @property
    def sizes(self) -> list[int]:
        """Places of each node, which its ranks have."""
        return [self.placed.count(node) for node in range(self.num_nodes)]

    @cached_property
    def cell_of(self) -> tuple[int, ...]:
        """Cell of each rank, NO_NODE for a rank that has no place."""
        if self.num_nodes == 1 or not (self.apart or self.host_of):
            return self.placed
        place_of = range(self.num_ranks) if self.apart else list(zip(self.placed, self.host_of, strict=True))
        present = [place for place, node in zip(place_of, self.placed, strict=True) if node != NO_NODE]
        number = {place: cell for cell, place in enumerate(dict.fromkeys(present))}
        return tuple(number.get(place, NO_NODE) for place in place_of)

    @property
    def num_cells(self) -> int:
        """Cells of the group."""
        return self.shape.num_cells

    @property
    def cells_are(self) -> str:
        """What the cells of other nodes are, for people."""
        return "ranks" if self.apart else "hosts" if self.host_of else "nodes"

    def read_at(self, source: int, reader: int) -> int:
        """The rank in whose memory `reader` finds the rows of `source`; both are present."""
        return self.landing_ranks.of_source(source)[self.cell_of[reader]]

    @cached_property
    def landing_ranks(self) -> LandingRanks:
        """Which rank of a cell has the rows of a source, as the kernels see it."""
        return LandingRanks(self.placed, self.cell_of)

    @cached_property
    def shape(self) -> GroupShape:
        """What this numbering fixes for kernels and memory."""
        return GroupShape.of(self.placed, self.cell_of)

    @property
    def num_landing_slots(self) -> int:
        """Places a rank keeps for remote sources' rows; none on a single node."""
        return self.shape.num_landing_slots

    def without(self, absent: Collection[int]) -> Topology:
        """The same nodes with only the other ranks; nodes that lost all ranks are gone, the rest numbered anew.

        Raises:
            InvalidArgument: nobody would be left.
        """
        left = [node for rank, node in enumerate(self.node_of) if rank not in absent and node != NO_NODE]
        if not left:
            refuse("absent", sorted(absent), f"fewer than all {self.num_ranks} ranks")
        number = {node: i for i, node in enumerate(dict.fromkeys(left))}
        nodes = (NO_NODE if rank in absent else number.get(node, NO_NODE) for rank, node in enumerate(self.node_of))
        return Topology(tuple(nodes), self.apart, self.host_of)

    def vacated(self, absent: Collection[int]) -> Topology:
        """The same nodes and numbers, of which those of `absent` ranks are kept.

        Raises:
            InvalidArgument: nobody would be left.
        """
        self.without(absent)
        nodes = (NO_NODE if rank in absent else node for rank, node in enumerate(self.node_of))
        return replace(self, node_of=tuple(nodes), places=self.node_of)


def split_into_nodes(
    hosts: Sequence[str], ranks_per_node: int, max_ranks_per_node: int, domains: Sequence[str] = ()
) -> Topology:
    """Nodes of a group whose rank r runs on hosts[r].

    Ranks of one host, or of one NVLink domain, form one node, or nodes of `ranks_per_node` in rank order when that is
    not 0. More ranks than a node may have are split into equal nodes.

    Args:
        domains: the NVLink domain of each rank, "" for a rank that is in none. Empty: nobody is.

    Raises:
        InvalidArgument: ranks_per_node is negative or above max_ranks_per_node.
    """
    if not 0 <= ranks_per_node <= max_ranks_per_node:
        refuse("UCCL_EP_RANKS_PER_NODE", ranks_per_node, f"0 to {max_ranks_per_node}", "0 means one node a host.")
    together: dict[tuple[str, str], list[int]] = {}
    for rank, host in enumerate(hosts):
        domain = domains[rank] if domains else ""
        together.setdefault((domain, "") if domain else ("", host), []).append(rank)
    nodes: list[list[int]] = []
    for ranks in together.values():
        size = ranks_per_node or -(-len(ranks) // -(-len(ranks) // max_ranks_per_node))
        nodes += [ranks[i : i + size] for i in range(0, len(ranks), size)]
    nodes.sort()
    node_of = [0] * len(hosts)
    for node, ranks in enumerate(nodes):
        for rank in ranks:
            node_of[rank] = node
    spans = any(len({hosts[rank] for rank in ranks}) > 1 for ranks in nodes)
    number = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    return Topology(tuple(node_of), host_of=tuple(number[host] for host in hosts) if spans else ())
