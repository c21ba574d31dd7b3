"""Which NICs each rank of a host uses: the nearest, spread evenly, the same answer on every rank that asks.

The rule needs no agreement: it is a function of what the ranks of the host have told in their hellos.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uccl_ep.errors import refuse
from uccl_ep.fabric.distance import Distance
from uccl_ep.fabric.gids import GidEntry

_LEAST_SHARE_OF_RATE = 0.5  # a port slower than this share of the fastest is for management or storage


@dataclass(frozen=True)
class NicPort:
    """A port that a rank could use, as it tells the others.

    Attributes:
        kind: "efa", "infiniband", "ethernet" (RoCE) or "slingshot".
        rate_gbps: gigabits a second; 0: not known. mtu: bytes of an RDMA packet; 0: not known.
        distance, hops: from the rank's GPU or NUMA node.
        pci: address; empty for a software device.
        max_queue_pairs: of the device; 0: not known.
        lid: InfiniBand's address in its subnet; 0: none.
    """

    name: str
    port: int
    kind: str
    rate_gbps: float = 0.0
    mtu: int = 0
    distance: int = int(Distance.UNKNOWN)
    hops: int = 0
    pci: str = ""
    max_queue_pairs: int = 0
    lid: int = 0
    gids: tuple[GidEntry, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the host's other ports."""
        return self.name, self.port

    @property
    def software(self) -> bool:
        """It is made of the kernel's own network stack (soft-RoCE)."""
        return not self.pci

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"


@dataclass(frozen=True)
class Place:
    """A rank of a host: where it computes, and the ports it could use."""

    rank: int
    where: str  # "GPU 0000:1b:00.0", "NUMA node 0", "the CPU": for people, and the order in which ports are dealt
    ports: tuple[NicPort, ...]


@dataclass(frozen=True)
class Share:
    """What a rank uses, nearest first, and why."""

    ports: tuple[NicPort, ...]
    reason: str


@dataclass(frozen=True)
class Selection:
    """UCCL_EP_NICS, read: names (with * and ?) and ports, all of them to use or all of them to leave out."""

    patterns: tuple[tuple[str, int], ...] = ()  # port 0: all ports of the device
    excludes: bool = False

    @property
    def names_some(self) -> bool:
        """Somebody has said which to use, so rules that guess what a NIC is for do not apply."""
        return bool(self.patterns) and not self.excludes

    def allows(self, name: str, port: int) -> bool:
        """Whether the port may be used."""
        hit = any(fnmatch.fnmatchcase(name, pattern) and number in (0, port) for pattern, number in self.patterns)
        return not self.patterns or hit != self.excludes


def parse_selection(text: str) -> Selection:
    """`mlx5_0,mlx5_1:1` or `^mlx5_6,^mlx5_7`.

    Raises:
        InvalidArgument: another form.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    excluded = [name.startswith("^") for name in names]
    if len(set(excluded)) > 1:
        hint = "Write ^ before every name that is left out, or name only what is used."
        refuse("UCCL_EP_NICS", text, "names to use or, each with ^, names to leave out", hint)
    patterns = []
    for name in names:
        device, colon, port = name.lstrip("^").partition(":")
        if not device or (colon and not (port.isdecimal() and int(port) > 0)):
            refuse("UCCL_EP_NICS", text, "device or device:port, separated by commas", "Ports count from 1.")
        patterns.append((device, int(port) if colon else 0))
    return Selection(tuple(patterns), any(excluded))


def check_selection(selection: Selection, present: Sequence[tuple[str, int]]) -> None:
    """Every name is one that this host has.

    Raises:
        InvalidArgument: lists what there is.
    """
    for pattern, port in selection.patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) and port in (0, number) for name, number in present):
            shown = pattern + (f":{port}" if port else "")
            there = ", ".join(f"{name}:{number}" for name, number in present) or "none at all"
            refuse("UCCL_EP_NICS", shown, f"a NIC of this host: {there}")


def without_slow(ports: Sequence[NicPort]) -> tuple[list[NicPort], list[str]]:
    """(ports that belong to the data network, why the others are left out)."""
    fastest = max((port.rate_gbps for port in ports), default=0.0)
    kept, dropped = [], []
    for port in ports:
        if port.rate_gbps and port.rate_gbps < fastest * _LEAST_SHARE_OF_RATE:
            dropped.append(f"{port} runs at {port.rate_gbps:g} Gb/s where others have {fastest:g}")
        else:
            kept.append(port)
    return kept, dropped


def nearest(ports: Sequence[NicPort]) -> list[NicPort]:
    """Those at the smallest distance, by PCI address."""
    least = min(((port.distance, port.hops) for port in ports), default=(0, 0))
    return sorted(
        (port for port in ports if (port.distance, port.hops) == least), key=lambda p: (p.pci, p.name, p.port)
    )


def share_out(places: Sequence[Place]) -> dict[int, Share]:
    """The ports of each rank of one host.

    Each rank gets an equal part of its nearest ports, dealt in the order of PCI addresses: neighbours on the bus stay
    neighbours even where a virtual machine hides its bridges. Where there are more ranks than ports, each has one and
    the least loaded is next. Ports that nobody has by then go to the rank near them that has fewest.
    """
    near = {place.rank: nearest(place.ports) for place in places}
    keys = {rank: {port.key for port in ports} for rank, ports in near.items()}
    load: Counter[tuple[str, int]] = Counter()
    taken: dict[int, list[NicPort]] = {place.rank: [] for place in places}
    order = sorted(places, key=lambda place: (len(near[place.rank]), place.where, place.rank))
    for place in order:
        rank = place.rank
        rivals = sum(bool(keys[rank] & other) for other in keys.values())
        for _ in range(max(1, len(near[rank]) // rivals) if near[rank] else 0):
            free = [port for port in near[rank] if port not in taken[rank]]
            pick = min(free, key=lambda port: load[port.key])  # the first of the least loaded
            taken[rank].append(pick)
            load[pick.key] += 1
    for key in sorted({key for some in keys.values() for key in some if not load[key]}):
        rank = min((p.rank for p in order if key in keys[p.rank]), key=lambda r: len(taken[r]))
        taken[rank].append(next(port for port in near[rank] if port.key == key))
        load[key] += 1
    return {place.rank: Share(tuple(taken[place.rank]), _why(place, taken, load)) for place in places}


def _why(place: Place, taken: Mapping[int, Sequence[NicPort]], load: Mapping[tuple[str, int], int]) -> str:
    mine = taken[place.rank]
    if not mine:
        return f"{place.where}: this rank sees no usable NIC"
    words = f"{Distance(mine[0].distance).words} as {place.where}"
    if mine[0].distance in (Distance.ACROSS_SOCKETS, Distance.UNKNOWN):
        words = f"{Distance(mine[0].distance).words} from {place.where}, and nothing is nearer"
    keys = {port.key for port in mine}
    others = sorted(r for r, ports in taken.items() if r != place.rank and any(p.key in keys for p in ports))
    if others:
        words += f"; shared with rank(s) {', '.join(map(str, others))}"
    elif max(load.values(), default=0) <= 1:
        words += "; no other rank uses it" if len(mine) == 1 else "; no other rank uses them"
    return words
