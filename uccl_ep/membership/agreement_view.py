"""What a rank says of itself while survivors agree: its form in memory and on the wire."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from uccl_ep.membership.messenger import Message

ALIVE, PROPOSING, CONFIRMING, DECIDED = range(-1, 3)


@dataclass(frozen=True)
class View:
    """The newest word of a rank on a generation.

    Attributes:
        number: of its words, rising.
        suspects: whom it suspects, or has decided to go on without.
        hints: whom its call was about, before anybody was asked.
        ballot, refusals: of the generation: which try it is in, and how many have ended in a refusal there.
        backed: it knows that these survivors are a quorum. allows: it may go on without one.
        dead: ranks that it knows to be in no other group.
    """

    number: int
    phase: int
    suspects: frozenset[int]
    hints: frozenset[int]
    ballot: int
    refusals: int
    backed: bool
    allows: bool
    dead: Collection[int]

    def as_message(self) -> Message:
        """Its part of a message."""
        return {
            "n": self.number,
            "p": self.phase,
            "x": sorted(self.suspects),
            "hints": sorted(self.hints),
            "try": [self.ballot, self.refusals],
            "may": [self.backed, self.allows],
            "dead": sorted(self.dead),
        }

    @staticmethod
    def of(message: Message, num_ranks: int) -> tuple[View, frozenset[int]]:
        """The view in a message, and who was absent before. Raises ValueError, TypeError or KeyError when no correct
        rank says that."""
        ranks = {name: _ranks(message[name], num_ranks) for name in ("x", "hints", "dead", "before")}
        phase, (ballot, refusals), (backed, allows) = message["p"], message["try"], message["may"]
        if (
            type(phase) is not int
            or not ALIVE <= phase <= DECIDED
            or type(backed) is not bool
            or type(allows) is not bool
        ):
            raise ValueError("no such message")
        tries = (whole(ballot), whole(refusals))
        view = View(whole(message["n"]), phase, ranks["x"], ranks["hints"], *tries, backed, allows, ranks["dead"])
        return view, ranks["before"]


def whole(value: object) -> int:
    """A number of a message. Raises ValueError."""
    if type(value) is not int or value < 0 or value >= 1 << 63:
        raise ValueError("not a number")
    return value


def _ranks(value: object, num_ranks: int) -> frozenset[int]:
    if not isinstance(value, list) or len(value) > num_ranks:
        raise ValueError("no ranks")
    ranks = frozenset(whole(rank) for rank in value)
    if ranks and max(ranks) >= num_ranks:
        raise ValueError("no such rank")
    return ranks
