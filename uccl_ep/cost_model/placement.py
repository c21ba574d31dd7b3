"""Where experts lie: slots of ranks, of which a popular expert has several (EPLB); and which copy a token goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep.cost_model.cluster import Ints
from uccl_ep.cost_model.routing import Routing
from uccl_ep.errors import Described, refuse


def checked(name: str, placement: Sequence[int] | npt.NDArray[Any], ranks: int, experts: int) -> Ints:
    """int64 [P]: the expert in each slot, as EPLB's physical_to_logical_map of one layer has it; -1: none. Rank r has
    slots r P / N to (r + 1) P / N - 1.

    Raises:
        InvalidArgument: ranks cannot share the slots equally, or there is no such expert, or an expert has no slot.
    """
    slots: Ints = np.asarray(placement, dtype=np.int64)
    if slots.ndim != 1 or not slots.size or slots.size % ranks:
        refuse(name, Described(f"{slots.shape} slots"), f"[slots], a multiple of the {ranks} ranks")
    if slots.min() < -1 or slots.max() >= experts:
        refuse(name, int(slots.max() if slots.max() >= experts else slots.min()), f"experts 0 to {experts - 1}, or -1")
    if missing := sorted(set(range(experts)) - set(slots.tolist())):
        refuse(name, Described(f"no slot for expert {missing[0]}"), f"a slot for each of the {experts} experts")
    return slots


def linear(experts: int, slots: int) -> Ints:
    """int64 [slots]: experts in order, and once more from the first one where there are more slots."""
    return np.arange(slots, dtype=np.int64) % experts


def balanced(load: Sequence[int] | Ints, ranks: int, slots: int) -> Ints:
    """int64 [slots]: a placement for experts of which each has so many rows (`load` [E]).

    One more copy at a time for the expert whose copies have the most rows, of which a rank takes one at most; then
    copies, largest first, each to the rank with the fewest rows that has room. It does not look where experts were
    before, and is not the best there is: that takes a search.

    Raises:
        InvalidArgument: fewer slots than experts, or more than ranks can share or have a use for.
    """
    rows = np.asarray(load, dtype=np.float64)
    most = len(rows) * ranks
    if slots % ranks or not len(rows) <= slots <= most:
        refuse("slots", slots, f"a multiple of the {ranks} ranks, {len(rows)} to {most}")
    copies = np.ones(len(rows), dtype=np.int64)
    for _ in range(slots - len(rows)):
        copies[np.argmax(np.where(copies < ranks, rows / copies, -1.0))] += 1
    share, order = rows / copies, np.argsort(-rows / copies, kind="stable")
    room, loads = [slots // ranks] * ranks, [0.0] * ranks
    held: list[list[int]] = [[] for _ in range(ranks)]
    for expert in np.repeat(order, copies[order]).tolist():
        free = [rank for rank in range(ranks) if room[rank]]
        apart = [rank for rank in free if expert not in held[rank]] or free
        rank = min(apart, key=lambda r: (loads[r], r))
        room[rank] -= 1
        loads[rank] += share[expert]
        held[rank].append(expert)
    return np.asarray([expert for own in held for expert in sorted(own)], dtype=np.int64)


def rows_of_experts(routing: Routing, experts: int) -> Ints:
    """int64 [E]: (token, expert) pairs of all ranks by expert; what is not routed counts for none."""
    ids = np.concatenate([np.asarray(one).reshape(-1) for one in routing]).astype(np.int64)
    return np.bincount(ids[(ids >= 0) & (ids < experts)], minlength=experts)


def to_slots(routing: Routing, placement: Ints, experts: int) -> list[Ints]:
    """By rank: slots [T, K] that its tokens go to, -1 where not routed. Copies of an expert take turns by the place of
    the choice in `routing` (token times K plus k), so that each has an equal share of every rank's tokens."""
    order = np.argsort(placement, kind="stable")[int((placement < 0).sum()) :]
    copies = np.bincount(placement[placement >= 0], minlength=experts)
    begin = np.cumsum(copies) - copies
    found = []
    for one in routing:
        ids: Ints = np.asarray(one, dtype=np.int64)
        routed = (ids >= 0) & (ids < experts)
        known = np.where(routed, ids, 0)
        turn = np.arange(ids.size).reshape(ids.shape) % copies[known]
        found.append(np.where(routed, order[begin[known] + turn], -1))
    return found
