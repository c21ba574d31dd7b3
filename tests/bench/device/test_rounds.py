"""Timed rounds on the CPU and on the fake GPU: what is timed, replayed, counted, and that a wrong row is no figure."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from bench.device import overheads, small_case
from bench.device.exchange import Exchange, worst_row
from bench.device.kernel_times import KernelTimes, slowest
from bench.device.moved import Rows, rows_of, throughput_bytes
from bench.device.platforms import CpuPlatform
from bench.device.rounds import REPLAYS, achieved, measure_shape, open_library
from bench.device.shapes import LOW_LATENCY, THROUGHPUT, Shape, all_shapes
from tests.bench.device.host_gpu import HostGpu
from tests.gpu.places import FakePlatform
from tests.uccl_ep.gpu.worlds import install
from uccl_ep.errors import UcclEpError

pytestmark = pytest.mark.timeout(90)
SMALL = {mode: Shape(mode, 2, 2, 8, 256, 4, 8, 2) for mode in (LOW_LATENCY, THROUGHPUT)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    return FakePlatform(install(monkeypatch, HostGpu()), "cuda")


@pytest.mark.mostly_slow
@pytest.mark.parametrize("mode", [LOW_LATENCY, THROUGHPUT])
def test_bench_rounds_on_the_fake_gpu_have_kernels_and_replays(fake: FakePlatform, mode: str) -> None:
    found = measure_shape(fake, SMALL[mode], open_library(fake))
    json.dumps(found)
    assert found["placement"] == "device" and found["worst_row"] < 4e-3
    assert found["wall"]["replay"]["rounds"] == REPLAYS and found["wall"]["dispatch"]["rounds"] == 2
    prefix = "low_latency_" if mode == LOW_LATENCY else "throughput_"
    assert {f"{prefix}dispatch_send", f"{prefix}combine_recv"} <= set(found["kernels"]) or mode == THROUGHPUT
    if mode == THROUGHPUT:
        reached = found["achieved"]["throughput_dispatch"]
        assert reached["bytes"] > 0 and reached["gb_per_s"] > 0
        assert reached["ms"] == found["kernels"]["throughput_dispatch"]["median_ms"]


def test_bench_rounds_of_two_nodes_lie_in_host_memory(fake: FakePlatform) -> None:
    found = measure_shape(fake, Shape(THROUGHPUT, 4, 2, 8, 256, 4, 8, 2), open_library(fake))
    assert found["placement"] == "host" and found["placement_reason"] and "achieved" not in found


def test_bench_rounds_on_a_cpu_have_neither() -> None:
    platform = CpuPlatform()
    assert open_library(platform) is None
    found = measure_shape(platform, SMALL[LOW_LATENCY])
    assert found["kernels"] == {} and "replay" not in found["wall"] and "no graphs" in found["no_replay"]


def test_bench_rounds_wrong_rows_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    combine = Exchange.combine

    def one_row_late(self: Exchange, rows: torch.Tensor, handle: Any) -> torch.Tensor:
        return combine(self, rows, handle).roll(1, 0)

    monkeypatch.setattr(Exchange, "combine", one_row_late)
    with pytest.raises(UcclEpError, match="a row differs from what is due"):
        measure_shape(CpuPlatform(), SMALL[THROUGHPUT])


def test_bench_rounds_one_wrong_row_of_many_is_seen() -> None:
    due = torch.randn(4096, 64)
    seen = due.clone()
    assert worst_row(seen.bfloat16().float(), due) < 1e-4
    seen[17] = due[18]
    assert worst_row(seen, due) > 0.1
    seen[17] = float("nan")
    assert worst_row(seen, due) == 1.0 and worst_row(due[:0], due[:0]) == 0.0
    seen[17] = 0
    assert worst_row(seen, due) == 1.0


def test_bench_rounds_overheads_and_small_case(fake: FakePlatform) -> None:
    for platform, gpu in ((CpuPlatform(), False), (fake, True)):
        small_case.run(platform, 2)
        if not gpu:
            modes = overheads.measure(platform, True, gpu)
            assert [m["shape"]["mode"] for m in modes] == [LOW_LATENCY, THROUGHPUT]
            assert all(us > 0 for m in modes for us in m["host_us"].values()) and modes[0]["replay_ms"] is None


def test_bench_rounds_overheads_replay_on_a_gpu(fake: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads, "Shape", lambda mode, ranks, per_node, tokens, rounds: Shape(
        mode, ranks, per_node, 8, 256, 4, 8, rounds))  # fmt: skip
    modes = overheads.measure(fake, True, True)
    assert all(m["replay_ms"] > 0 for m in modes)


def test_bench_rounds_kernel_times_take_the_slowest_rank() -> None:
    found = slowest([{"a": [1.0, 5.0], "b": [9.0]}, {"a": [2.0, 3.0]}])
    assert found["a"] == {"median_ms": 3.5, "max_ms": 5.0, "rounds": 2} and found["b"]["max_ms"] == 9.0
    assert achieved({"throughput_dispatch": {"median_ms": 2.0}}, "throughput_dispatch", 10**9)["gb_per_s"] == 500.0


def test_bench_rounds_kernel_times_leave_no_trace(fake: FakePlatform) -> None:
    library = open_library(fake)
    times = KernelTimes(fake)
    with times.watching(library):
        assert "launch" in vars(library)
    assert "launch" not in vars(library) and times.take() == {}


def test_bench_rounds_bytes_moved_are_those_of_the_routing() -> None:
    shape = Shape(THROUGHPUT, 4, 2, 3, 128, 2, 8)
    ids = [torch.tensor([[0, 1], [0, 7], [2, 4]])] * 4  # ranks {0}, {0, 3}, {1, 2}; nodes {0}, {0, 1}, {0, 1}
    rows = rows_of(shape, ids)
    assert [r.received for r in rows] == [8, 4, 4, 4] and {r.staged for r in rows} == {5}
    dispatch, combine = throughput_bytes(shape, [Rows(10, 6, 4)])
    assert dispatch == 2 * 256 * 16 and combine == 256 * (30 + 4)


def test_bench_rounds_shapes_are_deepseeks_on_a_gpu() -> None:
    shapes = all_shapes(THROUGHPUT, True, False)
    assert {(s.ranks, s.num_nodes) for s in shapes} == {(r, n) for r in (2, 4, 8) for n in (1, 2)} | {(1, 1)}
    assert {(s.tokens, s.hidden, s.topk, s.experts) for s in shapes} == {(4096, 7168, 8, 256), (4096, 7168, 8, 32)}
    assert {s.tokens for s in all_shapes(LOW_LATENCY, True, False)} == {128}
    assert len({s.label for s in shapes}) == 7
