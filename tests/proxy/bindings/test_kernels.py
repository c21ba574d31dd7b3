"""Streams, events, kernels by name."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

from tests.uccl_ep.gate import Gate
from uccl_ep import _native
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.settings import Settings

ROOT = Path(__file__).parents[3]


def context() -> tuple[_native.RankContext, object]:
    """Of one rank alone, and what must outlive it."""
    memory = torch.zeros(64, dtype=torch.int64)
    settings = _native.RankTablesSettings()
    settings.node_of, settings.num_rings = [0], 0
    settings.data = settings.control = [memory.data_ptr()]
    tables = _native.RankTables(settings)
    return tables.context, (tables, memory)


class Layout:
    """The layout of six tokens, one for each expert of one rank."""

    def __init__(self) -> None:
        self.ids = torch.arange(6).view(6, 1)
        self.per_expert = torch.zeros(6, dtype=torch.int32)
        self.per_rank, self.in_rank = torch.zeros(1, dtype=torch.int32), torch.zeros(6, 1, dtype=torch.bool)
        rank, self._kept = context()
        workspace = torch.zeros(_native.ThroughputCalls.WORKSPACE_BYTES // 8, dtype=torch.int64)
        self.launch = _native.ThroughputCalls(
            rank, _native.ThroughputLayout(), workspace, _native.DeviceShape.of_host()
        ).layout(
            topk_idx=self.ids, num_tokens=6, topk=1, num_experts=6, num_tokens_per_rank=self.per_rank,
            num_tokens_per_node=None, num_tokens_per_expert=self.per_expert, is_token_in_rank=self.in_rank,
        )  # fmt: skip

    def results(self) -> tuple[list[int], int, bool]:
        return self.per_expert.tolist(), int(self.per_rank), bool(self.in_rank.all())


def test_kernels_are_queued_with_a_copy_of_their_arguments() -> None:
    device, layout = CpuDevice(Settings(), lambda: None), Layout()
    with Gate(device) as gate:
        device.launch(layout.launch)
        del layout.launch
        assert not layout.per_expert.any()
        gate.open()
        device.finish()
    assert layout.results() == ([1] * 6, 6, True)


def test_kernels_event_wait_ends_at_its_time() -> None:
    device = CpuDevice(Settings(), lambda: None)
    with Gate(device):
        event = device.comm_stream.record()
        begin = time.monotonic()
        event.wait(50_000_000)
        assert 0.04 < time.monotonic() - begin < 10 and not event.query()
    device.finish()
    assert event.query()


def test_kernels_stream_synchronize_waits_and_an_end_of_the_stream_does_too() -> None:
    import threading

    device = CpuDevice(Settings(), lambda: None)
    gate = Gate(device)
    event = device.comm_stream.record()
    threading.Timer(0.05, gate.open).start()
    device.comm_stream.synchronize()
    assert event.query()


def entry_points() -> dict[str, str]:
    """Every kernel under kernels/, and the name of its argument struct."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "kernels").rglob("*.h")):
        found.update(re.findall(r"^KERNEL (?:KERNEL_BOUNDS\(.*?\) )?(\w+)\((\w+) a\)", path.read_text(), re.MULTILINE))
    return found


def test_kernels_every_one_of_the_headers_can_be_launched_by_name() -> None:
    sizes = _native.kernel_arguments()
    assert sorted(sizes) == sorted(entry_points()) and len(sizes) >= 10
    assert len(_native.barrier_launch(context()[0], 1).args) == sizes["rank_barrier"]


def test_kernels_shared_bytes_depend_on_kernel_and_warps() -> None:
    for kernel, size in _native.kernel_arguments().items():
        few, many = (_native.shared_bytes(kernel, bytes(size), warps) for warps in (1, 8))
        assert 0 <= few <= many < 227 << 10
        assert (many > few) == (kernel == "throughput_combine"), kernel  # the one with room for each warp
        assert (few > 0) == (kernel not in ("throughput_layout", "rank_barrier")), kernel


def test_kernels_launch_by_name_runs_what_a_launch_runs() -> None:
    stream, results = _native.Stream(), []
    for by_name in (False, True):
        layout = Layout()
        launch = layout.launch
        if by_name:
            _native.launch(stream, launch.kernel, launch.args, blocks=2, warps=1)
        else:
            launch.queue(stream, blocks=2, threads=1)
        stream.synchronize()
        results.append(layout.results())
    assert results[0] == results[1] == ([1] * 6, 6, True)


@pytest.mark.parametrize("change", ["unknown", "short", "long"])
def test_kernels_launch_by_name_refuses(change: str) -> None:
    stream = _native.Stream()
    size = _native.kernel_arguments()["rank_barrier"]
    name, args = {
        "unknown": ("rank_barriers", bytes(size)), "short": ("rank_barrier", bytes(size - 1)),
        "long": ("rank_barrier", bytes(size + 8)),
    }[change]  # fmt: skip
    words = "no kernel is named rank_barriers" if change == "unknown" else f"takes {size} bytes of arguments, not"
    with pytest.raises(ValueError, match=words):
        _native.launch(stream, name, args, 1, 1)
    with pytest.raises(ValueError, match=words):
        _native.shared_bytes(name, args, 1)
    stream.synchronize()


def test_kernels_constants_are_those_of_the_headers() -> None:
    common = (ROOT / "kernels" / "layout" / "rank_context.h").read_text()
    enumerators = re.search(r"enum class PeerStat : u32 \{(.*?)\}", common)
    assert enumerators is not None
    assert len(enumerators[1].split(",")) == _native.PEER_STATS == 5
    assert _native.WARP in (32, 64) and _native.MAX_PARTIALS >= 1
