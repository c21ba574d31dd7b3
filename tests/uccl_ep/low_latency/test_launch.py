"""Low latency below the calls: handles, sizes that change, and rows equal to the reference on every path."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import (
    assert_low_latency,
    assert_refused,
    case,
    expert_rows,
    low_latency,
    reference_of,
    same,
)
from uccl_ep import Buffer, InvalidArgument, ThreadGroup, _native, reference, run_ranks
from uccl_ep.reference import CaseShape, Fp8Format, RandomCase

WORLDS = [
    pytest.param(1, 0, "auto", 1, id="one rank"),
    pytest.param(3, 0, "auto", 1, id="one node of 3"),
    pytest.param(4, 2, "loopback", 2, id="2 nodes of 2, loopback, 2 workers"),
    pytest.param(5, 2, "tcp", 1, id="nodes of 2 2 1, tcp"),
    pytest.param(3, 1, "shared_memory", 1, id="3 nodes, shared memory"),
]
FORMATS: list[tuple[dict[str, bool], Fp8Format | None]] = [
    ({"use_fp8": False}, None),
    ({}, Fp8Format()),
    ({"round_scale": True}, Fp8Format(True)),
    ({"round_scale": True, "use_ue8m0": True}, Fp8Format(True, True)),
]


def call_both(buffer: Buffer, c: RandomCase, **options: bool) -> tuple[Any, Any]:
    """(what a dispatch returned, what a combine of expert_rows returned)."""
    rank, shape = buffer.rank, c.shape
    sent = buffer.low_latency_dispatch(
        c.x[rank],
        c.topk_idx[rank],
        shape.max_tokens,
        shape.num_experts,
        **options,  # type: ignore[arg-type]
    )
    rows = expert_rows(rank, shape)
    combined = buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], sent[2])
    return sent, combined[0]


def sums_of(c: RandomCase, received: list[Any]) -> list[torch.Tensor]:
    rows = [expert_rows(r, c.shape) for r in range(c.shape.num_ranks)]
    return reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, received)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("ranks, per_node, transport, workers", WORLDS)
def test_low_latency_rows_are_the_references(
    variables: Any, ranks: int, per_node: int, transport: str, workers: int
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, PROXY_THREADS=workers, SHUFFLE_SEED=5)
    traffic = ["uniform", "some_unused", "duplicates", "hot_expert", "no_tokens", "all_unused"] * 2
    shape = {"num_ranks": ranks, "num_experts": 3 * ranks, "num_topk": 3, "hidden": 512, "max_tokens": 12}
    cases = [case(80 + turn, kind, **shape) for turn, kind in enumerate(traffic)]

    def body(group: ThreadGroup) -> list[Any]:
        with low_latency(group, cases[0].shape) as buffer:
            return [call_both(buffer, c, **FORMATS[turn % 4][0]) for turn, c in enumerate(cases)]

    results = run_ranks(ranks, body)
    for turn, c in enumerate(cases):
        wanted = reference_of(c, fp8=FORMATS[turn % 4][1])
        sums = sums_of(c, wanted)
        for rank in range(ranks):
            sent, combined = results[rank][turn]
            assert_low_latency(sent[:3], wanted[rank])
            assert sent[3].event is None and sent[4] is None
            assert same(combined, sums[rank])


@pytest.mark.parametrize("transport, per_node", [("auto", 0), ("loopback", 1)])
@pytest.mark.parametrize("calls", ["dispatch only", "in turns of random length"])
def test_low_latency_any_sequence_of_calls(variables: Any, transport: str, per_node: int, calls: str) -> None:
    """Peers learn what has been read also when nothing else is sent to them, so that sets can be used again."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=15)
    c = case(91, "uniform", num_ranks=3, num_experts=6, hidden=128)
    wanted = reference_of(c)
    sums = sums_of(c, wanted)
    pattern = random.Random(4)
    steps = ["d" if calls == "dispatch only" or pattern.random() < 0.5 else "c" for _ in range(40)]

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            sent, _ = call_both(buffer, c, use_fp8=False)
            for step in steps:
                if step == "d":
                    sent = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 6, use_fp8=False)
                    assert_low_latency(sent[:3], wanted[rank])
                else:
                    rows = expert_rows(rank, c.shape)
                    combined, _, _ = buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], sent[2])
                    assert same(combined, sums[rank])

    run_ranks(3, body)


