"""The network of a group: which family, over which NICs and addresses, from what every rank has told. With reasons.

Everything here is a function of the hellos, which all ranks have alike: the family needs no second agreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from uccl_ep.errors import InvalidArgument, SettingsMismatch, UcclEpError
from uccl_ep.fabric.config import FabricConfig
from uccl_ep.fabric.facts import NIC_FAMILIES, Facts
from uccl_ep.fabric.gids import GidEntry, choose_gid, wanted_gid
from uccl_ep.fabric.nics import NicPort, Place, Share, share_out
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology
from uccl_ep.settings import Settings

GPU_MEMORY_FAMILIES = ("efa", "verbs")  # whose NICs reach a GPU's own memory
_WHY_OURS = "ours is 10 to 20 times faster than libfabric's tcp on small messages"  # measured: docs/tcp.md
_EFA_LOW_LATENCY = 8  # service level
_SOFTWARE_PROVIDERS = ("tcp", "shm", "net", "sockets", "udp", "tcp;ofi_rxm", "udp;ofi_rxd")


@dataclass(frozen=True)
class FabricChoice:
    """What a session hands to its proxy, and what it can say of it.

    Attributes:
        reason: why this family. over: where tcp is all that is left, each other family with what it lacks.
        notes: (choice, why) for each decision beyond the family.
        problem: why this rank cannot use it, though all have agreed on it; others do not know that yet.
    """

    family: str
    reason: str
    config: FabricConfig = FabricConfig()
    notes: tuple[tuple[str, str], ...] = ()
    problem: UcclEpError | None = None
    over: tuple[str, ...] = ()

    @property
    def whole_reason(self) -> str:
        """The reason with what the others lack, in one sentence."""
        return f"{self.reason} ({'; '.join(self.over)})" if self.over else self.reason

    def checked_config(self) -> FabricConfig:
        """The configuration.

        Raises:
            InvalidArgument: there is none for this rank. To be called where a failure is told to the other ranks.
        """
        if self.problem is not None:
            raise self.problem
        return self.config

    @property
    def pins_memory(self) -> bool:
        """Whether registering memory takes every page of it at once."""
        software = self.family == "libfabric" and self.config.provider in _SOFTWARE_PROVIDERS
        return self.family in NIC_FAMILIES and not software

    @property
    def registers_late(self) -> bool:
        """Whether memory that only sends is registered when it is used."""
        return self.family in ("efa", "verbs") or (self.family == "libfabric" and self.config.provider == "efa")


@dataclass(frozen=True)
class _Told:
    """A rank, and what it has told of its network."""

    rank: int
    name: str  # "rank 3 (node7)"
    host: str
    facts: Facts


def choose_fabric(settings: Settings, hellos: Sequence[Hello], topology: Topology, rank: int) -> FabricChoice:
    """Family and NICs of a rank.

    Args:
        hellos: of all ranks that take part.
        rank: who asks.

    Raises:
        InvalidArgument: the family that was asked for cannot reach all ranks; says whose. Raised on all ranks alike;
            what stands against this rank alone is raised by `checked_config`.
        SettingsMismatch: ranks run different versions.
    """
    return choose_fabrics(settings, hellos, topology, (rank,))[0]


def choose_fabrics(
    settings: Settings, hellos: Sequence[Hello], topology: Topology, ranks: Sequence[int]
) -> list[FabricChoice]:
    """What each of `ranks` chooses; see `choose_fabric`. For reports of a whole group, which share most of the work."""
    plain = _without_nics(settings.transport, hellos, topology)
    if plain is not None:
        return [FabricChoice(*plain)] * len(ranks)
    told = _told(hellos)
    compare_versions(told)
    family, reason, over = _among_nics(settings.transport, told)
    if family not in NIC_FAMILIES:
        return [FabricChoice(family, reason, over=over)] * len(ranks)
    provider = _provider(settings, told) if family == "libfabric" else ""
    kinds = _port_kinds(family, provider, told)
    shares = {r: share for host in _by_host(told) for r, share in share_out(_places(host, kinds)).items()}
    if kinds:
        _demand_ports(family, told, shares)
    choice = FabricChoice(family, reason, FabricConfig(provider=provider))
    made = []
    for rank in ranks:
        try:
            made.append(_with_nics(settings, choice, _Group(told, topology, shares, rank)))
        except UcclEpError as problem:
            made.append(replace(choice, problem=problem))
    return made


def _without_nics(wanted: str, hellos: Sequence[Hello], topology: Topology) -> tuple[str, str] | None:
    """What is decided without a look at NICs: ranks of one host exchange through shared memory whatever NICs there are,
    unless a family is asked for by name."""
    one_process = len({i.process for i in hellos}) == 1
    one_host = len({i.host_id for i in hellos}) == 1
    if wanted == "loopback" and not one_process:
        raise InvalidArgument("UCCL_EP_TRANSPORT=loopback needs all ranks in one process; use shared_memory or tcp")
    if wanted == "shared_memory" and not one_host:
        raise InvalidArgument("UCCL_EP_TRANSPORT=shared_memory needs all ranks on one host and of one user; use tcp")
    if wanted == "auto" and one_host:
        return "shared_memory", "all ranks share a host"
    if wanted == "auto" and topology.num_nodes == 1:
        return "shared_memory", "all ranks are one node: no network is used"
    if wanted not in ("auto", *NIC_FAMILIES):
        return wanted, "UCCL_EP_TRANSPORT says so"
    return None


def _among_nics(wanted: str, told: Sequence[_Told]) -> tuple[str, str, tuple[str, ...]]:
    """(family, why, what the others lack where tcp is left)."""
    if wanted != "auto":
        why_not = _lacking(wanted, told)
        if why_not:
            raise InvalidArgument(f"UCCL_EP_TRANSPORT={wanted} cannot reach all ranks: {why_not}. Or use auto")
        return wanted, "UCCL_EP_TRANSPORT says so", ()
    refusals: list[str] = []
    for family in NIC_FAMILIES:
        why_not = _lacking(family, told)
        if not why_not:
            return family, _praise(family, told), ()
        refusals.append(f"{family}: {why_not}")
    return "tcp", f"ranks are on several hosts and no NIC family is on all of them; {_WHY_OURS}", tuple(refusals)


def _told(hellos: Sequence[Hello]) -> list[_Told]:
    return [
        _Told(i.rank, f"rank {i.rank} ({i.hostname})", i.host_id, Facts.from_plain(i.fabric, i.rank)) for i in hellos
    ]


def _lacking(family: str, told: Sequence[_Told]) -> str:
    """Why a family is not on all ranks; empty: it is."""
    without = [t for t in told if family not in t.facts.families]
    if without:
        reasons = list(dict.fromkeys(t.facts.missing.get(family, "it has not looked for one") for t in without))
        if len(without) == len(told) and len(reasons) == 1:
            return f"on all ranks {reasons[0]}"
        return _listed([f"{t.name} {t.facts.missing.get(family, 'has not looked for one')}" for t in without])
    if family == "verbs" and not _link_layer(told):
        shown = [f"{t.name} has {' and '.join(sorted(_kinds(t.facts)))}" for t in told]
        return f"no link layer is on all of them: {_listed(shown)}"
    return ""


def _listed(items: Sequence[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _praise(family: str, told: Sequence[_Told]) -> str:
    if family == "verbs":
        name = {"infiniband": "InfiniBand", "ethernet": "RoCE"}[_link_layer(told)]
        return f"every rank has an active {name} port"
    return "every rank has an EFA device"


def _kinds(facts: Facts) -> set[str]:
    return {port.kind for port in facts.of("verbs")}


def _link_layer(told: Sequence[_Told]) -> str:
    """The link layer of verbs ports that every rank has, the one with more bandwidth for the poorest; InfiniBand where
    they are equal. Empty: none is on all ranks."""
    common = set.intersection(*(_kinds(t.facts) for t in told))

    def worth(kind: str) -> tuple[float, bool]:
        rates = [sum(p.rate_gbps for p in t.facts.of("verbs") if p.kind == kind) for t in told]
        return min(rates), kind == "infiniband"

    return max(common, key=worth, default="")


def compare_versions(told: Sequence[_Told]) -> None:
    """Every rank runs the same version, as far as they say.

    Raises:
        SettingsMismatch: names the ranks.
    """
    known = [t for t in told if t.facts.version]
    versions = {t.facts.version for t in known}
    if len(versions) > 1:
        shown = _listed([f"{t.name}: {t.facts.version}" for t in known])
        raise SettingsMismatch(f"ranks of one Buffer need one version of uccl-ep; install the same on all. {shown}")


# ---- libfabric -------------------------------------------------------------------------------------------------------


def _provider(settings: Settings, told: Sequence[_Told]) -> str:
    if settings.provider:
        return settings.provider
    for kind, provider in (("slingshot", "cxi"), ("efa", "efa")):
        if all(any(port.kind == kind for port in t.facts.ports) for t in told):
            return provider
    return "shm" if len({t.host for t in told}) == 1 else "tcp"


# ---- NICs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Everything that the choice of one rank's NICs needs."""

    told: Sequence[_Told]
    topology: Topology
    shares: Mapping[int, Share]
    rank: int

    @property
    def mine(self) -> tuple[NicPort, ...]:
        return self.shares[self.rank].ports

    @property
    def one_host(self) -> bool:
        return len({t.host for t in self.told}) == 1

    @property
    def remote(self) -> list[_Told]:
        """Ranks that are reached over the network."""
        nodes = self.topology.node_of
        return [t for t in self.told if nodes[t.rank] != nodes[self.rank]]

    def gids_of(self, rank: int) -> list[GidEntry]:
        return [entry for port in self.shares[rank].ports for entry in port.gids]


