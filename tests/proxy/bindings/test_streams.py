"""Streams and events as Python holds them, in a child of fork(); what they do is in tests/kernels/host."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tests.uccl_ep.forks import in_child
from tests.uccl_ep.gate import Gate
from uccl_ep import _native
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.settings import Settings


def test_streams_and_events_are_of_their_process() -> None:
    device = CpuDevice(Settings(), lambda: None)
    with Gate(device):
        held: dict[str, Any] = {"stream": device.comm_stream, "event": device.comm_stream.record()}

        def child() -> None:
            for call in (
                held["event"].query,
                lambda: held["event"].wait(1),
                held["stream"].record,
                held["stream"].finish,
                held["stream"].synchronize,
            ):
                with pytest.raises(RuntimeError, match="a stream and its events belong to the process that made them"):
                    call()
            held.clear()
            device.__dict__.clear()
            gc.collect()
            _native.Stream().synchronize()  # one of its own works

        in_child(child)
        assert not held["event"].query()
    device.finish()
    assert held["event"].query()
