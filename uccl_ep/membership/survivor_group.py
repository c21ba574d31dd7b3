"""The group that ranks go on in when some of theirs are lost: its exchanges go over the roll call."""

from __future__ import annotations

from typing import Any

from uccl_ep.membership.roll_call import RollCall


class SurvivorGroup:
    """The group that a decision leaves: ranks keep their numbers, absent ones give None.

    Attributes:
        absent: ranks that are no members.
        hosts: host identity of every rank of the original group, so that nodes stay what they were.
    """

    def __init__(self, roll_call: RollCall, hosts: list[str], deadline_s: float) -> None:
        self._roll_call, self._deadline_s = roll_call, deadline_s
        self._generation, self._index = roll_call.generation, 0
        self.roll_call, self.hosts = roll_call, hosts
        self.absent = frozenset(range(roll_call.num_ranks)) - roll_call.members

    def rank(self) -> int:
        """This rank's number in the original group."""
        return self._roll_call.rank

    def size(self) -> int:
        """Ranks of the original group."""
        return self._roll_call.num_ranks

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every member's `value` (bytes) by rank, None for absent ranks. Collective among members.

        Raises:
            PeerLost, PeerTimeout: a member did not take part; agree() again.
        """
        found = self._roll_call.exchange(self._generation, self._index, value, self._deadline_s)
        self._index += 1
        return [found.get(rank) for rank in range(self.size())]