def _port_kinds(family: str, provider: str, told: Sequence[_Told]) -> tuple[str, ...]:
    """Kinds of ports that are handed to the native side; none where libfabric finds its own way (tcp, shm)."""
    if family == "verbs":
        return (_link_layer(told),)
    if family == "efa":
        return ("efa",)
    return {"cxi": ("slingshot",), "efa": ("efa",)}.get(provider, ())


def _by_host(told: Sequence[_Told]) -> list[list[_Told]]:
    hosts: dict[str, list[_Told]] = {}
    for t in told:
        hosts.setdefault(t.host, []).append(t)
    return list(hosts.values())


def _places(host: Sequence[_Told], kinds: Sequence[str]) -> list[Place]:
    return [Place(t.rank, t.facts.where, tuple(p for p in t.facts.ports if p.kind in kinds)) for t in host]


def _demand_ports(family: str, told: Sequence[_Told], shares: Mapping[int, Share]) -> None:
    without = [t.name for t in told if not shares[t.rank].ports]
    if without:
        raise InvalidArgument(f"UCCL_EP_TRANSPORT={family}: {_listed(without)} has no port for it; check UCCL_EP_NICS")


def _with_nics(settings: Settings, choice: FabricChoice, group: _Group) -> FabricChoice:
    nics, notes = [], []
    peers = [group.gids_of(t.rank) for t in group.remote]
    for port in group.mine:
        gid = choose_gid(port.kind, port.lid, port.gids, peers, wanted_gid(settings, port.kind), group.one_host)
        nics.append((port.name, port.port, gid.index))
        notes.append((f"address of {port}: {'LID' if gid.index < 0 else f'GID {gid.index}'}", gid.reason))
    if group.mine:
        share = group.shares[group.rank]
        notes.insert(0, (f"rank {group.rank} uses {', '.join(map(str, share.ports))}", share.reason))
        facts = next(t.facts for t in group.told if t.rank == group.rank)
        notes += [("not used", reason) for reason in facts.left_out]
    _check_queue_pairs(settings, choice.family, group)
    mtu, why = _mtu(settings, group)
    if why:
        notes.append((f"MTU {mtu or 'by port'}", why))
    level = settings.service_level
    notes += _site_notes(settings, choice.family)
    site = settings.from_site("service_level")
    if choice.family == "efa" and (not level or (site is not None and not site.of_uccl)):
        level = _EFA_LOW_LATENCY
        notes.append((f"service level {level}", "EFA's for low latency; UCCL_EP_SERVICE_LEVEL names another"))
    config = FabricConfig(
        nics=tuple(nics),
        provider=choice.config.provider,
        queue_pairs=settings.queue_pairs,
        service_level=level,
        traffic_class=settings.traffic_class,
        hop_limit=settings.hop_limit,
        mtu=mtu,
        udp_source_port=settings.udp_source_port,
        timeout=settings.ib_timeout,
        retries=settings.ib_retry_cnt,
        relaxed_ordering=settings.relaxed_ordering,
    )
    if config.provider:
        why = "UCCL_EP_PROVIDER says so" if settings.provider else "the best that all ranks have"
        notes.insert(0, (f"libfabric provider {config.provider}", why))
    return FabricChoice(choice.family, choice.reason, config, tuple(notes))


