"""What a process holds: descriptors, mapped segments, threads, children. Two of them tell what was left."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Inventory:
    """Counts by name: kinds of descriptors, names of threads; and lists of what is mapped and running."""

    descriptors: Counter[str] = field(default_factory=Counter)
    segments: int = 0  # mappings of segments of ours
    threads: Counter[str] = field(default_factory=Counter)
    children: int = 0

    def since(self, before: Inventory) -> dict[str, int]:
        """What there is more of than there was; empty: nothing."""
        more = {f"descriptor {name}": n for name, n in (self.descriptors - before.descriptors).items()}
        more |= {f"thread {name}": n for name, n in (self.threads - before.threads).items()}
        counts = {"segments": self.segments - before.segments, "children": self.children - before.children}
        return more | {name: n for name, n in counts.items() if n > 0}


def take() -> Inventory:
    """This process's inventory, without what only waits for the garbage collector."""
    gc.collect()
    descriptors: Counter[str] = Counter()
    for number in os.listdir(PROCESS / "fd"):
        try:
            descriptors[_kind(os.readlink(PROCESS / "fd" / number))] += 1
        except OSError:
            continue  # of the listing itself
    with open(PROCESS / "maps", encoding="utf-8") as maps:
        segments = sum("/memfd:uccl-ep" in line for line in maps)
    return Inventory(descriptors, segments, _threads(), len(psutil.Process().children(recursive=True)))


def of_another_program(name: str, pids: Container[int]) -> bool:
    """Whether a file in /dev/shm was made by libfabric, which begins names with a pid, in a process that is none of
    `pids`: it comes and goes with other programs, or was left by them."""
    pid, colon, _ = name.partition(":")
    return bool(colon) and pid.isdecimal() and int(pid) not in pids


def _kind(target: str) -> str:
    """A descriptor's target without what differs each time; files keep their names."""
    return target.partition(":")[0] if target.startswith(("socket:", "pipe:")) else target.partition(" (deleted)")[0]


def _threads() -> Counter[str]:
    names: Counter[str] = Counter()
    for thread in (PROCESS / "task").iterdir():
        try:
            names[(thread / "comm").read_text().strip()] += 1
        except OSError:
            continue  # it has just ended
    return names