def test_low_latency_sizes_may_change_between_calls(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")
    shapes = [(16, 512, 8), (7, 128, 16), (16, 512, 8), (1, 256, 4), (12, 512, 4)]
    cases = [
        case(20 + i, "uniform", num_ranks=4, num_experts=e, hidden=h, max_tokens=m)
        for i, (m, h, e) in enumerate(shapes)
    ]
    wanted = [reference_of(c) for c in cases]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, CaseShape(4, 16, 2, 512, 16)) as buffer:
            for c, received in zip(cases, wanted, strict=True):
                sent, combined = call_both(buffer, c, use_fp8=False)
                assert_low_latency(sent[:3], received[buffer.rank])
                assert same(combined, sums_of(c, received)[buffer.rank])

    run_ranks(4, body)


def test_low_latency_sizes_may_not_change_while_a_hook_is_due(variables: Any) -> None:
    c = case(22, num_ranks=2, hidden=256)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            arguments = (c.x[rank], c.topk_idx[rank], 16, 8)
            *_, hook = buffer.low_latency_dispatch(*arguments, return_recv_hook=True)
            x = torch.zeros(1, 128, dtype=torch.bfloat16)
            ids = torch.zeros(1, 1, dtype=torch.int64)
            assert_refused(
                lambda: buffer.low_latency_dispatch(x, ids, 8, 8),
                ["num_max_dispatch_tokens_per_rank, hidden, num_experts=(8, 128, 8)", "(16, 256, 8)", "receive hook"],
            )
            assert hook is not None
            hook()
            buffer.low_latency_dispatch(x, ids, 8, 8)

    run_ranks(2, body)


def test_low_latency_sizes_that_do_not_fit_are_refused_with_what_would(variables: Any) -> None:
    x, ids = torch.zeros(1, 256, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int64)
    hint = Buffer.get_low_latency_rdma_size_hint(64, 256, 1, 4)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, CaseShape(1, 4, 1, 256, 8)) as buffer:
            given = buffer.num_rdma_bytes
            with pytest.raises(InvalidArgument) as caught:
                buffer.low_latency_dispatch(x, ids, 64, 4)
            text = str(caught.value)
            for word in (
                "num_rdma_bytes must be at least",
                f"; got {given}.",
                "64 tokens x 256 channels on 1 node(s)",
                "size_hint",
            ):
                assert word in text
            needed = int(text.split("at least ")[1].split()[0])
            assert given < needed <= hint
        exact = Buffer(group, 0, -(-needed // 128) * 128, low_latency_mode=True)
        exact.low_latency_dispatch(x, ids, 64, 4)
        exact.destroy()

    run_ranks(1, body)


@pytest.mark.parametrize(
    "sizes, words",
    [
        ((0, 256, 4), ["num_max_dispatch_tokens_per_rank=0", f"1 to {_native.MAX_TOKENS_PER_RANK}"]),
        ((_native.MAX_TOKENS_PER_RANK + 1, 256, 4), ["num_max_dispatch_tokens_per_rank=65537", "1 to 65536"]),
        ((8, 252, 4), ["hidden=252", "multiple of 8"]),
        ((8, _native.MAX_HIDDEN + 8, 4), ["hidden=262152", "up to 262144"]),
        ((8, 256, 3), ["num_experts=3", "multiple of the 2 ranks"]),
        ((8, 256, 0), ["num_experts=0"]),
        ((8, 256, _native.MAX_EXPERTS + 2), ["num_experts=4098", "up to 4096"]),
    ],
)
def test_low_latency_sizes_out_of_range(variables: Any, sizes: tuple[int, int, int], words: list[str]) -> None:
    def body(group: ThreadGroup) -> None:
        with low_latency(group, CaseShape(2, 4, 1, 256, 8)) as buffer:
            assert_refused(lambda: buffer._life.low_latency._low_latency.set_shape(*sizes, buffer.barrier), words)

    run_ranks(2, body)


def test_low_latency_sums_may_overwrite_the_rows() -> None:
    tokens, hidden = 64, 128
    ids = (torch.arange(tokens) < tokens // 2).long().view(tokens, 1)  # expert 0 has the later half, in x's first rows
    shape = CaseShape(num_ranks=1, num_experts=2, num_topk=1, hidden=hidden, max_tokens=tokens)
    with low_latency(ThreadGroup.create(1)[0], shape) as buffer:
        sent = torch.randn(tokens, hidden).bfloat16()
        rows, _, handle, _, _ = buffer.low_latency_dispatch(sent, ids, tokens, 2, use_fp8=False)
        out = rows.view(-1, hidden)[:tokens]
        combined, _, _ = buffer.low_latency_combine(rows, ids, torch.ones(tokens, 1), handle, out=out)
        assert combined.data_ptr() == rows.data_ptr() and same(combined, sent)
