"""The counters that the time model goes by are those of the kernels as they are."""

from __future__ import annotations

import json

import pytest

from bench.device.time_model import CHECKS, COUNTS, Case
from tests.gpu.ptx.collect import collect

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
SAME = ("blocks", "warps", "loaded", "stored", "loaded_away", "stored_away", "fence")
"""What no order of lanes changes. Trips and the busiest lane's accesses differ a little from run to run."""


@pytest.mark.parametrize("case", CHECKS, ids=lambda case: case.label)
def test_ptx_counts_of_the_time_model_are_of_these_kernels(case: Case) -> None:
    kept = json.loads(COUNTS.read_text())[case.label]
    now = collect(case)
    differ = {
        f"{kernel} {name}": (kept.get(kernel, {}).get(name), counts[name])
        for kernel, counts in now.items()
        for name in SAME
        if kept.get(kernel, {}).get(name) != counts[name]
    }
    assert not differ and kept.keys() == now.keys(), (
        f"kernels have changed since {COUNTS.name} was collected (then, now): {differ}\n"
        "collect it anew, about half an hour: python -m tests.gpu.ptx.collect"
    )
