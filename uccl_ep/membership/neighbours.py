"""What ranks of one host see of each other without the network: who lives, and who has voted to go on without whom.

A listener that refuses is no death, since ranks may have network namespaces of their own. And a death proves only that
a rank goes on with nobody from now on: it may have helped others before. So a rank that votes for a group first tells
the ranks of its host that the group leaves out, in their own memory, where they find it when its process has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from uccl_ep._native import DEPARTED_LEFT, DEPARTED_VALUES, DEPARTED_VOTED_AGAINST
from uccl_ep.membership.root_cause import has_ended, start_of

Words = NDArray[np.uint64]


class Neighbours:
    """Of one rank, in one life of its Buffer.

    Args:
        own: its words `departed`, which the others write, by rank.
        others: for each other rank of the host: its process, and those of its words that this rank writes.
    """

    def __init__(self, own: Words, others: Mapping[int, tuple[int, Words]]) -> None:
        self._own, self._others = own, others
        self._starts = {rank: start_of(pid) for rank, (pid, _) in others.items()}

    def __contains__(self, rank: int) -> bool:
        return rank in self._others

    def has_ended(self, rank: int) -> bool:
        """Its process has."""
        return has_ended(self._others[rank][0], self._starts[rank])

    def has_left(self, rank: int) -> bool:
        """It has ended this life in good order."""
        return self._departed(rank) == DEPARTED_LEFT

    def has_voted_against(self, rank: int) -> bool:
        """It has voted for a group that this rank is not in."""
        return self._departed(rank) == DEPARTED_VOTED_AGAINST

    def _departed(self, rank: int) -> int:
        return int(self._own[rank]) & DEPARTED_VALUES  # what this rank's proxy knows stands beside that

    def vote_against(self, ranks: Iterable[int]) -> None:
        """Tells those of them that are of this host."""
        for rank in ranks:
            if rank in self._others:
                self._others[rank][1][:] = DEPARTED_VOTED_AGAINST
