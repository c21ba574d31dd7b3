"""Whether a group of survivors may go on: two groups must never do so that each think the other dead.

It may when it is a majority of the *base*, the members of the last life that all of its ranks began, less those that
are *dead*: certain to be in no other group. Of exactly half, the half with the lowest rank that is not dead may. Of two
groups without a common rank only one can be such, also when they know of different deaths. (The deaths that either
knows of leave no more than both groups together need; as many only when they know of the same.)

Dead is who has ended, as a rank of its own host sees it: the process has, or it has left in good order and its listener
refuses; and it had not voted to go on without that rank (neighbours.py). The end of a connection is no proof. A group
that was agreed on is no base yet: a rank of it may have missed that, and go on with others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from uccl_ep.errors import NoQuorum
from uccl_ep.membership.neighbours import Neighbours


class Quorum:
    """What one rank knows. Not for several threads at once.

    Attributes:
        base: ranks that a majority is counted of.
        dead: of these, those that are not counted.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.base = frozenset(range(num_ranks))
        self.dead: set[int] = set()
        self._lives: list[Neighbours] = []  # the base's, and later ones whose start has failed

    def see(self, life: Neighbours) -> None:
        """A life has begun here, though maybe not everywhere."""
        self._lives.append(life)

    def settle(self, members: frozenset[int]) -> None:
        """All of them have begun the newest life."""
        self.base = members
        self._lives = self._lives[-1:]

    def forget(self) -> None:
        """Lets go of all memory."""
        self._lives.clear()

    def look(self, suspects: Collection[int], unreached: Collection[int]) -> None:
        """Looks for deaths among `suspects`; the listeners of `unreached` refuse."""
        for rank in set(suspects) & self.base - self.dead:
            life = self._newest(rank)
            if life is None or not (life.has_ended(rank) or (life.has_left(rank) and rank in unreached)):
                continue
            if not any(rank in one and one.has_voted_against(rank) for one in self._lives):  # after its end was seen
                self.dead.add(rank)

    def hear(self, dead: Collection[int]) -> None:
        """Another rank of the group that is being agreed on has looked."""
        self.dead |= set(dead) & self.base - {self.rank}

    def vote(self, absent: Collection[int]) -> None:
        """Before this rank says to anybody that it goes on without these."""
        for life in self._lives:
            life.vote_against(absent)

    def is_near(self, rank: int) -> bool:
        """Whether its death would be seen."""
        return self._newest(rank) is not None

    def lives(self, rank: int) -> bool:
        """It is seen to live and has not left, whatever its listener says."""
        life = self._newest(rank)
        return life is not None and not (life.has_left(rank) or life.has_ended(rank))

    def _newest(self, rank: int) -> Neighbours | None:
        return next((life for life in reversed(self._lives) if rank in life), None)

    def reached(self, group: Collection[int]) -> bool:
        """Whether this group may go on."""
        counted = self.base - self.dead
        here = counted & set(group)
        return 2 * len(here) > len(counted) or (2 * len(here) == len(counted) and min(counted, default=-1) in here)

    def refuse(self, group: Collection[int], unwilling: Collection[int]) -> NoReturn:
        """Raises NoQuorum for a group that may not; `unwilling` of it did not ask for that all the same."""
        counted = self.base - self.dead
        missing = sorted(counted - set(group))
        needed = len(counted) // 2 + 1
        half = f", or {len(counted) // 2} of them with rank {min(counted)}" if len(counted) % 2 == 0 else ""
        near = [rank for rank in missing if self.lives(rank)]
        why = f" (the processes of {_listed(near)} live on this host: has each a network of its own?)" if near else ""
        ways = (
            f"rank(s) {_listed(unwilling)} did not ask for allow_minority=True"
            if set(unwilling) - {self.rank} and self.rank not in unwilling
            else "if you know that they have ended, call recover(allow_minority=True) on all that are left"
        )
        raise NoQuorum(
            f"rank {self.rank}: rank(s) {_listed(missing)} cannot be reached, and may go on by themselves{why}. Left "
            f"are {_listed(group)} of the last agreed {_listed(self.base)}; needed are {needed} of {_listed(counted)}"
            f"{half}: {ways}; or recover(group) with a new group, in which ranks may be replaced.",
            missing=tuple(missing),
            needed=needed,
        )


def _listed(ranks: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
