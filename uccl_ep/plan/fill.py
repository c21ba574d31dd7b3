"""A plan from hellos: real ones at the start of a Buffer, imagined ones before a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from uccl_ep.cost_model.expected_bytes import Traffic
from uccl_ep.errors import UcclEpError
from uccl_ep.fabric.choice import FabricChoice, choose_fabrics
from uccl_ep.fabric.distance import Distance
from uccl_ep.fabric.facts import NIC_FAMILIES, Facts
from uccl_ep.fabric.nics import NicPort
from uccl_ep.fabric.visibility import WORDS
from uccl_ep.group.handshake import Hello
from uccl_ep.group.self_description import SelfDescription, read_portrait
from uccl_ep.group.topology import Topology
from uccl_ep.layout.arrangement import Arrangement
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryBill
from uccl_ep.plan.record import BillLine, Choice, GroupPlan, NicPlan, RankPlan
from uccl_ep.settings import PREFIX, Settings

_MOST_OVER = 4  # alternatives that are listed
_WAYS = {"dmabuf": "dma-buf", "peer_memory": "a peer-memory module", "host": "pinned host memory"}


@dataclass(frozen=True)
class Agreed:
    """What all ranks of a group have alike.

    Attributes:
        hellos: of the ranks that take part, by rank.
        arrangement: nodes, network and where rows lie, and why; NICs in it are one rank's and not looked at.
    """

    hellos: Sequence[Hello]
    settings: Settings
    arrangement: Arrangement

    @property
    def topology(self) -> Topology:
        """Nodes."""
        return self.arrangement.topology

    @property
    def fabric(self) -> FabricChoice:
        """The network between them."""
        return self.arrangement.fabric

    @property
    def placement(self) -> Placement:
        """Where rows lie."""
        return self.arrangement.placement


def fill(agreed: Agreed, source: str, bill: MemoryBill | None, most_ranks: int = 1 << 30) -> GroupPlan:
    """The plan, without cautions.

    Args:
        bill: of one rank; None: not known.
        most_ranks: how many ranks are described one by one.
    """
    told = {i.rank: Facts.from_plain(i.fabric, i.rank) for i in agreed.hellos}
    shown = list(agreed.hellos)[:most_ranks]
    try:
        fabrics = choose_fabrics(agreed.settings, agreed.hellos, agreed.topology, [i.rank for i in shown])
    except UcclEpError as problem:
        fabrics = [replace(agreed.fabric, problem=problem)] * len(shown)
    ranks = [_rank(agreed, i, told[i.rank], fabric) for i, fabric in zip(shown, fabrics, strict=True)]
    return GroupPlan(
        source=source,
        num_ranks=len(agreed.hellos),
        num_hosts=len({i.host_id for i in agreed.hellos}),
        num_nodes=agreed.topology.num_nodes,
        transport=agreed.fabric.family,
        placement=agreed.placement.where,
        choices=_group_choices(agreed, told),
        cautions=(),
        ranks=tuple(_say_who_shares(ranks)),
        bill=() if bill is None else tuple(BillLine(b.name, b.num_bytes, b.what_for, b.reserved) for b in bill.items),
        locked_bytes=_locked(agreed, bill),
    )


def with_traffic(plan: GroupPlan, traffic: Traffic) -> GroupPlan:
    """The plan with expected bytes."""
    return replace(plan, traffic=traffic)


def _locked(agreed: Agreed, bill: MemoryBill | None) -> int:
    """What one rank locks: all of it for a NIC, all of it on a GPU's pinned host memory, else nothing."""
    pinned = agreed.fabric.family in NIC_FAMILIES or agreed.hellos[0].device != "cpu"
    on_device = agreed.placement.where == "device"
    if bill is None or not pinned:
        return 0
    rows = ("signals", "throughput rings", "low-latency rows")
    return sum(i.num_bytes for i in bill.items if not i.reserved and not (on_device and i.name in rows))