def _site_notes(settings: Settings, family: str) -> list[tuple[str, str]]:
    """What other libraries' variables have decided. On EFA that is UCCL's only."""
    of_nics = ("service_level", "traffic_class", "ib_timeout", "ib_retry_cnt")
    said = [value for value in settings.site if value.field in of_nics and (family == "verbs" or value.of_uccl)]
    return [(f"{value.field.replace('_', ' ')} {value.reading}", f"{value.words} says so") for value in said]


def _mtu(settings: Settings, group: _Group) -> tuple[int, str]:
    """(bytes, why) of packets; 0: what both ports of a connection have."""
    known = {(t.name, str(port)): port.mtu for t in group.told for port in group.shares[t.rank].ports if port.mtu}
    if not known:
        return settings.mtu, "UCCL_EP_MTU says so" if settings.mtu else ""
    least = min(known.values())
    whose = ", ".join(next(names for names, mtu in known.items() if mtu == least))
    if settings.mtu > least:
        raise InvalidArgument(
            f"UCCL_EP_MTU={settings.mtu} is refused: {whose} is at {least}. Raise that port's MTU (RoCE: the network "
            f"interface's, to {settings.mtu} and 200 bytes more), or set UCCL_EP_MTU={least}"
        )
    if settings.mtu:
        return settings.mtu, "UCCL_EP_MTU says so"
    if least != max(known.values()):
        return 0, f"{whose} has {least}, others up to {max(known.values())}; each connection takes the smaller"
    return 0, ""


