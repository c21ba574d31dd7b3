"""The network that a job between these two hosts would use, as ranks choose it, and what it carries both ways."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, UcclEpError, refuse
from uccl_ep.fabric.choice import FabricChoice, choose_fabric
from uccl_ep.fabric.facts import NIC_FAMILIES, host_address, networks_of_this_host, tell
from uccl_ep.group.handshake import Hello, host_identity, process_name
from uccl_ep.group.topology import Topology
from uccl_ep.settings import Settings
from uccl_ep.tools.check.counters import PortState, read_interface, read_port
from uccl_ep.tools.check.talk import Talk

SIZES = (0, 8, 7168, 1 << 20)  # bytes of a write; 0: the immediate alone
_MOST_BYTES = 1 << 20
_SESSION = 0x636865636B  # of the first direction; the second's is one more


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds, of which medians are taken; for each, writes and bytes at most, and round trips."""

    rounds: int = 5
    writes: int = 20000
    megabytes: int = 256
    trips: int = 500

    def count(self, size: int) -> int:
        """Writes of a round."""
        return max(16, min(self.writes, self.megabytes * 1_000_000 // max(size, 1)))


@dataclass(frozen=True)
class Speed:
    """Of one size, one way: writes (or immediates) and bytes a second, and microseconds there and back."""

    size: int
    writes_per_s: float
    bytes_per_s: float
    round_trip_us: float


@dataclass(frozen=True)
class Side:
    """One host, before and after.

    Attributes:
        ports: after. grown: what each has counted meanwhile, by name of the port.
        speeds: of what this host wrote.
    """

    hostname: str
    ports: tuple[PortState, ...]
    grown: dict[str, dict[str, int]] = field(default_factory=dict)
    speeds: tuple[Speed, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def gbps(self) -> float:
        """Of all its ports; 0: one is not known."""
        rates = [port.gbps for port in self.ports]
        return sum(rates) if rates and all(rates) else 0.0

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Side:
        """Back from asdict() and msgpack."""
        ports = tuple(PortState(**port) for port in values["ports"])
        speeds = tuple(Speed(**speed) for speed in values["speeds"])
        notes = tuple((choice, reason) for choice, reason in values["notes"])
        return cls(values["hostname"], ports, values["grown"], speeds, notes)


@dataclass(frozen=True)
class Measured:
    """What both ends know in the end. `sides`: by rank; 0 has called."""

    family: str
    reason: str
    rank: int
    traffic_class: int
    sides: tuple[Side, Side]


def measure(talk: Talk, settings: Settings, effort: Effort, step: Callable[[str], None]) -> Measured:
    """Both ends call it. `step` is told what is being done.

    Raises:
        UcclEpError: the hosts cannot reach each other by that network, or wrong bytes arrived; the same on both ends.
    """
    step("what both hosts have")
    hellos = [_hello(talk.rank, settings)]
    hellos.insert(1 - talk.rank, Hello(**_agree(talk, asdict(hellos[0]), "")))
    refused = next((f"{i.hostname}: {i.error}" for i in hellos if i.error), "")
    if refused:
        raise UcclEpError(f"check: {refused}")
    choice = _choose(settings, hellos, talk.rank)
    _agree(talk, None, "" if choice.problem is None else str(choice.problem))
    before = _ports(choice, hellos[talk.rank].interface)
    speeds: tuple[Speed, ...] = ()
    notes: list[tuple[str, str]] = []
    for direction in range(2):
        writes = talk.rank == direction
        step(f"{hellos[direction].hostname} writes to {hellos[1 - direction].hostname}, {choice.family}")
        found, said = _one_way(talk, choice, hellos[talk.rank].interface, direction, effort)
        speeds, notes = (found, said) if writes else (speeds, notes)
    after = _ports(choice, hellos[talk.rank].interface)
    grown = {now.name: now.since(then) for now, then in zip(after, before, strict=True)}
    mine = Side(hellos[talk.rank].hostname, tuple(after), grown, speeds, (*choice.notes, *notes))
    theirs = Side.from_plain(_agree(talk, asdict(mine), ""))
    sides = (mine, theirs) if talk.rank == 0 else (theirs, mine)
    return Measured(choice.family, choice.reason, talk.rank, choice.config.traffic_class, sides)


def _agree(talk: Talk, value: Any, error: str) -> Any:
    """The other end's value. Where one has an error, both raise it."""
    theirs, their_error = talk.exchange([value, error])
    if error or their_error:
        raise UcclEpError(f"check: {error or 'the other end: ' + their_error}")
    return theirs


def _hello(rank: int, settings: Settings) -> Hello:
    told = tell(settings, None)
    return Hello(
        rank=rank,
        hostname=socket.gethostname(),
        host_id=host_identity(),
        process=process_name(),
        pid=os.getpid(),
        interface=host_address(settings)[0],
        settings={},
        session=0,
        public=b"",
        **told,
    )


def _choose(settings: Settings, hellos: list[Hello], rank: int) -> FabricChoice:
    if settings.transport in ("loopback", "shared_memory"):
        refuse("UCCL_EP_TRANSPORT", settings.transport, "a network between hosts, or auto")
    choice = choose_fabric(settings, hellos, Topology((0, 1)), rank)
    if choice.family == "shared_memory":
        return FabricChoice("tcp", "both ends are on one host, whose ranks would use shared memory")
    return choice


def _ports(choice: FabricChoice, address: str) -> list[PortState]:
    if choice.family in NIC_FAMILIES and choice.config.nics:
        return [read_port(device, port) for device, port, _ in choice.config.nics]
    networks = networks_of_this_host()
    here = [name for name, some in networks.items() if any(text.partition("/")[0] == address for text in some)]
    return [read_interface(name) for name in here[:1]]


def _one_way(
    talk: Talk, choice: FabricChoice, address: str, direction: int, effort: Effort
) -> tuple[tuple[Speed, ...], list[tuple[str, str]]]:
    """(what rank `direction` can write, what the transport has chosen)."""
    settings = _native.ProbeSettings()
    settings.family, settings.fabric, settings.interface_address = choice.family, choice.config.to_native(), address
    settings.rank = talk.rank ^ direction  # a probe's rank 0 writes
    settings.session, settings.secret, settings.most_bytes = _SESSION + direction, talk.secret, _MOST_BYTES
    probe, own, error = None, b"", ""
    try:
        probe = _native.TransportProbe(settings)
        own = probe.local_address()
    except (RuntimeError, ValueError) as failure:
        error = str(failure)
    theirs = _agree(talk, own, error)
    assert probe is not None
    error = ""
    try:
        probe.connect([own, theirs] if settings.rank == 0 else [theirs, own])
    except RuntimeError as failure:
        error = str(failure)
    _agree(talk, None, error)
    found, error = [], ""
    try:
        for size in SIZES:
            probe.stream(size, 64)  # pages, connections, the processor's clock
            rounds = [probe.stream(size, effort.count(size)) for _ in range(effort.rounds)]
            trips = [probe.round_trips(size, effort.trips) for _ in range(effort.rounds)]
            rate = effort.count(size) / statistics.median(rounds)
            found.append(Speed(size, rate, rate * size, statistics.median(trips) / effort.trips * 1e6))
    except (RuntimeError, InvalidArgument) as failure:
        error = str(failure)
    _agree(talk, None, error)  # and neither leaves while the other still needs its answers
    return tuple(found), list(probe.notes())
