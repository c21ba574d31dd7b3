"""Which ranks are a node, which network joins the nodes, and where rows lie: chosen together, from facts that all have.

Ranks of several hosts are a node only where their rows lie in GPU memory: nothing else of a host is reached from a GPU
of another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from uccl_ep._native import MAX_RANKS_PER_NODE
from uccl_ep.fabric.choice import FabricChoice, choose_fabric
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology, split_into_nodes
from uccl_ep.layout.placement import Placement, choose_placement
from uccl_ep.settings import Settings

_OF_A_HOST = "ranks of a host are a node"


@dataclass(frozen=True)
class Whole:
    """All ranks of the original group, and what its Buffer was asked for.

    Attributes:
        hosts: identity of each rank's host. domains: of its NVLink domain, "" for none; may be empty.
        absent: ranks that take no part.
        apart: enable_shrink.
        rack_by: who asks that hosts which share an NVLink domain are one node; empty: nobody.
        keeps_places: absent ranks may come, and places are kept for them, where each rank is apart.
    """

    hosts: Sequence[str]
    domains: Sequence[str] = ()
    absent: Collection[int] = frozenset()
    apart: bool = False
    rack_by: str = ""
    keeps_places: bool = False

    def shared_domains(self) -> list[str]:
        """For each rank the domain that all ranks of its host are in which take part; "" where they are not in one."""
        of_host: dict[str, set[str]] = {}
        for rank, (host, domain) in enumerate(zip(self.hosts, self.domains, strict=False)):
            if rank not in self.absent:
                of_host.setdefault(host, set()).add(domain)
        return [of.pop() if len(of := set(of_host.get(host, ()))) == 1 else "" for host in self.hosts]

    def split(self, settings: Settings, domains: Sequence[str] = ()) -> Topology:
        """Nodes of the ranks that take part."""
        nodes = replace(self.entire(settings, domains), apart=self.apart)
        return nodes.vacated(self.absent) if self._keeps else nodes.without(self.absent)

    def entire(self, settings: Settings, domains: Sequence[str] = ()) -> Topology:
        """Nodes of all ranks, a cell a node."""
        hosts = self._hosts_of_places() if self._keeps else self.hosts
        return split_into_nodes(hosts, settings.ranks_per_node, MAX_RANKS_PER_NODE, domains)

    @property
    def _keeps(self) -> bool:
        return self.keeps_places and self.apart and bool(self.absent)

    def _hosts_of_places(self) -> list[str]:
        """Each rank's host, of one that has not said where it is the host of the rank with the nearest number."""
        known = [rank for rank in range(len(self.hosts)) if rank not in self.absent]
        return [self.hosts[min(known, key=lambda near: abs(near - rank))] for rank in range(len(self.hosts))]


@dataclass(frozen=True)
class Arrangement:
    """What was chosen.

    Attributes:
        fabric: as one rank has it.
        nodes_reason: why nodes are what they are. nodes_over: what else there was, one line each.
    """

    topology: Topology
    fabric: FabricChoice
    placement: Placement
    nodes_reason: str
    nodes_over: tuple[str, ...] = ()


def arrange(settings: Settings, hellos: Sequence[Hello], whole: Whole, rank: int) -> Arrangement:
    """What a group does.

    Args:
        hellos: of the ranks that take part.
        rank: whose NICs are chosen.

    Raises:
        InvalidArgument, SettingsMismatch: see choose_fabric.
    """
    spanning = whole.split(settings, whole.shared_domains())
    why_not = "nobody asks" if not whole.rack_by else _why_hosts_stay_apart(hellos, spanning)
    if not why_not:
        made = _with(settings, hellos, spanning, rank)
        if made.placement.where == "device":
            reason = f"{whole.rack_by}: hosts that share an NVLink domain are one node"
            return replace(made, nodes_reason=_with_setting(settings, reason))
        why_not = f"rows would lie in the host's memory, since {made.placement.reason}"
    over = () if not spanning.host_of else ("hosts that share an NVLink domain: allow_mnnvl=True makes them one node",)
    made = _with(settings, hellos, whole.split(settings), rank)
    reason = _with_setting(settings, _OF_A_HOST)
    if whole.rack_by:
        return replace(made, nodes_reason=f"{reason}; {whole.rack_by} has no effect: {why_not}")
    return replace(made, nodes_reason=reason, nodes_over=over)


def _with(settings: Settings, hellos: Sequence[Hello], topology: Topology, rank: int) -> Arrangement:
    fabric = choose_fabric(settings, hellos, topology, rank)
    return Arrangement(topology, fabric, choose_placement(hellos, topology, fabric.family), _OF_A_HOST)


def _with_setting(settings: Settings, reason: str) -> str:
    of = settings.ranks_per_node
    return reason if not of else f"UCCL_EP_RANKS_PER_NODE={of}" + (f"; {reason}" if reason != _OF_A_HOST else "")


def _why_hosts_stay_apart(hellos: Sequence[Hello], spanning: Topology) -> str:
    """Why no node spans hosts; empty: one may."""
    if spanning.host_of:
        return ""
    without = next((i for i in hellos if not i.domain), None)
    if len({i.host_id for i in hellos}) == 1:
        return "all ranks are on one host"
    if without is not None:
        return f"rank {without.rank} ({without.hostname}): {without.domain_reason or 'its kernels run on the CPU'}"
    return "no two hosts share an NVLink domain"
