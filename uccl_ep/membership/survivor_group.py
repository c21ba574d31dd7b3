"""The group that ranks go on in when some of theirs are lost: its exchanges go over the agreement service."""

from __future__ import annotations

from typing import Any

from uccl_ep.membership.agreement_service import AgreementService


class SurvivorGroup:
    """The group that a decision leaves: ranks keep their numbers, absent ones give None.

    Attributes:
        absent: ranks that are no members.
        hosts, domains: host identity and NVLink domain of every rank of the original group: nodes stay what they were.
    """

    def __init__(
        self, agreement_service: AgreementService, hosts: list[str], deadline_s: float, domains: list[str] | None = None
    ) -> None:
        self._roll_call, self._deadline_s = agreement_service, deadline_s
        self._generation, self._index = agreement_service.generation, 0
        self.agreement_service, self.hosts, self.domains = agreement_service, hosts, domains or [""] * len(hosts)
        self.absent = frozenset(range(agreement_service.num_ranks)) - agreement_service.members

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
