"""What the rounds of test_rounds.py do not play: sums in the node, NVFP4 rows, masked ranks, rows that are sent while
others are being computed, and ranks that are processes of their own. Each compared to the bit with the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.device.platforms import Platform
from tests.end_to_end.world import World
from tests.gpu.places import PLACES, Here, open_place, run
from tests.uccl_ep.low_latency.test_dispatch_formats import assert_nvfp4, global_scale
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, reference
from uccl_ep.reference import CaseShape, RandomCase, low_latency_combine, low_latency_combine_by_node

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
pytestmark = pytest.mark.timeout(120)


@dataclass(frozen=True)
class NodeWorld(World):
    """Rows are summed in the node before they cross."""

    low_latency_combine: str = "node"


class Rank:
    """A rank's Buffer and its inputs where kernels run."""

    def __init__(self, buffer: Buffer, platform: Platform, c: RandomCase) -> None:
        self.buffer, self.shape, self.rank, self.here = buffer, c.shape, buffer.rank, Here(platform)
        self.x, self.ids, self.weights = (self.here.put(part[self.rank]) for part in (c.x, c.topk_idx, c.topk_weights))
        self.rows = self.here.put(expert_rows(self.rank, c.shape))

    def dispatch(self, **how: Any) -> Any:
        shape = self.shape
        return self.buffer.low_latency_dispatch(self.x, self.ids, shape.max_tokens, shape.num_experts, **how)

    def received(self, got: Any) -> tuple[Any, ...]:
        """Rows, counts and handle on the host."""
        rows, count, handle = got[:3]
        rows = tuple(self.here.get(part) for part in rows) if isinstance(rows, tuple) else self.here.get(rows)
        return rows, self.here.get(count), tuple(self.here.get(h) if isinstance(h, torch.Tensor) else h for h in handle)

    def combine(self, got: Any, **how: Any) -> Any:
        return self.buffer.low_latency_combine(self.rows, self.ids, self.weights, got[2], **how)


def _outputs(shape: CaseShape) -> list[torch.Tensor]:
    return [expert_rows(rank, shape) for rank in range(shape.num_ranks)]


# ---- sums in the node ------------------------------------------------------------------------------------------------


