"""What `uccl-ep bench transport` compares: the networks, the sizes of a write, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep.errors import Described, one_of, refuse

MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Network:
    """A network family and, for libfabric, its provider."""

    name: str
    family: str
    provider: str = ""


NETWORKS = (
    Network("shared_memory", "shared_memory"),
    Network("tcp", "tcp"),
    Network("libfabric tcp", "libfabric", "tcp"),
    Network("libfabric shm", "libfabric", "shm"),
)
RIVALS = ("tcp", "libfabric tcp")
"""The two that reach another host without an RDMA NIC: the faster is the default there."""


@dataclass(frozen=True)
class TransportOptions:
    """One comparison. A round measures every network once at every size, in an order that changes by the round."""

    networks: tuple[str, ...] = tuple(n.name for n in NETWORKS)
    sizes: tuple[int, ...] = (8, 256, 7168, 65536, 1 << 20)
    rounds: int = 5
    megabytes: int = 64  # that a network writes at a size in a round, at most
    most_writes: int = 20000  # of a size in a round
    round_trips: int = 500

    def writes(self, size: int) -> int:
        """How many writes of `size` bytes a round times."""
        return max(16, min(self.most_writes, self.megabytes * 1_000_000 // max(size, 1)))

    def trips(self, size: int) -> int:
        """How many round trips of `size` bytes a round times."""
        return max(4, min(self.round_trips, self.megabytes * 1_000_000 // max(4 * size, 1)))

    def chosen(self) -> list[Network]:
        """The networks by name, in the order of NETWORKS."""
        return [n for n in NETWORKS if n.name in self.networks]

    def check(self) -> None:
        """Refuses what cannot run.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        known = [n.name for n in NETWORKS]
        for name in self.networks:
            if name not in known:
                refuse("--network", name, one_of(known))
        if not self.networks:
            refuse("--network", Described("nothing"), "one or more of " + ", ".join(known))
        if not self.sizes:
            refuse("--size", Described("nothing"), "one or more sizes in bytes")
        for size in self.sizes:
            if not 0 < size <= MOST_BYTES:
                refuse("--size", size, f"1 to {MOST_BYTES} bytes")
        for option, value in (("--rounds", self.rounds), ("--megabytes", self.megabytes)):
            if value < 1:
                refuse(option, value, "1 or more")
