"""Which rank of another host has been killed, and who watches whom for that.

A process that is killed says nothing, and its NIC is silent too: who sends to it goes on until the retries are used up,
which takes long because links may flap. But the kernel of its host ends the process's TCP connections at once. So each
rank is watched by one rank of every other host, over the messenger's connection to it, and who watches tells all ranks
of its own host.

The end of a connection is no proof: a link or a firewall ends some, too. The connection is made anew, and only a host
that refuses it says that the process which listened there has gone. A rank that closes its listener in good order says
so on the connection first. A rank that no connection has ever reached is not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


class Watch:
    """The ranks that a messenger watches. On its thread, but for the making.

    Args:
        ranks: those.
        on_death: called with each that has been killed; it must not block.
    """

    def __init__(self, ranks: Collection[int] = (), on_death: Callable[[int], None] = lambda rank: None) -> None:
        self._unreached, self._held = set(ranks), set[int]()
        self._on_death = on_death

    @property
    def unreached(self) -> frozenset[int]:
        """Those to whom there has been no connection yet."""
        return frozenset(self._unreached)

    def holds(self, rank: int) -> bool:
        """There has been a connection to it, and no goodbye."""
        return rank in self._held

    def reach(self, rank: int) -> None:
        """There is a connection to it, and it has proven itself."""
        if rank in self._unreached:
            self._unreached.discard(rank)
            self._held.add(rank)

    def drop(self, rank: int) -> None:
        """It has said goodbye, or cannot be reached: it is watched no longer."""
        self._unreached.discard(rank)
        self._held.discard(rank)

    def refuse(self, rank: int) -> None:
        """Its host says that nobody listens there any more."""
        held = self.holds(rank)
        self.drop(rank)
        if held:
            self._on_death(rank)


def watched_by(rank: int, hosts: Sequence[str], members: Collection[int]) -> list[int]:
    """The ranks of other hosts that `rank` watches for its own host.

    Args:
        hosts: identity of the host of each rank.
        members: ranks that take part, `rank` among them.
    """
    by_host: dict[str, list[int]] = {}
    for member in sorted(members):
        by_host.setdefault(hosts[member], []).append(member)
    own = by_host.pop(hosts[rank])
    return sorted(other for ranks in by_host.values() for other in ranks[own.index(rank) :: len(own)])
