"""Masks and statistics of a rank whose words for them lie in the GPU's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_graphs import LowLatencyInputs, full_case
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import case, expert_rows, low_latency, reference_of, same
from uccl_ep import ThreadGroup, reference


def test_gpu_masks_and_statistics(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(95, "uniform", num_ranks=3, num_experts=3, hidden=128, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if rank != 2:
                buffer.low_latency_update_mask_buffer(2, True)
                status = torch.zeros(3, dtype=torch.int32)
                buffer.low_latency_query_mask_buffer(status)
                assert status.tolist() == [0, 0, 1]
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 3, use_fp8=False)
                driver.settle()
                assert (got[2][1][:, 2] & 0xFFFFFFFF == 0).all()
                buffer.low_latency_update_mask_buffer(2, False)  # on the node a rank may come back
                stats = buffer.stats()["peers"]
                for peer in range(3):
                    assert stats[peer]["rows_received"] == int((got[2][1][:, peer] & 0xFFFFFFFF).sum())
            group.barrier()

    run_gpu_ranks(driver, 3, body)


WORLDS = [
    pytest.param(3, 0, "auto", id="one node of 3"),
    pytest.param(3, 2, "loopback", id="nodes of 2 and 1"),
    pytest.param(3, 1, "tcp", id="a node each, tcp"),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_masks_of_a_captured_call_are_memory(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str
) -> None:
    """One capture serves all: what its replays leave out is what is masked then; a rank that stood still meanwhile, and
    one whose replays went on, take part again without another capture."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, TIMEOUT_S=30)
    driver = install(monkeypatch, FakeDriver())
    lost = 1
    cases = [full_case(400 + n, ranks, max_tokens=8) for n in range(3)]
    rows = [[expert_rows(r, c.shape, 1.0 + n) for r in range(ranks)] for n, c in enumerate(cases)]

    def results(masked: list[set[int]]) -> list[Any]:
        wanted = [reference_of(c, masked=masked) for c in cases]
        sums = [
            reference.low_latency_combine(rows[n], c.topk_idx, c.topk_weights, wanted[n], masked)
            for n, c in enumerate(cases)
        ]
        return list(zip(wanted, sums, strict=True))

    everybody = set(range(ranks))
    whole = results([set()] * ranks)
    still = results([set() if r == lost else {lost} for r in range(ranks)])  # the lost one makes no call
    apart = results([everybody - {lost} if r == lost else {lost} for r in range(ranks)])

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, cases[0].shape, enable_shrink=True) as buffer:
            inputs = LowLatencyInputs(cases[0].shape, 2)

            def calls() -> tuple[Any, torch.Tensor]:
                got = buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 2 * ranks, use_fp8=False)
                return got, buffer.low_latency_combine(inputs.rows, inputs.ids, inputs.weights, got[2])[0]

            calls()  # the sizes, outside the capture
            driver.settle()
            with driver.capture() as graph:
                got, out = calls()

            def replay(wanted: list[Any], times: int) -> None:
                for turn in range(times):
                    n = turn % len(cases)
                    inputs.take(cases[n], rank, 1.0 + n)
                    driver.replay(graph)
                    driver.settle()
                    received, sums = wanted[n]
                    assert torch.equal(got[1], received[rank].recv_count)
                    for expert, count in enumerate(got[1].tolist()):
                        assert same(got[0][expert, :count], received[rank].recv_x[expert, :count])
                    assert same(out[: cases[n].x[rank].shape[0]], sums[rank])

            def mask(ranks_: set[int], out_: bool) -> None:
                for r in sorted(ranks_):
                    buffer.low_latency_update_mask_buffer(r, out_)

            def meet() -> None:
                """What a caller of replays does where an eager call would come first: it asks who takes part."""
                status = torch.zeros(ranks, dtype=torch.int32)
                buffer.low_latency_query_mask_buffer(status)
                assert status.tolist() == [0] * ranks

            replay(whole, 4)
            group.barrier()
            for missed in (1, 6):  # the lost one stands still
                if rank != lost:
                    mask({lost}, True)
                    replay(still, missed)
                    mask({lost}, False)
                group.barrier()
                meet()
                replay(whole, 3)
                group.barrier()
            mask({lost} if rank != lost else everybody - {lost}, True)  # its replays go on
            replay(apart, 5)
            mask({lost} if rank != lost else everybody - {lost}, False)
            meet()
            replay(whole, 3)
            assert graph.num_launches == 4
            group.barrier()

    run_gpu_ranks(driver, ranks, body)
