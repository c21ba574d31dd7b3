"""The time model's arithmetic: small cases by hand, units, what it must grow with, and that its page is its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.device import estimates, time_model
from bench.device.gpus import GPUS, Gpu
from bench.device.render import render
from bench.device.time_model import CASES, CHECKS, Call, Kernel, counted, estimate, on_one_gpu

GPU = Gpu("G", 10, 1000.0, 100.0, 50.0, 0.01, 0.1, 0.5, peer_us=1.0, host_us=2.0, fence_us=0.7, launch_us=3.0)
KERNEL = Kernel(
    blocks=4, warps=8, lane16=99, loaded=6_000_000, stored=2_000_000, loaded_away=3_000_000, stored_away=500_000,
    away=5, wide=2, line=3, near=10, host=2, flag=4, fence=1,
)  # fmt: skip


def test_time_model_by_hand() -> None:
    found = estimate(KERNEL, GPU, waits=True)
    assert found.launch_us == 3.0
    assert found.asking_us == pytest.approx(2 * 2.0 + (4 + 2) * 0.1 + 0.7)
    assert found.ids_us == pytest.approx(3 * 0.1 + 10 * 0.01)
    assert found.chain_us == pytest.approx(5 * 1.0 + 2 * 0.5)
    assert found.memory_us == pytest.approx(4.5)  # 4.5 MB at 1,000 GB/s
    assert found.link_us == pytest.approx(30.0)  # 3 MB in at 100 GB/s; 0.5 MB go the other way
    assert found.processors_us == pytest.approx(40.0)  # 8 MB through four processors of 50 GB/s
    assert found.arrival_us == 1.0
    assert found.bound == "processors" and found.total_us == pytest.approx(3.0 + 5.3 + 0.4 + 40.0 + 1.0)


def test_time_model_on_one_gpu_ranks_share_memory_and_processors() -> None:
    alone, shared = (estimate(KERNEL, GPU, players, waits=True) for players in (1, 5))
    assert (alone.link_us, alone.chain_us) == (0.0, pytest.approx(7 * 0.5))
    assert alone.memory_us == pytest.approx(8.0)
    assert shared.memory_us == pytest.approx(5 * alone.memory_us)
    assert shared.processors_us == pytest.approx(5 * 8e6 / (10 * 50.0) / 1e3)  # 20 blocks on 10 processors
    assert shared.chain_us == alone.chain_us and alone.arrival_us == GPU.line_us


@pytest.mark.parametrize("name", ["near_us", "line_us", "memory_us", "host_us", "fence_us", "launch_us", "peer_us"])
def test_time_model_grows_with_each_latency(name: str) -> None:
    few = replace(KERNEL, loaded=0, stored=0, loaded_away=0, stored_away=0)
    slower = replace(GPU, **{name: getattr(GPU, name) + 1.0})
    assert estimate(few, slower).total_us > estimate(few, GPU).total_us


@pytest.mark.parametrize(
    "name", ["loaded", "stored", "loaded_away", "stored_away", "away", "wide", "line", "near", "host", "flag", "fence"]
)
def test_time_model_grows_with_each_counter(name: str) -> None:
    base = replace(KERNEL, loaded=10**6, stored=10**6, loaded_away=0, stored_away=0, away=0, wide=0, line=0, near=0)
    grown = replace(base, **{name: 10**7})
    assert estimate(grown, GPU).total_us > estimate(base, GPU).total_us


def test_time_model_rows_grow_a_kernel_and_what_is_asked_does_not() -> None:
    grown = KERNEL.times(8)
    assert (grown.loaded, grown.loaded_away, grown.away, grown.lane16) == (48_000_000, 24_000_000, 40, 792)
    assert (grown.blocks, grown.host, grown.flag, grown.fence) == (4, 2, 4, 1)


def test_time_model_the_network_runs_beside_the_first_kernels_rows() -> None:
    one = estimate(KERNEL, GPU)  # rows of 40.0
    assert Call({"a": one, "b": one}).total_us == pytest.approx(2 * one.total_us)
    assert Call({"a": one, "b": one}, 30.0).total_us == pytest.approx(2 * one.total_us)
    assert Call({"a": one, "b": one}, 45.0).total_us == pytest.approx(2 * one.total_us + 5.0)
    summed = {"a": one, "low_latency_combine_reduce": replace(one, processors_us=1.0, memory_us=1.0, link_us=1.0)}
    assert summed["low_latency_combine_reduce"].rows_us == 6.0  # the chain's; `a` has handed nothing over
    assert Call(summed, 7.0).total_us == pytest.approx(Call(summed).total_us + 1.0)
    assert Call({"a": one}, 1000.0).bound == "network"


def test_time_model_visits_are_what_random_experts_give() -> None:
    assert time_model.visits(1) == pytest.approx(1.0)
    assert time_model.visits(2, experts=4, topk=1) == pytest.approx(1.0)
    assert time_model.visits(2, experts=4, topk=2) == pytest.approx(2 * (1 - 1 / 6))  # 1 of 6 pairs misses a rank
    assert time_model.throughput_gb_per_s(1000.0, 8) == pytest.approx(4096 * time_model.visits(8) * 14336 / 1e6)


def test_time_model_counters_are_of_every_case_and_kernel() -> None:
    counts = counted()
    assert list(counts) == [case.label for case in CASES + CHECKS]
    for case in CASES:
        kernels = counts[case.label]
        of_rows = time_model.LOW_LATENCY_CALLS if case.mode == "low_latency" else time_model.THROUGHPUT_CALLS
        names = {name for names in of_rows.values() for name in names}
        assert names - set(kernels) <= {"low_latency_combine_reduce"}
        for name in names & set(kernels):
            assert kernels[name].away + kernels[name].wide > 0 and kernels[name].loaded > 0, (case.label, name)
            assert kernels[name].blocks <= max(case.sms, 24), (case.label, name)
    # A dispatch reads all of its rows once: 128 bf16 rows, and 512 in throughput besides what it takes in.
    assert counts["low latency, 8 GPUs"]["low_latency_dispatch_send"].loaded == 128 * 14336


def test_time_model_page_is_what_the_command_writes() -> None:
    text = estimates.tables(counted())
    assert estimates.PAGE.read_text(encoding="utf-8").endswith(text), "python -m bench.device.estimates --write"
    for line in text.splitlines():
        if line.startswith("**") or ("dispatch" in line and "us" in line and "|---" not in line):
            assert "estimated" in line, line


def test_time_model_shares_of_a_copy_stand_under_their_heads() -> None:
    text = estimates.tables(counted())
    shares = estimates.share_of_copy(counted(), GPUS["H100"], 2)
    (row,) = [line for line in text.splitlines() if line.startswith("| 2 ranks, 40 of 132 SMs")]
    assert row.split(" | ")[1:3] == [f"{shares[f'throughput_{phase}']:.0%}" for phase in ("dispatch", "combine")]


def test_time_model_stands_beside_measured_kernels() -> None:
    shape = {"mode": "low_latency", "ranks": 8, "ranks_per_node": 8, "tokens": 128, "hidden": 7168}
    kernel = "low_latency_dispatch_send"
    us = on_one_gpu(counted(), GPUS["H100"], "low_latency", 8, 128)[kernel].total_us
    took = {"median_ms": 2 * us / 1e3, "max_ms": 1.0}
    shapes = [
        {"shape": shape, "placement": "device", "wall": {}, "kernels": {kernel: took}},
        {"shape": {**shape, "ranks_per_node": 4}, "placement": "host", "wall": {}, "kernels": {kernel: took}},
        {"shape": {**shape, "tokens": 64}, "placement": "device", "wall": {}, "kernels": {kernel: took}},
    ]

    def text(name: str) -> str:
        done = {"status": "ok", "why": "", "seconds": 1.0}
        entries = [
            {"name": "machine", "result": {"gpu": {"name": name}, "versions": {}}, **done},
            {"name": "low_latency", "result": {"shapes": shapes}, **done},
        ]
        return render(
            {"started": "t", "device": "cuda", "seconds": 1.0, "quick": False, "steps": entries, "targets": []}
        )

    lines = text("NVIDIA H100 80GB HBM3").split("model against measurement")[1].splitlines()
    (row,) = [line for line in lines if line.startswith(kernel)]
    assert row.split()[1:5] == ["8", f"{us:.1f}", f"{2 * us:.1f}", "2.00"]
    assert "estimated" in lines[1]
    assert "model against measurement" not in text("some other GPU")
