"""What a rank has prepared, and where: what it tells the others of a change of members, and how they compare it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

NOTHING, LEAVES = -1, 0  # for `size`
_KINDS = "low-latency dispatches", "combines", "throughput calls", "barriers"


class Prepared(NamedTuple):
    """One rank's part.

    Attributes:
        dispatches, combines, throughput, barriers: calls of the present life before prepare_members(), which all ranks
            make alike (Life.calls_made).
        steps: calls of switch_members() before it.
        size, rank: of the next group, and this rank's number there; LEAVES: none; NOTHING: it has prepared no change,
            though others had before its last call.
    """

    dispatches: int
    combines: int
    throughput: int
    barriers: int
    steps: int
    size: int
    rank: int

    @property
    def calls(self) -> tuple[int, ...]:
        """What must be alike on all ranks."""
        return self[: len(_KINDS)]

    def as_text(self) -> str:
        """For the others."""
        return " ".join(map(str, self))

    @staticmethod
    def of(text: object) -> Prepared:
        """What another rank has told; what no correct rank says counts as nothing."""
        words = str(text).split()
        if len(words) != len(Prepared._fields) or not all(word.lstrip("-").isdecimal() for word in words):
            return Prepared(0, 0, 0, 0, 0, NOTHING, 0)
        return Prepared(*map(int, words))

    def is_past(self, other: Prepared) -> bool:
        """Whether this rank has made calls that the other had not made when it prepared."""
        return self.calls != other.calls and all(a >= b for a, b in zip(self.calls, other.calls, strict=True))

    def __str__(self) -> str:
        what = "nothing" if self.size == NOTHING else "to leave" if self.size == LEAVES else f"a group of {self.size}"
        return f"{what} after {', '.join(f'{n} {kind}' for n, kind in zip(self.calls, _KINDS, strict=True))}"


def disagreement(said: Mapping[int, Prepared], late: Collection[int], deadline_s: float) -> str:
    """Why these ranks cannot change; empty: they agree. Those that are `late` have told nothing within `deadline_s`."""
    if late:
        return f"{listed(late)} prepared no change within {deadline_s:g} s"
    kinds: dict[str, list[int]] = {}
    for rank, one in sorted(said.items()):
        kinds.setdefault(str(one), []).append(rank)
    stay = [one for one in said.values() if one.size > LEAVES]
    alike = len({one.calls for one in said.values()}) == 1 and len({one.size for one in stay}) < 2
    if not alike or any(one.size == NOTHING for one in said.values()):
        return "; ".join(f"{listed(ranks)} prepared {what}" for what, ranks in kinds.items())
    numbers: dict[int, list[int]] = {}
    for rank, one in sorted(said.items()):
        numbers.setdefault(one.rank if one.size > LEAVES else -1 - rank, []).append(rank)
    return "; ".join(f"{listed(ranks)} are to be rank {at}" for at, ranks in numbers.items() if len(ranks) > 1)


def listed(ranks: Collection[int]) -> str:
    """ "rank 3", or "ranks 0, 1"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
