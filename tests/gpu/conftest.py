"""The place that a test's ranks run on; tests that need a real GPU have the marker `gpu`."""

from __future__ import annotations

import os

import pytest

from bench.device.platforms import Platform
from tests.gpu.places import PLACES, open_place

# Ranks share the process here. CUDA that loads a kernel of torch's at its first launch may wait for another rank's
# kernel, which waits for that rank. Seen on an H100; with a process a GPU nothing of the kind can be.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


@pytest.fixture(params=PLACES)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The CPU, the fake GPU, and a GPU where there is one."""
    return open_place(request.param, monkeypatch)


@pytest.fixture(params=PLACES[1:])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Likewise, for what a CPU does not have: graphs, streams that run behind the caller's back."""
    return open_place(request.param, monkeypatch)
