"""The CPU device: launches in order on a stream of its own, events that wait and report, tensors that outlive a call."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
import torch

from uccl_ep import EventHandle, _native
from uccl_ep.device import CpuDevice
from uccl_ep.errors import UcclEpError
from uccl_ep.settings import Settings


def device(**settings: Any) -> CpuDevice:
    return CpuDevice(Settings(**settings), lambda: None)


def busy(d: CpuDevice, tokens: int = 60_000) -> torch.Tensor:
    """Queues a layout kernel over many tokens, which takes a while; returns its counts."""
    ids = torch.zeros(tokens, 1, dtype=torch.int64)
    counts = d.zeros(1, dtype=torch.int32)
    in_rank = d.empty(tokens, 1, dtype=torch.bool)
    per_rank = d.zeros(1, dtype=torch.int32)
    context, keep = one_rank()
    args = _native.LayoutArgs()
    args.set_topology(context)
    args.topk_idx, args.num_tokens, args.topk, args.num_experts = ids.data_ptr(), tokens, 1, 1
    args.num_tokens_per_rank, args.num_tokens_per_expert = per_rank.data_ptr(), counts.data_ptr()
    args.is_token_in_rank = in_rank.data_ptr()
    d.launch(_native.throughput_layout, args, d.grid(tokens // 32, 1))
    d.record((ids, in_rank, per_rank, keep))
    return counts


def one_rank() -> tuple[_native.RankContext, object]:
    """The context of a group of one rank, and what must outlive its use."""
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    tables = _native.RankTablesSettings()
    tables.node_of, tables.data, tables.control = [0], [memory.data_ptr()], [memory.data_ptr()]
    tables.num_rings = 0
    made = _native.RankTables(tables)
    return made.context, (memory, made)


def test_device_launches_are_queued_and_run_in_order() -> None:
    d = device()
    results = [busy(d) for _ in range(5)]
    events = [d.record() for _ in range(3)]
    assert not events[-1].query()  # five launches take longer than this line
    events[-1].current_stream_wait()
    assert all(e.query() for e in events)
    assert [int(r) for r in results] == [60_000] * 5


def test_device_record_marks_what_was_queued_before_it() -> None:
    d = device()
    busy(d)
    first = d.record()
    first.current_stream_wait()
    for _ in range(5):
        busy(d)
    assert first.query()  # later work does not matter to it
    assert not d.record().query()
    d.finish()


def test_device_waiting_raises_the_buffers_fault() -> None:
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


def test_device_event_of_the_current_stream_has_happened() -> None:
    event = EventHandle()
    assert event.query()
    event.current_stream_wait()


def test_device_wait_for_another_streams_event() -> None:
    slow, fast = device(), device()
    result = busy(slow)
    for _ in range(4):
        result = busy(slow)
    behind = slow.record()
    fast.wait_for(behind)
    fast.finish()
    assert behind.query() and int(result) == 60_000
    fast.wait_for(None)  # events of other libraries: their work is on the calling thread, hence done
    fast.wait_for(object())
    fast.finish()


def test_device_holds_tensors_until_the_event_has_happened() -> None:
    d = device()
    for _ in range(6):
        busy(d)
    tensor = torch.zeros(8)
    alive = weakref.ref(tensor)
    event = d.record([tensor])
    del tensor
    gc.collect()
    assert not event.query() and alive() is not None
    event.current_stream_wait()
    d.record()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("blocks, threads, units, wanted", [
    (0, 3, 100, 3), (0, 3, 2, 2), (5, 1, 100, 5), (5, 1, 0, 1), (0, 1, 1, 1),
])  # fmt: skip
def test_device_grid(blocks: int, threads: int, units: int, wanted: int) -> None:
    shape = device(host_blocks=blocks, host_threads=threads).grid(units, 4)
    assert (shape.grid, shape.warps, shape.threads) == (wanted, 4, threads)


def test_device_exact_shape_is_not_limited_by_settings() -> None:
    shape = device(host_blocks=2, host_threads=1).shape(7, 2)
    assert (shape.grid, shape.warps, shape.threads) == (7, 2, 1)


@pytest.mark.parametrize("blocks, num_sms, wanted", [(0, 20, 2), (0, 2, 1), (0, 0, 1), (8, 20, 8), (100, 1000, 64)])
def test_device_channels(blocks: int, num_sms: int, wanted: int) -> None:
    assert device(host_blocks=blocks).channels(num_sms) == wanted
    assert wanted <= _native.MAX_CHANNELS


def test_device_tensors() -> None:
    d = device()
    assert d.empty(2, 3, dtype=torch.bfloat16).shape == (2, 3)
    zeros = d.zeros(4, dtype=torch.int64)
    assert zeros.dtype == torch.int64 and not zeros.any() and zeros.device.type == "cpu"
    assert d.name == "cpu"


def test_device_event_wait_lets_other_threads_run() -> None:
    import threading

    d = device()
    for _ in range(6):
        busy(d)
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    d.finish()
    end = time.monotonic()
    stop.set()
    thread.join()
    assert end - begin < 0.002 or any(begin < t < end for t in ticks)
