"""The native module: the limits are those of proxy/wire/limits.h, and importing it needs nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from uccl_ep import _native

ROOT = Path(__file__).parents[3]
NAMES = {
    "MAX_RANKS": "kMaxRanks", "MAX_EXPERTS": "kMaxExperts", "MAX_TOKENS_PER_RANK": "kMaxTokensPerRank",
    "MAX_TOPK": "kMaxTopk", "MAX_RANKS_PER_NODE": "kMaxRanksPerNode", "MAX_CHANNELS": "kMaxChannels",
    "MAX_HIDDEN": "kMaxHidden", "MAX_REGION_BYTES": "kMaxRegionBytes", "MAX_WRITE_BYTES": "kMaxWriteBytes",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_module_limit_is_the_wires(name: str) -> None:
    limits = (ROOT / "proxy" / "wire" / "limits.h").read_text()
    expression = re.search(rf"constexpr u\d+ {NAMES[name]} = ([^;]+);", limits)
    assert expression is not None
    value = re.sub(r"(?<=[0-9])u?l*(?=\W|$)", "", expression[1])
    assert re.fullmatch(r"[0-9()<\- ]+", value)
    assert getattr(_native, name) == eval(value)


def test_module_limits_are_what_the_design_promises() -> None:
    assert min(_native.MAX_RANKS, _native.MAX_EXPERTS) >= 4096
    assert _native.MAX_TOKENS_PER_RANK >= 65536 and _native.MAX_REGION_BYTES >= 1 << 40


def test_module_imports_alone_and_leaks_nothing_at_exit() -> None:
    code = "import sys\nfrom uccl_ep import _native\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_module_has_all_parts() -> None:
    for name in ("Segment", "Proxy", "LowLatencyLayout", "Stream", "ThroughputCalls", "read_fault"):
        assert hasattr(_native, name)
    assert _native.__doc__ and "Native core" in _native.__doc__
