"""One of the two processes that write to each other; everything is timed in C++ (proxy/transport/probe.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uccl_ep.tools.bench.transport_options import MOST_BYTES, Network, TransportOptions

_SESSION = 0x7472616E73706F72


@dataclass(frozen=True)
class Part:
    """What a process needs: its rank, what is measured, the group's secret (32 bytes), and its end of a pipe."""

    rank: int
    options: TransportOptions
    secret: bytes
    peer: Any  # multiprocessing Connection to the other process


def order(options: TransportOptions, networks: list[Network], number: int) -> list[Network]:
    """The networks in the order of a round: each comes first, and rivals follow each other, equally often."""
    if number % 2:
        networks = networks[::-1]
    first = (number // 2) % len(networks)
    return networks[first:] + networks[:first]


def _probe(part: Part, network: Network, number: int) -> Any:
    from uccl_ep import _native

    settings = _native.ProbeSettings()
    settings.family = network.family
    fabric = _native.FabricSettings()
    fabric.provider = network.provider
    settings.fabric = fabric
    settings.rank, settings.session, settings.secret = part.rank, _SESSION + number, part.secret
    settings.most_bytes = MOST_BYTES
    return _native.TransportProbe(settings)


def _connect(part: Part, network: Network, number: int) -> tuple[Any, str]:
    """(probe, "") or (None, why not); both processes come to the same."""
    address, probe, why = b"", None, ""
    try:
        probe = _probe(part, network, number)
        address = probe.local_address()
    except (RuntimeError, ValueError) as error:
        why = str(error)
    part.peer.send((address, why))
    theirs, their_why = part.peer.recv()
    if why or their_why:
        return None, why or their_why
    assert probe is not None
    try:
        probe.connect([address, theirs] if part.rank == 0 else [theirs, address])
    except RuntimeError as error:
        why = str(error)
    part.peer.send(why)
    their_why = part.peer.recv()
    return (None, why or their_why) if why or their_why else (probe, "")


def run_part(part: Part, results: Any) -> None:
    """Entry of a spawned process; puts ("step", name) while it works, then ("done", rank, result, error)."""
    try:
        results.put(("done", part.rank, _measure(part, results), ""))
    except Exception as error:  # the parent prints it
        results.put(("done", part.rank, None, f"{type(error).__name__}: {error}"))


def _measure(part: Part, results: Any) -> dict[str, Any]:
    probes: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for number, network in enumerate(part.options.chosen()):
        probe, why = _connect(part, network, number)
        if probe is None:
            absent[network.name] = why
        else:
            probes[network.name] = probe
    present = [n for n in part.options.chosen() if n.name in probes]
    times: dict[str, dict[int, list[tuple[float, float]]]] = {
        n.name: {size: [] for size in part.options.sizes} for n in present
    }
    for number in range(-1, part.options.rounds):  # the first warms up: pages, connections, the processor's clock
        for size in part.options.sizes:
            for network in order(part.options, present, max(number, 0)):
                probe = probes[network.name]
                writes = part.options.writes(size) if number >= 0 else 64
                pair = (probe.stream(size, writes), probe.round_trips(size, part.options.trips(size)))
                if number >= 0:
                    times[network.name][size].append(pair)
                if part.rank == 0:
                    results.put(("step", network.name))
    notes = {name: probe.notes() for name, probe in probes.items()}
    part.peer.send("finished")  # so that neither leaves while the other still needs its answers
    part.peer.recv()
    return {"times": times, "absent": absent, "notes": notes}
