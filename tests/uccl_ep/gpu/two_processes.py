"""One rank of a group of processes on one fake GPU: what test_memory.py runs twice. Prints a JSON line."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, reference_of, same
from uccl_ep import Buffer, reference
from uccl_ep.gpu import shared


def main(rank: int, size: int, rendezvous: str, can_export: bool) -> None:
    """The rank's life."""
    dist.init_process_group("gloo", f"file://{rendezvous}", timedelta(seconds=50), rank=rank, world_size=size)
    driver = install(pytest.MonkeyPatch(), FakeDriver(can_export=can_export))
    c = case(7, "mixed", num_ranks=size, num_experts=2 * size, num_topk=2, hidden=128, max_tokens=8)
    wanted = reference_of(c)
    sums = reference.low_latency_combine(
        [expert_rows(r, c.shape) for r in range(size)], c.topk_idx, c.topk_weights, wanted
    )
    facts: dict[str, object] = {}
    with driver.rank():
        hint = Buffer.get_low_latency_rdma_size_hint(8, 128, size, 2 * size)
        buffer = Buffer(dist.group.WORLD, 0, hint, low_latency_mode=True)
        facts["placement"] = buffer._session.placement.where
        facts["reason"] = buffer._session.placement.reason
        facts["opened"] = driver.held()["opened"]
        for turn in range(20):
            if turn % 4 == 3:
                asleep = buffer.pause()
                assert asleep.kept == {} and asleep.freed_bytes > 0 and driver.held()["opened"] == 0
                buffer.resume()
                assert driver.held()["opened"] == facts["opened"]
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 2 * size, use_fp8=False)
            out, _, _ = buffer.low_latency_combine(
                expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank], got[2]
            )
            driver.settle()
            assert_low_latency(got[:3], wanted[rank])
            assert same(out, sums[rank])
        buffer.barrier()
        if rank == 0:
            buffer.destroy()
            facts["parked"] = shared.sweep()  # the others have these rows open
            facts["held"] = driver.held()
        dist.barrier()
        buffer.destroy()
        dist.barrier()
        facts["parked at the end"] = shared.sweep()
        facts["held at the end"] = driver.held()
    dist.destroy_process_group()
    print(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["UCCL_EP_TIMEOUT_S"] = "40"
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1")
