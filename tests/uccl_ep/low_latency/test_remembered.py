"""Arguments of low-latency calls that were checked in an earlier call, and others that only look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.uccl_ep.ranks import assert_low_latency, assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import ThreadGroup, reference, run_ranks


def test_low_latency_remembered_arguments_that_were_good_before_are_looked_at_again(variables: Any) -> None:
    """What was checked is remembered by size, type and device: everything else about a later call is not taken over."""
    c = case(62, "uniform", num_ranks=1, num_experts=4, hidden=128, max_tokens=8)
    x, ids, weights = c.x[0], c.topk_idx[0], c.topk_weights[0]
    rows, tokens = expert_rows(0, c.shape), x.shape[0]
    outside = ids.clone()
    outside[0, 0] = 4
    wide = torch.zeros(tokens, 256, dtype=torch.bfloat16)[:, ::2]
    meta = torch.zeros(4, dtype=torch.int32, device="meta")

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            due = reference.low_latency_combine([rows], c.topk_idx, c.topk_weights, reference_of(c))
            for _ in range(2):
                handle = buffer.low_latency_dispatch(x, ids, 8, 4)[2]
                out, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
                assert same(out, due[0])

            def send(*changed: Any, **options: Any) -> Callable[[], object]:
                arguments = [x, ids, 8, 4]
                arguments[: len(changed)] = changed
                return lambda: buffer.low_latency_dispatch(*arguments, **options)

            def give_back(*changed: Any, **options: Any) -> Callable[[], object]:
                arguments = [rows, ids, weights, handle]
                arguments[: len(changed)] = changed
                return lambda: buffer.low_latency_combine(*arguments, **options)  # type: ignore[misc]

            shared = torch.zeros(tokens * 64)
            sums = shared.view(torch.bfloat16).view(tokens, 128)
            table: list[tuple[Callable[[], object], list[object]]] = [
                (send(x, ids, 8.0), ["num_max_dispatch_tokens_per_rank=8.0", "a whole number"]),
                (send(x, ids, 8, 4.0), ["num_experts=4.0", "a whole number"]),
                (send(use_fp8=1.0), ["use_fp8=1.0", "True or False"]),
                (send(wide), ["x=", "a contiguous 2-D tensor"]),
                (send(x, ids.T.contiguous().T), ["topk_idx=", "a contiguous 2-D tensor"]),
                (send(x, outside), ["topk_idx=", "first 4 at [0, 0]"]),
                (
                    send(cumulative_local_expert_recv_stats=meta),
                    ["cumulative_local_expert_recv_stats=a tensor on meta"],
                ),
                (send(cumulative_local_expert_recv_stats=torch.zeros(3)), ["torch.int32"]),
                (send(x_global_scale=meta.float()), ["x_global_scale=a tensor on meta"]),
                (give_back(rows.transpose(0, 1).contiguous().transpose(0, 1)), ["x=", "a contiguous bf16 tensor"]),
                (give_back(rows, outside), ["topk_idx=", "first 4 at [0, 0]"]),
                (give_back(rows, ids, weights.T.contiguous().T), ["topk_weights=", "a contiguous 2-D tensor"]),
                (give_back(zero_copy=0.0), ["zero_copy=0.0", "True or False"]),
                (give_back(out=torch.zeros(tokens + 1, 128, dtype=torch.bfloat16)), ["out=", "of shape"]),
                (
                    give_back(rows, ids, shared[: weights.numel()].view(weights.shape), handle, out=sums),
                    ["out=a tensor that overlaps topk_weights", "memory of its own"],
                ),
                (give_back(src_signals=meta), ["src_signals=a tensor on meta"]),
                (give_back(rows, ids, weights, (handle[0].clone(), *handle[1:])), ["src_info is not the tensor"]),
                (give_back(rows, ids, weights, (*handle[:3], 128.0, handle[4])), ["handle="]),
                (give_back(rows, ids, weights, (*handle[:4], 2)), ["handle="]),
            ]
            for call, words in table:
                assert_refused(call, words)
            moved = torch.zeros(tokens * 128 + 1, dtype=torch.bfloat16)[1:].view(tokens, 128).copy_(x)
            assert moved.data_ptr() % 16  # is copied, as ever
            got = buffer.low_latency_dispatch(moved, ids, 8, 4, use_fp8=False)
            assert_low_latency(got[:3], reference_of(c)[0])  # type: ignore[arg-type]

    run_ranks(1, body)
