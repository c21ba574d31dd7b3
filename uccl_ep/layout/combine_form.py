"""Which form a low-latency combine takes: each row to its owner by itself ("direct"), or summed in the node before it
crosses to another ("node"). The one place that says which, and why.

All ranks must come to the same answer, so it depends on nothing but what they have alike. The forms round differently:
direct rounds a token's sum once, node once more for each other node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from uccl_ep.group.topology import Topology
from uccl_ep.layout.combine_formats import RowFormat, name_of
from uccl_ep.settings import Settings

FORMS = ("direct", "node", "auto")
"""Values of UCCL_EP_LOW_LATENCY_COMBINE."""

_SETTING = "UCCL_EP_LOW_LATENCY_COMBINE"
_USUAL_TOPK = 8  # of the routing that the model assumes, unless fewer are allowed
_NETWORK_OF = {"verbs": "cx7", "libfabric": "cx7", "efa": "efa"}  # others: "tcp", which is no RDMA NIC


@dataclass(frozen=True)
class CombineForm:
    """A form and why.

    Attributes:
        reduces: rows are summed in the node before they cross.
        reason: one line. over: what else there was, with its cost, one line each.
    """

    reduces: bool
    reason: str
    over: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As the setting calls it."""
        return "node" if self.reduces else "direct"


def room_for_sums(settings: Settings, topology: Topology) -> CombineForm:
    """Whether memory has room for rows that are summed in the node: without it every call is direct."""
    if settings.low_latency_combine == "direct":
        return CombineForm(False, f"{_SETTING}=direct: each row is rounded once")
    if topology.num_nodes == 1:
        return CombineForm(False, "one node: no row crosses")
    if topology.apart:
        return CombineForm(False, "enable_shrink: no rank may depend on another for a third one's rows")
    if topology.host_of:
        return CombineForm(False, "a node of several hosts: its rows come together at no rank before they cross")
    return CombineForm(True, f"{_SETTING}={settings.low_latency_combine}")


def form_of_call(buffers: CombineForm, rows: RowFormat, most: int) -> CombineForm:
    """The form of one call of a Buffer whose calls have the form `buffers` unless something speaks against it.

    Args:
        rows: how they travel.
        most: experts of a token that memory is laid out for.
    """
    if buffers.reduces and rows is not RowFormat.BF16 and most < 2:
        reason = f"UCCL_EP_LOW_LATENCY_TOPK={most}: a sum in {name_of(rows)} needs the place of a second row"
        return replace(buffers, reduces=False, reason=reason)
    return buffers


def by_model(sizes: tuple[int, int, int], topology: Topology, topk: int, family: str) -> CombineForm:
    """What the cost model of uccl_ep.cost_model.choice prefers for uniform routing.

    Args:
        sizes: tokens of a rank, channels, experts of all ranks.
        topk: the most experts of a token that a Buffer allows; at most 8 are assumed.
        family: of the network.
    """
    from uccl_ep.cost_model.choice import NETWORKS, decide, uniform_combine  # not needed where the form is fixed

    network = NETWORKS[_NETWORK_OF.get(family, "tcp")]
    topk = min(topk, _USUAL_TOPK, sizes[2])
    choice = decide(uniform_combine((*sizes, topk), topology.sizes, network))
    assumed = f"top-{topk} of {sizes[2]}, {sizes[0]} tokens x {sizes[1]} over {family} as {network.name}"
    return CombineForm(choice.form == "node", f"{choice.reasons[-1]} ({assumed})", choice.reasons[:-1])
