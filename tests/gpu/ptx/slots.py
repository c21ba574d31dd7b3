"""Registers of lowered instructions to slots, which registers share that do not live at the same time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass
class Lowered:
    """One instruction of the machine; registers still by name. A source is a name or a value."""

    op: str
    targets: list[str] = field(default_factory=list)  # "_" where a result is not wanted
    sources: list[str | int] = field(default_factory=list)
    offset: int = 0
    memory: str = ""
    predicate: str = ""
    place: int = 0
    label: str = ""  # that a branch goes to


def _uses(one: Lowered) -> list[str]:
    names = [s for s in one.sources if isinstance(s, str)]
    if one.predicate:  # an instruction that may do nothing leaves its targets as they were
        names += [one.predicate.lstrip("!"), *_defines(one)]
    return names


def _defines(one: Lowered) -> list[str]:
    return [t for t in one.targets if t != "_"]


def _join_wide(lowered: list[Lowered]) -> None:
    """A 128-bit register is two of 64: what is packed into it is stored from where it was."""
    halves: dict[str, list[str | int]] = {}
    for one in lowered:
        if one.op == "pack128":
            halves[one.targets[0]] = list(one.sources)
            one.op, one.targets, one.sources = "mov", ["_"], [0]
        elif one.op == "st":
            one.sources = [
                halves[s[:-3]][s.endswith(".hi")] if isinstance(s, str) and s.endswith((".lo", ".hi")) else s
                for s in one.sources
            ]


def slots_of(lowered: list[Lowered]) -> tuple[dict[str, int], int]:
    """A slot for each register, shared by those that do not live at the same time, and how many slots that takes."""
    _join_wide(lowered)
    ends = _live_ranges(lowered)
    slots: dict[str, int] = {}
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (the end of its life, slot)
    count = 0
    for name, (begin, end) in sorted(ends.items(), key=lambda item: item[1]):
        while busy and busy[0][0] < begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            slots[name] = heapq.heappop(free)
        else:
            slots[name] = count
            count += 1
        heapq.heappush(busy, (end, slots[name]))
    return slots, count


def _live_ranges(lowered: list[Lowered]) -> dict[str, tuple[int, int]]:
    """First and last instruction of each register's life, loops included."""
    number = {name: n for n, name in enumerate(dict.fromkeys(x for one in lowered for x in _uses(one) + _defines(one)))}
    starts = sorted({0, *(one.offset for one in lowered if one.op == "bra"), *_after_jumps(lowered)})
    blocks = list(zip(starts, [*starts[1:], len(lowered)], strict=True))
    index = {begin: n for n, (begin, _) in enumerate(blocks)}
    used, defined, after = [], [], []
    for begin, end in blocks:
        reads = writes = 0
        for one in lowered[begin:end]:
            for name in _uses(one):
                reads |= (1 << number[name]) & ~writes
            for name in _defines(one):
                writes |= 1 << number[name]
        used.append(reads)
        defined.append(writes)
        last = lowered[end - 1]
        next_blocks = [index[last.offset]] if last.op == "bra" else []
        if end < len(lowered) and (last.op not in ("bra", "ret") or last.predicate):
            next_blocks.append(index[end])
        after.append(next_blocks)
    live_in = list(used)
    live_out = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(blocks))):
            out = 0
            for follower in after[n]:
                out |= live_in[follower]
            into = used[n] | out & ~defined[n]
            if out != live_out[n] or into != live_in[n]:
                live_out[n], live_in[n], changed = out, into, True
    names = list(number)
    first: dict[str, int] = {}
    last_at: dict[str, int] = {}

    def at(name: str, position: int) -> None:
        first[name] = min(first.get(name, position), position)
        last_at[name] = max(last_at.get(name, position), position)

    for n, (begin, end) in enumerate(blocks):
        for mask, position in ((live_in[n], begin), (live_out[n], end - 1)):
            while mask:
                low = mask & -mask
                at(names[low.bit_length() - 1], position)
                mask ^= low
        for position in range(begin, end):
            for name in _uses(lowered[position]) + _defines(lowered[position]):
                at(name, position)
    return {name: (first[name], last_at[name]) for name in names}


def _after_jumps(lowered: list[Lowered]) -> list[int]:
    return [n + 1 for n, one in enumerate(lowered) if one.op in ("bra", "ret") and n + 1 < len(lowered)]
