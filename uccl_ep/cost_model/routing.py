"""Where tokens go, for the model: which expert each token chooses, under three kinds of gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep.cost_model.cluster import Ints
from uccl_ep.errors import one_of, refuse

KINDS = ("random", "group-limited", "skewed")
"""random: every set of experts alike. group-limited: DeepSeek-V3's gate, 4 of 8 groups of neighbouring experts.
skewed: expert popularity falls as 1/rank (Zipf), with the popular ones anywhere."""

Routing = Sequence[npt.NDArray[Any]]
"""By rank: expert ids [T, K]; what is outside 0 to E - 1 is not routed."""

GROUPS, CHOSEN_GROUPS = 8, 4


def make_routing(kind: str, ranks: int, tokens: int, topk: int, experts: int, seed: int = 0) -> list[Ints]:
    """Ids int64 [tokens, topk] of every rank, without repetition in a token; the same for the same arguments.

    Raises:
        InvalidArgument: no such kind, or more choices than experts to choose from.
    """
    if kind not in KINDS:
        refuse("routing", kind, one_of(KINDS))
    groups = GROUPS if kind == "group-limited" and experts % GROUPS == 0 else 1
    pool = experts // groups * (CHOSEN_GROUPS if groups > 1 else 1)
    if not 1 <= topk <= pool:
        refuse("topk", topk, f"1 to {pool} with {kind} routing over {experts} experts")
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    shares = 1.0 / np.arange(1, experts + 1)
    popular = np.cumsum(shares / shares.sum())
    popular[-1] = 1.0  # the sum may be a hair below
    names = generator.permutation(experts)
    found = []
    for _ in range(ranks):
        if kind == "skewed":
            found.append(
                names[
                    _without_repeats((tokens, topk), lambda n: np.searchsorted(popular, generator.random(n), "right"))
                ]
            )
        elif groups == 1:
            found.append(_without_repeats((tokens, topk), lambda n: generator.integers(experts, size=n)))
        else:
            drawn = _without_repeats((tokens, topk), lambda n: generator.integers(pool, size=n))
            each = experts // groups
            chosen = _without_repeats((tokens, CHOSEN_GROUPS), lambda n: generator.integers(groups, size=n))
            found.append(np.take_along_axis(chosen, drawn // each, axis=1) * each + drawn % each)
    return found


def _without_repeats(shape: tuple[int, int], draw: Callable[[int], Ints]) -> Ints:
    """Draws one after the other; who repeats an earlier one draws again: sampling without replacement."""
    drawn = np.empty(shape, dtype=np.int64)
    for k in range(shape[1]):
        again = np.arange(shape[0])
        while again.size:
            drawn[again, k] = draw(again.size)
            again = again[(drawn[again, :k] == drawn[again, k : k + 1]).any(axis=1)]
    return drawn
