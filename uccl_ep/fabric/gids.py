"""Which address a port speaks with: an entry of its GID table, or InfiniBand's LID. By rule, never by a fixed number.

The same address sits at index 1, 3 or 5 from one machine to the next, and the wrong one (RoCE v1, link-local) connects
and then loses every packet at the first router.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uccl_ep.errors import Described, refuse
from uccl_ep.fabric.sysfs import Gid
from uccl_ep.settings import Settings

OURS = "UCCL_EP_GID_INDEX"
LID = -1  # NicSettings::gid_index: no GID, the LID is enough
_MOST = 32  # entries that travel in a hello
Networks = Mapping[str, Sequence[str]]  # netdev -> its addresses with prefix length: "10.0.0.7/24"


@dataclass(frozen=True)
class GidEntry:
    """A GID as ranks tell each other. `network` is the IP network it is in, empty when that is not known."""

    index: int
    kind: str
    address: str
    network: str = ""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address it stands for."""
        six = ipaddress.IPv6Address(self.address)
        return six.ipv4_mapped or six

    @property
    def prefix(self) -> int:
        """The upper 64 bits: InfiniBand's subnet."""
        return int(ipaddress.IPv6Address(self.address)) >> 64

    @property
    def preference(self) -> int:
        """0 is best: IPv4 (routed, and what switches are set up for), global IPv6, link-local, RoCE v1."""
        if self.kind != "v2":
            return 3
        if isinstance(self.ip, ipaddress.IPv4Address):
            return 2 if self.ip.is_link_local else 0
        return 2 if self.ip.is_link_local else 1

    @property
    def words(self) -> str:
        """For people."""
        names = ("RoCE v2, IPv4", "RoCE v2, IPv6", "RoCE v2, link-local", "RoCE v1")
        return f"{names[self.preference]} {self.ip}"


@dataclass(frozen=True)
class Wanted:
    """The index that a variable asks for; -1: none, the rule chooses."""

    index: int = -1
    variable: str = OURS


@dataclass(frozen=True)
class GidChoice:
    """An index, or LID, and why."""

    index: int
    reason: str


def entries_of(gids: Sequence[Gid], networks: Networks) -> tuple[GidEntry, ...]:
    """What a rank tells of a port's table, best first."""
    made = [GidEntry(gid.index, gid.kind, gid.address, _network(gid, networks)) for gid in gids]
    return tuple(sorted(made, key=lambda entry: (entry.preference, entry.index))[:_MOST])


def _network(gid: Gid, networks: Networks) -> str:
    for text in networks.get(gid.netdev, ()):
        interface = ipaddress.ip_interface(text)
        if interface.ip == gid.ip:
            return str(interface.network)
    return ""


def usable(entry: GidEntry, one_host: bool) -> bool:
    """Whether peers can answer to it without anybody asking for it: RoCE v2, and no loopback between hosts."""
    return entry.kind == "v2" and (one_host or not entry.ip.is_loopback)


def choose_gid(
    kind: str,
    lid: int,
    table: Sequence[GidEntry],
    peers: Sequence[Sequence[GidEntry]],
    wanted: Wanted,
    one_host: bool,
) -> GidChoice:
    """The address of a port.

    Args:
        kind: of the port, see NicPort.
        lid: its LID, 0 when it has none.
        table: its GIDs.
        peers: for each rank that is reached over the network, the GIDs of its ports.
        wanted: what a variable asks for.
        one_host: all ranks are on one host, where even a loopback address reaches everybody.

    Raises:
        InvalidArgument: the port has no such entry, or none that peers could answer to.
    """
    if wanted.index >= 0:
        return _asked_for(table, wanted, kind)
    if kind == "efa":
        return GidChoice(0, "EFA has one address, at index 0")
    if kind == "slingshot":
        return GidChoice(LID, "Slingshot addresses its NICs itself")
    if kind == "infiniband":
        return _infiniband(lid, table, peers)
    return _roce(table, peers, one_host)


def wanted_gid(settings: Settings, kind: str) -> Wanted:
    """What is asked for on ports of a kind. Other libraries' variables mean RoCE, and UCCL's EFA as well."""
    site = settings.from_site("gid_index")
    foreign = site is not None and kind != "ethernet" and not (kind == "efa" and site.of_uccl)
    return Wanted() if foreign else Wanted(settings.gid_index, settings.said_by("gid_index"))


def _asked_for(table: Sequence[GidEntry], wanted: Wanted, kind: str) -> GidChoice:
    found = next((entry for entry in table if entry.index == wanted.index), None)
    if found is None and kind != "efa":
        there = "; ".join(f"{e.index}: {e.words}" for e in sorted(table, key=lambda e: e.index)) or "no entry at all"
        by_rule = "" if wanted.variable == OURS else f"{OURS}=-1 chooses by rule."
        refuse(wanted.variable, wanted.index, f"an entry of this port's table ({there})", by_rule)
    shown = f" ({found.words})" if found is not None and kind == "ethernet" else ""
    return GidChoice(wanted.index, f"{wanted.variable} asks for it{shown}")


def _infiniband(lid: int, table: Sequence[GidEntry], peers: Sequence[Sequence[GidEntry]]) -> GidChoice:
    first = min(table, key=lambda entry: entry.index, default=None)
    subnets = {min(peer, key=lambda entry: entry.index).prefix for peer in peers if peer}
    routed = first is not None and any(subnet != first.prefix for subnet in subnets)
    if not routed and lid:
        return GidChoice(LID, "InfiniBand, all peers in this port's subnet: the LID is enough")
    if first is None:
        refuse("InfiniBand port", Described("no LID and no GID"), "one that a subnet manager has set up")
    why = "peers are in another subnet, which takes a global header" if routed else "the port has no LID"
    return GidChoice(first.index, f"InfiniBand, {why}")


def _roce(table: Sequence[GidEntry], peers: Sequence[Sequence[GidEntry]], one_host: bool) -> GidChoice:
    good = [entry for entry in table if usable(entry, one_host)]
    if not good:
        there = "; ".join(f"{e.index}: {e.words}" for e in sorted(table, key=lambda e: e.index)) or "no entry"
        hint = "Give its network interface an IP address, or set UCCL_EP_GID_INDEX."
        refuse("RoCE port", Described(there), "one with a RoCE v2 address that other hosts reach", hint)
    best = min(entry.preference for entry in good)
    alike = [entry for entry in good if entry.preference == best]
    shared = [entry for entry in alike if entry.network and _holds_all(entry.network, peers)]
    pick = min(shared or alike, key=lambda entry: entry.index)
    why = pick.words
    if shared and peers:
        why += f", in {pick.network} like all peers"
    elif len(alike) > 1:
        why += f", the first of {len(alike)} of its kind"
    if best == 2:
        why += ": no address that is routed, so only one network segment is reached"
    return GidChoice(pick.index, why)


def _holds_all(network: str, peers: Sequence[Sequence[GidEntry]]) -> bool:
    """Whether every peer has an address in the network."""
    wanted = ipaddress.ip_network(network)
    return all(any(entry.kind == "v2" and entry.ip in wanted for entry in peer) for peer in peers)
