"""What a rank takes of the machine, itself and its proxy process together, and whether a series of that grows."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

# An allocator keeps what it may need again, and where its arenas end is chance. A thousand cycles that lose 8 KiB each
# are beyond it.
MEMORY_NOISE_BYTES = 8 << 20
MEMORY = ("rss", "pss")


@dataclass(frozen=True)
class Sample:
    """Sums over a process and its children; memory in bytes, the rest counts."""

    rss: int
    pss: int
    descriptors: int
    segments: int  # mappings of segments of ours
    threads: int
    children: int


def take() -> Sample:
    """This process and its children now, without what only waits for the garbage collector."""
    gc.collect()
    me = psutil.Process()
    children = me.children(recursive=True)
    rows = [row for process in (me, *children) for row in _of(process)]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    return Sample(*sums, children=len(children))


def _of(process: psutil.Process) -> Iterator[tuple[int, int, int, int, int]]:
    try:
        full = process.memory_full_info()
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        segments = sum("/memfd:uccl-ep" in line for line in maps.splitlines())
        yield full.rss, full.pss, process.num_fds(), segments, process.num_threads()
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return  # a child that has just ended


def settled(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the warm-up, which is the first quarter."""
    return samples[len(samples) // 4 :]


def growth(samples: Sequence[Sample]) -> dict[str, int]:
    """By how much each figure grew, of at least four samples: the least of the last half over the least of the first.

    The least, since a collection or a thread that has not quite ended only ever adds.
    """
    judged = [asdict(sample) for sample in settled(samples)]
    assert len(judged) >= 2, "too few samples to judge"
    first, last = judged[: len(judged) // 2], judged[len(judged) // 2 :]
    return {name: min(s[name] for s in last) - min(s[name] for s in first) for name in judged[0]}


def beyond_noise(samples: Sequence[Sample]) -> dict[str, int]:
    """The figures that grew by more than they may; empty: none."""
    bounds = dict.fromkeys(MEMORY, MEMORY_NOISE_BYTES)
    return {name: more for name, more in growth(samples).items() if more > bounds.get(name, 0)}