# ---- the group -------------------------------------------------------------------------------------------------------


def _group_choices(agreed: Agreed, told: Mapping[int, Facts]) -> tuple[Choice, ...]:
    family = agreed.fabric.family
    sizes = agreed.topology.sizes
    nodes = f"{agreed.topology.num_nodes} of {', '.join(map(str, sorted(set(sizes), reverse=True)))} rank(s)"
    on_device = agreed.placement.where == "device"
    over = ("host memory: always possible, and every row crosses PCIe twice",) if on_device else ()
    return (
        Choice("nodes", nodes, agreed.arrangement.nodes_reason, agreed.arrangement.nodes_over),
        Choice(
            "transport",
            family,
            agreed.fabric.reason,
            agreed.fabric.over or tuple(_other_families(family, agreed, told)),
        ),
        Choice("rows", f"{agreed.placement.where} memory", agreed.placement.reason, over),
        *_visibility(agreed),
        Choice("proxy", agreed.settings.proxy, "UCCL_EP_PROXY: as threads of the rank, or as a process beside it"),
        *[Choice(f"{PREFIX}{s.field.upper()}", s.reading, f"{s.words} says so") for s in agreed.settings.site],
    )


def _visibility(agreed: Agreed) -> list[Choice]:
    """How what NICs write into GPUs is made visible; nothing where they write into none."""
    ways = list(dict.fromkeys(agreed.placement.ways.values()))
    if not ways:
        return []
    chosen = dict.fromkeys(WORDS[way] for way, _ in ways)
    return [Choice("visible by", " or ".join(chosen), "; ".join(why for _, why in ways))]


def _other_families(family: str, agreed: Agreed, told: Mapping[int, Facts]) -> list[str]:
    """Each other family, with what spoke against it."""
    found = []
    for other in NIC_FAMILIES:
        if other == family:
            continue
        without = [rank for rank, facts in told.items() if other not in facts.families]
        if without:
            why = told[without[0]].missing.get(other, "not looked for, since UCCL_EP_TRANSPORT names a family")
            who = "all ranks" if len(without) == len(told) else f"rank {without[0]}"
            found.append(f"{other}: {who}: {why}")
        else:
            found.append(f"{other}: possible; {agreed.fabric.reason}")
    if family in NIC_FAMILIES:
        found.append("tcp: always possible, and slower than a NIC that writes memory")
    return found


# ---- a rank ----------------------------------------------------------------------------------------------------------


def _rank(agreed: Agreed, i: Hello, facts: Facts, fabric: FabricChoice) -> RankPlan:
    self_description = read_portrait(i.self_description)
    ports = {port.key: port for port in facts.ports}
    reasons = dict(fabric.notes)
    nics = tuple(_nic(ports[name, number], gid) for name, number, gid in fabric.config.nics if (name, number) in ports)
    choices = [_computes(i, facts, agreed)]
    if nics:
        choices.append(_nic_choice(i.rank, nics, facts, reasons))
        choices += [_address_choice(ports[nic.name, nic.port], nic, reasons) for nic in nics]
    if fabric.problem is not None:
        choices.append(Choice("network", "refused", str(fabric.problem)))
    if i.device != "cpu":
        choices.append(_registration_choice(facts, fabric.family))
    choices.append(_cpu_choice(self_description, bool(nics)))
    return RankPlan(
        rank=i.rank,
        host=i.hostname,
        node=agreed.topology.node_of[i.rank],
        device=i.device,
        gpu=i.gpu,
        where=facts.where if i.fabric else (f"GPU {i.gpu}" if i.gpu else "the CPU"),
        nics=nics,
        registration=facts.gpu_memory if i.device != "cpu" else "host",
        threads=self_description.proxy_threads,
        cpus=self_description.pin_cpus,
        choices=tuple(choices),
    )


