"""What a rank does for endurance: lives of Buffers, and a long life of one; measured as it goes."""

from __future__ import annotations

import time
from typing import Any

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.endurance.measure import Sample, take

_KNOWN = 5  # rounds whose expectations stay computed; every _FRESH-th is one that was never seen
_FRESH = 40
_FORMATS = ("bf16", "fp8", "fp8_round_scale", "fp8_ue8m0")
_SENDS = ("sync", "hook", "async")


def step_of(number: int) -> Step:
    """Round `number`: both modes in turn, in shapes that change."""
    seed = number if number % _FRESH == 0 else number % _KNOWN
    if seed % 2 == 0:
        return LowLatencyStep(
            seed,
            max_tokens=(6, 8, 3)[seed % 3],
            hidden=(128, 256)[seed // 2 % 2],
            format=_FORMATS[seed // 2 % 4],
            send=_SENDS[seed % 3],
        )
    return ThroughputStep(
        seed,
        max_tokens=(10, 24)[seed // 2 % 2],
        hidden=(64, 128)[seed // 3 % 2],
        num_bias=seed % 3,
        num_cached=seed % 2,
        use_async=seed % 4 == 1,
    )


_LARGEST: list[Step] = [
    LowLatencyStep(0, max_tokens=8, hidden=256),
    ThroughputStep(0, max_tokens=24, hidden=128),
]


def play_round(buffer: Any, number: int, ranks_per_node: int) -> None:
    """One round, compared to the bit; a barrier now and then."""
    for _ in playing(buffer, step_of(number), ranks_per_node or None):
        pass
    if number % 7 == 3:
        buffer.barrier()


def cycles(group: Any, ranks_per_node: int, first: int, count: int) -> Sample:
    """`count` Buffers: made, two rounds each, destroyed. Then this rank's measure."""
    for cycle in range(first, first + count):
        buffer = make_buffer(group, _LARGEST, ranks_per_node, slack=6)
        try:
            for number in (2 * cycle, 2 * cycle + 1):
                play_round(buffer, number, ranks_per_node)
        finally:
            buffer.destroy()
    return take()


def mixed(group: Any, ranks_per_node: int, first: int, seconds: float) -> tuple[int, list[Sample]]:
    """One Buffer, used for about so long; (rounds, a measure every now and then)."""
    buffer = make_buffer(group, _LARGEST, ranks_per_node, slack=6)
    samples: list[Sample] = []
    begin, number, next_sample = time.monotonic(), first, 0.0
    try:
        # Rank 0's clock counts for all. At least 8 samples, and 8 rounds between two of them.
        while True:
            for _ in range(8):
                play_round(buffer, number, ranks_per_node)
                number += 1
            passed = time.monotonic() - begin
            over, due = group_decision(group, (passed >= seconds and len(samples) >= 8, passed >= next_sample))
            if due:
                samples.append(take())
                next_sample = passed + seconds / 20
            if over:
                return number - first, samples
    finally:
        buffer.destroy()


def group_decision(group: Any, own: tuple[bool, bool]) -> tuple[bool, bool]:
    """What rank 0 thinks, on every rank."""
    import torch.distributed as dist

    if not isinstance(group, dist.ProcessGroup):
        return tuple(group.all_gather_object(own)[0])
    gathered: list[Any] = [None] * group.size()
    dist.all_gather_object(gathered, own, group=group)
    return gathered[0]  # type: ignore[no-any-return]
