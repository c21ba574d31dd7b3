"""The fingerprint names the machine and what was loaded."""

from __future__ import annotations

import json
import os

import torch

import uccl_ep
from uccl_ep.tools.bench.fingerprint import cache_bytes, cpu_model, fingerprint


def test_fingerprint_is_plain_data_about_this_process() -> None:
    found = fingerprint()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["torch"] == torch.__version__ and found["uccl_ep"] == uccl_ep.__version__
    assert found["cpu"] == cpu_model() != ""
    assert found["cache_bytes"] == cache_bytes() and all(size >= 1 << 10 for size in cache_bytes().values())
