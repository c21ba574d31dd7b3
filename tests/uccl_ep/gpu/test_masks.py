"""Masks and statistics of a rank whose words for them lie in the GPU's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import case, low_latency
from uccl_ep import ThreadGroup


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
