"""Counters of executed PTX for the time model, as bench/device/kernel_counts.json.

    python -m tests.gpu.ptx.collect [--only LABEL] [--out FILE]

Needs NVRTC and takes up to three minutes a case. A field of a kernel is the largest of its launches in the last round,
over all ranks, since the slowest rank ends a call.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.device.time_model import CASES, CHECKS, COUNTS, Case
from tests.gpu import critical_paths
from tests.gpu.ptx.counting import launches, open_driver
from tests.gpu.ptx.machine import Counts
from uccl_ep import Config


def worst(seen: list[Counts]) -> dict[str, dict[str, int]]:
    """By kernel, each field's largest."""
    found: dict[str, dict[str, int]] = {}
    for launch in seen:
        one = {
            "blocks": launch.grid,
            "warps": launch.warps,
            "lane16": launch.busiest_lane16,
            "loaded": launch.loaded,
            "stored": launch.stored,
            "loaded_away": launch.loaded_away,
            "stored_away": launch.stored_away,
            **asdict(launch.trips),
        }
        most = found.setdefault(launch.kernel, one)
        most.update({name: max(value, most[name]) for name, value in one.items()})
    return dict(sorted(found.items()))


def collect(case: Case) -> dict[str, dict[str, int]]:
    """Plays the case on the fake GPU."""
    play: Any = critical_paths.low_latency if case.mode == "low_latency" else critical_paths.throughput
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(critical_paths, "RANKS", case.ranks)
        patch.setattr(critical_paths, "SMS", case.sms)
        patch.setattr(critical_paths, "Config", lambda _: Config(case.call_sms))
        patch.setenv("UCCL_EP_LOW_LATENCY_COMBINE", case.combine)
        per_node = case.ranks_per_node if case.ranks_per_node < case.ranks else 0
        with critical_paths.gpu_of(open_driver, per_node) as driver:
            return worst(play(driver, launches, case.tokens))


def main() -> None:
    """Collects all cases, or one, into the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = CASES + CHECKS
    parser.add_argument("--only", choices=[case.label for case in cases])
    parser.add_argument("--out", type=Path, default=COUNTS)
    chosen = parser.parse_args()
    found = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for case in cases:
        if chosen.only in (None, case.label):
            found[case.label] = collect(case)
            chosen.out.write_text(
                json.dumps({c.label: found[c.label] for c in cases if c.label in found}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
