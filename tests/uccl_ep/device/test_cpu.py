"""The CPU device: a stream that keeps its order, events that wait and report, tensors that outlive a call."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.gate import Gate
from uccl_ep import EventHandle, _native
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.settings import Settings


def device(**settings: Any) -> CpuDevice:
    return CpuDevice(Settings(**settings), lambda: None)


def test_cpu_device_events_mark_what_was_queued_before_them() -> None:
    d = device()
    before = d.record()
    before.current_stream_wait()
    with Gate(d) as gate:
        behind = [d.record() for _ in range(3)]
        assert before.query() and not any(e.query() for e in behind)
        gate.open()
        behind[-1].current_stream_wait()
        assert all(e.query() for e in behind)


def test_cpu_device_launches_run_in_order() -> None:
    d = device()
    gates = [Gate(d) for _ in range(4)]
    events = [d.record()]
    gates[3].open()  # a later one being ready changes nothing
    gates[1].open()
    assert not events[0].query()
    for gate in gates:
        gate.open()
    d.finish()
    assert events[0].query()


def test_cpu_device_streams_of_two_devices_are_independent() -> None:
    slow, fast = device(), device()
    with Gate(slow) as gate:
        fast.finish()
        behind = slow.record()
        fast.wait_for(behind)
        ahead = fast.record()
        assert not ahead.query()
        gate.open()
        ahead.current_stream_wait()
        assert behind.query()


@pytest.mark.parametrize("make", [EventHandle, object, lambda: None])
def test_cpu_device_wait_for_events_that_have_happened(make: Callable[[], object]) -> None:
    d = device()  # events of other libraries: their work is on the calling thread, hence done
    d.wait_for(make())
    d.finish()


def test_cpu_device_waiting_raises_the_buffers_fault() -> None:
    faults: list[str] = []

    def check() -> None:
        if faults:
            raise UcclEpError(faults[0])

    d = CpuDevice(Settings(), check)
    d.finish()
    event = d.record()
    faults.append("rank 3 timed out")
    with pytest.raises(UcclEpError, match="rank 3 timed out"):
        event.current_stream_wait()
    with pytest.raises(UcclEpError, match="rank 3 timed out"):
        d.finish()
    assert event.query()  # asking never raises


def test_cpu_device_holds_tensors_until_the_event_has_happened() -> None:
    d = device()
    tensor, other = torch.zeros(8), torch.zeros(8)
    alive, alive_too = weakref.ref(tensor), weakref.ref(other)
    with Gate(d) as gate:
        event = d.record([tensor])
        d.record(other)
        del tensor, other
        gc.collect()
        d.record()  # looks for what has ended: nothing
        assert alive() is not None and alive_too() is not None
        gate.open()
    d.finish()
    event.current_stream_wait()
    d.record()
    assert alive() is None and alive_too() is None


def test_cpu_device_waiting_lets_other_threads_run() -> None:
    d = device()
    with Gate(d) as gate:
        threading.Timer(0.05, gate.open).start()  # a thread that needs the interpreter while the wait lasts
        d.finish()


@pytest.mark.parametrize("blocks, threads, units, wanted", [
    (0, 3, 100, 3), (0, 3, 2, 2), (5, 1, 100, 5), (5, 1, 1, 1), (0, 1, 1, 1),
])  # fmt: skip
def test_cpu_device_grid(blocks: int, threads: int, units: int, wanted: int) -> None:
    assert queued(device(host_blocks=blocks, host_threads=threads), units, exact=False) == (wanted, threads)


def test_cpu_device_exact_blocks_are_not_limited_by_settings() -> None:
    assert queued(device(host_blocks=2, host_threads=1), 7, exact=True) == (7, 1)


def queued(d: CpuDevice, blocks: int, exact: bool) -> tuple[int, int]:
    """Blocks and threads of a launch that asks for so many blocks."""
    seen: list[tuple[int, int]] = []

    def queue(stream: object, blocks: int, threads: int) -> None:
        seen.append((blocks, threads))

    d.launch(SimpleNamespace(kernel="any", blocks=blocks, exact=exact, queue=queue))  # type: ignore[arg-type]
    (only,) = seen
    return only


@pytest.mark.parametrize("blocks, num_sms, wanted", [(0, 20, 2), (0, 2, 1), (0, 0, 1), (8, 20, 8), (100, 1000, 64)])
def test_cpu_device_channels(blocks: int, num_sms: int, wanted: int) -> None:
    assert device(host_blocks=blocks).channels(num_sms) == wanted
    assert wanted <= _native.MAX_CHANNELS


def test_cpu_device_tensors() -> None:
    d = device()
    assert d.empty(2, 3, dtype=torch.bfloat16).shape == (2, 3)
    zeros = d.zeros(4, dtype=torch.int64)
    assert zeros.dtype == torch.int64 and not zeros.any() and zeros.device.type == "cpu"
    assert d.name == "cpu"


def test_cpu_device_words_that_the_host_reads_are_plain_memory() -> None:
    words = device().pinned(3, torch.int32)
    assert words.data_ptr() == words.tensor.data_ptr() and words.tensor.shape == (3,)


def test_cpu_device_calls_end_when_the_stream_has_run() -> None:
    d = device()
    with Gate(d) as gate:
        d.begin()
        threading.Timer(0.05, gate.open).start()
        assert not d.capturing()
        d.check_host_wait()
        d.end()
    before = d.record()
    d.catch_up()
    assert before.query()
    d.settle()
    d.close()


def test_cpu_device_behind_waits_for_events_of_any_processor() -> None:
    slow, fast = device(), device()

    class Elsewhere:
        waited = 0

        def synchronize(self) -> None:
            self.waited += 1

    elsewhere = Elsewhere()
    with Gate(slow) as gate:
        with fast.behind(slow.record()):
            ahead = fast.record()
        assert not ahead.query()
        gate.open()
        ahead.current_stream_wait()
    with fast.behind(EventHandle(elsewhere)):  # type: ignore[arg-type]
        assert elsewhere.waited == 1


def test_cpu_device_tensors_elsewhere_are_refused() -> None:
    device().check_tensor("x", torch.zeros(1))
    with pytest.raises(InvalidArgument, match="x must be a tensor on cpu, where .*; got a tensor on meta."):
        device().check_tensor("x", torch.zeros(1, device="meta"))