def _computes(i: Hello, facts: Facts, agreed: Agreed) -> Choice:
    if i.device == "cpu":
        why = "UCCL_EP_DEVICE=cpu" if agreed.settings.device == "cpu" else "no GPU can be used, or none was asked for"
        return Choice("processor", "the CPU", why)
    return Choice("processor", f"GPU {i.gpu}", f"{i.device}; the rank's own GPU (torch's current device)")


def _nic(port: NicPort, gid: int) -> NicPlan:
    entry = next((e.words for e in port.gids if e.index == gid), "") if port.kind == "ethernet" else ""
    address = entry or ("LID" if gid < 0 else f"GID {gid}")
    return NicPlan(port.name, port.port, port.rate_gbps, port.mtu, Distance(port.distance).words, gid, address)


def _nic_choice(rank: int, nics: Sequence[NicPlan], facts: Facts, reasons: Mapping[str, str]) -> Choice:
    why = next((reason for choice, reason in reasons.items() if choice.startswith(f"rank {rank} uses ")), "")
    mine = {str(nic) for nic in nics}
    others = sorted((p for p in facts.ports if str(p) not in mine), key=lambda p: (p.distance, p.hops, p.pci))
    over = [f"{p}: {Distance(p.distance).words}, {_rate(p.rate_gbps)}" for p in others[:_MOST_OVER]]
    if len(others) > _MOST_OVER:
        over.append(f"{len(others) - _MOST_OVER} more ports that are no nearer, or another rank's")
    return Choice("NICs", ", ".join(f"{nic} ({_rate(nic.gbps)})" for nic in nics), why, (*over, *facts.left_out))


def _rate(gbps: float) -> str:
    return f"{gbps:g} Gb/s" if gbps else "unknown rate"


def _address_choice(port: NicPort, nic: NicPlan, reasons: Mapping[str, str]) -> Choice:
    why = next((reason for choice, reason in reasons.items() if choice.startswith(f"address of {port}:")), "")
    rest = [entry for entry in port.gids if entry.index != nic.gid]
    over = [f"GID {entry.index}: {entry.words}" for entry in rest[:_MOST_OVER]] if port.kind == "ethernet" else []
    return Choice(f"address of {port}", "LID" if nic.gid < 0 else f"GID {nic.gid}", why, tuple(over))


def _registration_choice(facts: Facts, family: str) -> Choice:
    if family not in NIC_FAMILIES:
        return Choice("registration", "none", f"{family} moves rows with the CPU")
    return Choice("registration", _WAYS.get(facts.gpu_memory, facts.gpu_memory), facts.gpu_memory_reason)


def _cpu_choice(self_description: SelfDescription, nics: bool) -> Choice:
    threads = f"{self_description.proxy_threads} proxy thread(s)"
    if self_description.pin_cpus:
        pinned = ", ".join(map(str, self_description.pin_cpus))
        return Choice("CPUs", f"{threads} on {pinned}", "UCCL_EP_PIN_CPUS says so")
    why = "UCCL_EP_PIN_CPUS is not set"
    if nics:
        why += "; at its NICs' NUMA node, where sysfs says which that is"
    if self_description.suggested_cpus:
        why += f"; near this rank and no other's: {','.join(map(str, self_description.suggested_cpus))}"
    count = f"any of {self_description.num_cpus} CPU(s)" if self_description.num_cpus else "any CPU"
    return Choice("CPUs", f"{threads} on {count}", why)


def _say_who_shares(ranks: Sequence[RankPlan]) -> list[RankPlan]:
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for nic in rank.nics:
            users[rank.host, str(nic)].append(rank.rank)

    def others(rank: RankPlan, nic: NicPlan) -> tuple[int, ...]:
        return tuple(r for r in users[rank.host, str(nic)] if r != rank.rank)

    return [replace(r, nics=tuple(replace(nic, shared_with=others(r, nic)) for nic in r.nics)) for r in ranks]