def _check_queue_pairs(settings: Settings, family: str, group: _Group) -> None:
    """Each device allows the connections of all ranks of its host that use it. (EFA needs none a peer.)"""
    if family != "verbs":
        return
    nodes = group.topology.node_of
    wanted: dict[tuple[str, str], int] = {}
    allowed: dict[tuple[str, str], int] = {}
    for t in group.told:
        peers = sum(nodes[other.rank] != nodes[t.rank] for other in group.told)
        for port in group.shares[t.rank].ports:
            device = (t.host, port.name)
            wanted[device] = wanted.get(device, 0) + peers * settings.proxy_threads * settings.queue_pairs
            allowed[device] = port.max_queue_pairs
    for (host, name), number in wanted.items():
        if 0 < allowed[host, name] < number:
            whose = next(t.name for t in group.told if t.host == host)
            raise InvalidArgument(
                f"{number} queue pairs are needed on {name} of {whose}'s host, which allows {allowed[host, name]}: "
                f"lower UCCL_EP_QUEUE_PAIRS (now {settings.queue_pairs}) or UCCL_EP_PROXY_THREADS "
                f"(now {settings.proxy_threads})"
            )


def explain(choices: Sequence[tuple[str, str]], stream: TextIO) -> None:
    """One line a choice, for UCCL_EP_EXPLAIN=1."""
    for choice, reason in choices:
        print(f"uccl-ep: {choice}: {reason}", file=stream)