def _node_sums(
    group: Any, platform: Platform, c: RandomCase, due: list[torch.Tensor], hook: bool, use: Mapping[str, bool] = {}
) -> None:
    with low_latency(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(ROUNDS):
            got = rank.dispatch(use_fp8=False, return_recv_hook=hook)
            if hook:
                got[4]()
            out, _, receive = rank.combine(got, return_recv_hook=hook, **use)
            if hook:
                receive()
            assert same(rank.here.get(out), due[rank.rank])
        assert buffer._session.combine_form is not None and buffer._session.combine_form.reduces


@pytest.mark.parametrize("hook", [False, True], ids=["now", "hook"])
@pytest.mark.parametrize("ranks, per_node", [(4, 2), (5, 2), (3, 1)])
def test_gpu_node_sums_are_row_exact(platform: Platform, ranks: int, per_node: int, hook: bool) -> None:
    c = case(41, "mixed", num_ranks=ranks, num_experts=2 * ranks, num_topk=4, hidden=256, max_tokens=16)
    due = low_latency_combine_by_node(_outputs(c.shape), c.topk_idx, c.topk_weights, reference_of(c), per_node)
    run(platform, NodeWorld(ranks, per_node), _node_sums, c, due, hook)


@pytest.mark.parametrize("rows", ["fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("ranks, per_node", [(4, 2), (5, 2), (3, 1)])
def test_gpu_node_sums_travel_in_the_calls_format(platform: Platform, ranks: int, per_node: int, rows: str) -> None:
    c = case(43, "mixed", num_ranks=ranks, num_experts=2 * ranks, num_topk=4, hidden=384, max_tokens=16)
    given, use = (_outputs(c.shape), c.topk_idx, c.topk_weights, reference_of(c)), {f"use_{rows}": True}
    due = low_latency_combine_by_node(*given, per_node, **use)
    run(platform, NodeWorld(ranks, per_node), _node_sums, c, due, False, use)


@pytest.mark.parametrize("rows", ["fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("per_node", [0, 2])
def test_gpu_combine_rows_in_each_format_are_row_exact(platform: Platform, per_node: int, rows: str) -> None:
    c = case(45, "mixed", num_ranks=4, num_experts=8, num_topk=4, hidden=1408, max_tokens=9)
    use = {f"use_{rows}": True}
    due = low_latency_combine(_outputs(c.shape), c.topk_idx, c.topk_weights, reference_of(c), **use)
    run(platform, World(4, per_node), _coded_rows, c, due, use)


def _coded_rows(
    group: Any, platform: Platform, c: RandomCase, due: list[torch.Tensor], use: Mapping[str, bool]
) -> None:
    with low_latency(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(ROUNDS):
            out = rank.combine(rank.dispatch(use_fp8=False), **use)[0]
            assert same(rank.here.get(out), due[rank.rank])


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------


def _nvfp4(group: Any, platform: Platform, c: RandomCase, due: Any, scale: torch.Tensor) -> None:
    with low_latency(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        for _ in range(ROUNDS):
            got = rank.dispatch(use_fp8=False, use_nvfp4=True, x_global_scale=rank.here.put(scale))
            platform.synchronize()
            rows, count, handle = got[:3]
            moved = tuple(part.cpu().as_strided(part.shape, part.stride()) for part in rows)
            on_host = (moved, count.cpu(), (handle[0].cpu(), handle[1].cpu(), *handle[2:]))
            assert_nvfp4(on_host, due[rank.rank], scale, c.shape.num_ranks * c.shape.max_tokens)


@pytest.mark.parametrize("per_node", [0, 2])
def test_gpu_nvfp4_rows_are_the_references(platform: Platform, per_node: int) -> None:
    c = case(42, "some_unused", num_ranks=4, num_experts=8, num_topk=4, hidden=192, max_tokens=20)
    run(platform, World(4, per_node), _nvfp4, c, reference_of(c), global_scale(c))


# ---- masks -----------------------------------------------------------------------------------------------------------

LEFT_OUT = 1


def _masked(group: Any, platform: Platform, c: RandomCase, due: list[Any], sums: list[torch.Tensor]) -> None:
    with low_latency(group, c.shape, enable_shrink=True, device=platform.device) as buffer:
        if buffer.rank == LEFT_OUT:
            return
        rank = Rank(buffer, platform, c)
        buffer.low_latency_update_mask_buffer(LEFT_OUT, True)
        status = rank.here.put(torch.zeros(c.shape.num_ranks, dtype=torch.int32))
        buffer.low_latency_query_mask_buffer(status)
        assert rank.here.get(status).tolist() == [int(r == LEFT_OUT) for r in range(c.shape.num_ranks)]
        for _ in range(ROUNDS):
            got = rank.dispatch(use_fp8=False)
            out, _, _ = rank.combine(got)
            assert_low_latency(rank.received(got), due[rank.rank])  # type: ignore[arg-type]
            assert same(rank.here.get(out), sums[rank.rank])


@pytest.mark.parametrize("per_node", [0, 1])
def test_gpu_masked_ranks_are_left_out(platform: Platform, per_node: int) -> None:
    c = case(43, "uniform", num_ranks=3, num_experts=6, num_topk=3, hidden=128, max_tokens=12)
    masked = [set() if rank == LEFT_OUT else {LEFT_OUT} for rank in range(3)]
    due = reference_of(c, masked=masked)
    sums = reference.low_latency_combine(_outputs(c.shape), c.topk_idx, c.topk_weights, due, masked)
    run(platform, World(3, per_node), _masked, c, due, sums)


# ---- rows that are sent while others are being computed --------------------------------------------------------------


def _overlapping(group: Any, platform: Platform, c: RandomCase, due: list[torch.Tensor], late_s: float = 0.0) -> None:
    with low_latency(group, c.shape, device=platform.device) as buffer:
        rank = Rank(buffer, platform, c)
        computed, value = rank.rows, 3
        for _ in range(ROUNDS):
            got = rank.dispatch(use_fp8=False)
            rank.rows = torch.full_like(computed, torch.nan)
            signals = rank.here.put(torch.zeros(computed.shape[0], dtype=torch.int32))
            for expert in range(computed.shape[0]):  # loads what raises them; torch chooses a kernel by alignment too
                signals[expert : expert + 1].fill_(0)
            rank.rows[0].copy_(rank.rows[0])
            platform.synchronize()
            beside = {"overlap": True, "src_signals": signals, "src_signal_expect_value": value}
            out, _, receive = rank.combine(got, return_recv_hook=True, **beside)
            with platform.rank():  # the stream that computes; the other one's kernel waits for it
                for expert in range(computed.shape[0]):
                    time.sleep(late_s)
                    rank.rows[expert].copy_(computed[expert])
                    signals[expert : expert + 1].fill_(value)
                platform.synchronize()
            receive()
            assert same(rank.here.get(out), due[rank.rank])


@pytest.mark.filterwarnings("ignore:overlap=True with signals")
@pytest.mark.parametrize("per_node", [0, 1])
def test_gpu_overlap_sends_rows_as_their_signals_come(platform: Platform, per_node: int) -> None:
    c = case(44, "uniform", num_ranks=2, num_experts=8, num_topk=4, hidden=256, max_tokens=16)
    due = reference.low_latency_combine(_outputs(c.shape), c.topk_idx, c.topk_weights, reference_of(c))
    run(platform, World(2, per_node), _overlapping, c, due)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.mostly_slow
@pytest.mark.parametrize("place", PLACES)
def test_gpu_two_processes_share_a_gpu(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They open each other's memory, and their kernels take turns on the GPU."""
    open_place(place, monkeypatch)  # skips where there is none
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UCCL_EP_") or k == "UCCL_EP_CACHE_DIR"}
    command = [sys.executable, "-m", "tests.gpu.one_process", place, "2", str(tmp_path / "meet")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], cwd=ROOT, env={**environment, "UCCL_EP_TIMEOUT_S": "40"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks), [errors[-2000:] for _, errors in outputs]
    for output, _ in outputs:
        told = json.loads(output.splitlines()[-1])
        assert told["rounds"] == ROUNDS
        if place != "cpu":
            assert told["placement"] == "device", told["reason"]
