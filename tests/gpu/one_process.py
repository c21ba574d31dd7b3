"""A rank that is a process of its own: both modes against the reference. Prints a JSON line.

python -m tests.gpu.one_process PLACE RANKS RENDEZVOUS RANK
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.gpu.places import Here, open_place
from tests.uccl_ep.ranks import MIB, assert_low_latency, case, expert_rows, layout_arguments, reference_of, same
from uccl_ep import Buffer, reference

ROUNDS = 3


def main(place: str, size: int, rendezvous: str, rank: int) -> None:
    """The rank's life."""
    dist.init_process_group("gloo", f"file://{rendezvous}", timedelta(seconds=60), rank=rank, world_size=size)
    platform = open_place(place, pytest.MonkeyPatch())
    c = case(7, "mixed", num_ranks=size, num_experts=2 * size, num_topk=2, hidden=128, max_tokens=8)
    due = reference_of(c)
    outputs = [expert_rows(r, c.shape) for r in range(size)]
    sums = reference.low_latency_combine(outputs, c.topk_idx, c.topk_weights, due)
    with platform.rank():
        here = Here(platform)
        x, ids, weights, rows = (here.put(t[rank]) for t in (c.x, c.topk_idx, c.topk_weights, outputs))
        hint = Buffer.get_low_latency_rdma_size_hint(8, 128, size, 2 * size)
        buffer = Buffer(dist.group.WORLD, 2 * MIB, hint, low_latency_mode=True, device=platform.device)
        placement = buffer._session.placement
        for _ in range(ROUNDS):
            got = buffer.low_latency_dispatch(x, ids, 8, 2 * size, use_fp8=False)
            out, _, _ = buffer.low_latency_combine(rows, ids, weights, got[2])
            handle = tuple(here.get(h) if isinstance(h, torch.Tensor) else h for h in got[2])
            assert_low_latency((here.get(got[0]), here.get(got[1]), handle), due[rank])  # type: ignore[arg-type]
            assert same(here.get(out), sums[rank])
            layout = layout_arguments(buffer, ids, 2 * size)
            sent, _, _, counts, routing, _ = buffer.dispatch(x, **layout, topk_idx=ids, topk_weights=weights)
            back, _, _ = buffer.combine(sent, routing)
            visited = here.get(layout["is_token_in_rank"]).sum(dim=1, keepdim=True)
            assert torch.equal(here.get(back), (c.x[rank].float() * visited).bfloat16()) and len(counts) == 2
        buffer.barrier()
        buffer.destroy()
    dist.destroy_process_group()
    print(json.dumps({"rounds": ROUNDS, "placement": placement.where, "reason": placement.reason}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
