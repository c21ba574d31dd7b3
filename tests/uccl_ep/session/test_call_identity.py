"""Ranks that are not in the same call: every one of them refuses it, names the argument and shows both values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, case, expert_rows
from uccl_ep import Buffer, SettingsMismatch, ThreadGroup, run_ranks
from uccl_ep.reference import RandomCase

Tensor = torch.Tensor
RANKS, ODD = 4, 1  # the rank that does something else than the others
NODES = pytest.mark.parametrize("ranks_per_node", [4, 2])


def refused_by_all(variables: Any, per_node: int, step: Callable[[Buffer], object], **arguments: Any) -> list[str]:
    """What each rank says when `step`, the first call that differs, ends."""
    variables(RANKS_PER_NODE=str(per_node), TIMEOUT_S="20")

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, **arguments)
        try:
            with pytest.raises(SettingsMismatch) as caught:
                step(buffer)
            return str(caught.value)
        finally:
            buffer.destroy()

    return run_ranks(RANKS, body)


def low_latency_refused(variables: Any, per_node: int, step: Callable[[Buffer], object]) -> list[str]:
    hint = Buffer.get_low_latency_rdma_size_hint(64, 1024, RANKS, 16)
    return refused_by_all(variables, per_node, step, num_rdma_bytes=2 * hint, low_latency_mode=True)


def throughput_refused(variables: Any, per_node: int, step: Callable[[Buffer], object]) -> list[str]:
    return refused_by_all(variables, per_node, step, num_nvl_bytes=2 * MIB)


def say(texts: list[str], what: str, odd: object, others: object) -> None:
    """The odd rank was told the others' value, each other rank the odd one's."""
    for rank, text in enumerate(texts):
        assert what in text, text
        here, there = (odd, others) if rank == ODD else (others, odd)
        assert f"is {here} here and {there} there" in text, text
        assert rank == ODD or f"rank {ODD} " in text, text


def low_latency_round(buffer: Buffer, c: RandomCase, **options: Any) -> Any:
    rank = buffer.rank
    sent = buffer.low_latency_dispatch(
        c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, **{"use_fp8": False, **options}
    )
    return sent[2]


def give_back(buffer: Buffer, c: RandomCase, handle: Any, **options: Any) -> Tensor:
    rows, rank = expert_rows(buffer.rank, c.shape), buffer.rank
    return buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle, **options)[0]


def shaped(seed: int, max_tokens: int, hidden: int, num_experts: int = 8) -> RandomCase:
    return case(seed, "uniform", num_ranks=RANKS, max_tokens=max_tokens, hidden=hidden, num_experts=num_experts)


@pytest.mark.mostly_slow(quick=6)
@NODES
@pytest.mark.parametrize("before", [None, (32, 256), (64, 1024)])
@pytest.mark.parametrize(
    ("odd", "others", "what"),
    [
        ((16, 512), (8, 512), "num_max_dispatch_tokens_per_rank"),
        ((8, 512), (16, 512), "num_max_dispatch_tokens_per_rank"),
        ((8, 1024), (8, 512), "hidden size"),
        ((64, 128), (32, 512), "num_max_dispatch_tokens_per_rank"),
    ],
)
def test_call_identity_low_latency_sizes(
    variables: Any, ranks_per_node: int, before: tuple[int, int] | None, odd: Any, others: Any, what: str
) -> None:
    def step(buffer: Buffer) -> None:
        if before is not None:
            first = shaped(1, *before)
            for _ in range(3):
                give_back(buffer, first, low_latency_round(buffer, first))
        low_latency_round(buffer, shaped(2, *(odd if buffer.rank == ODD else others)))

    index = 1 if what == "hidden size" else 0
    say(low_latency_refused(variables, ranks_per_node, step), what, odd[index], others[index])


@NODES
def test_call_identity_low_latency_experts_and_formats(variables: Any, ranks_per_node: int) -> None:
    def experts(buffer: Buffer) -> None:
        low_latency_round(buffer, shaped(3, 8, 512, 16 if buffer.rank == ODD else 8))

    def fp8(buffer: Buffer) -> None:
        low_latency_round(buffer, shaped(3, 8, 512), use_fp8=buffer.rank == ODD)

    def logfmt(buffer: Buffer) -> None:
        c = shaped(3, 8, 512)
        give_back(buffer, c, low_latency_round(buffer, c), use_logfmt=buffer.rank == ODD)

    say(low_latency_refused(variables, ranks_per_node, experts), "number of experts", 16, 8)
    say(low_latency_refused(variables, ranks_per_node, fp8), "row format", "fp8", "bf16")
    say(low_latency_refused(variables, ranks_per_node, logfmt), "row format", "logfmt", "bf16")


@NODES
@pytest.mark.parametrize("form", ["direct", "node"])
def test_call_identity_low_latency_handle_of_another_dispatch(variables: Any, ranks_per_node: int, form: str) -> None:
    c = shaped(4, 8, 128)

    def step(buffer: Buffer) -> None:
        first = low_latency_round(buffer, c)
        give_back(buffer, c, first)
        second = low_latency_round(buffer, c)
        give_back(buffer, c, first if buffer.rank == ODD else second)

    variables(LOW_LATENCY_COMBINE=form)
    say(low_latency_refused(variables, ranks_per_node, step), "dispatch that the handle is of", 1, 2)


def dispatch(buffer: Buffer, x: Tensor, ids: Tensor, num_experts: int = 8) -> tuple[Tensor, Any]:
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, num_experts)
    weights = torch.ones(ids.shape, dtype=torch.float32)
    out = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=ids,
        topk_weights=weights,
    )
    return out[0], out[4]


def routes(rank: int, seed: int, tokens: int = 8) -> Tensor:
    return torch.randint(0, 8, (tokens, 2), generator=torch.Generator().manual_seed(100 * seed + rank))


@NODES
def test_call_identity_throughput_dtype_of_equal_bytes(variables: Any, ranks_per_node: int) -> None:
    def step(buffer: Buffer) -> None:
        x = torch.ones(8, 256, dtype=torch.bfloat16)
        dispatch(buffer, x.view(torch.float32) if buffer.rank == ODD else x, routes(buffer.rank, 1))

    say(throughput_refused(variables, ranks_per_node, step), "dtype of x", "float32", "bfloat16")


@NODES
@pytest.mark.parametrize("again", [False, True])
def test_call_identity_throughput_handle_of_another_dispatch(variables: Any, ranks_per_node: int, again: bool) -> None:
    def step(buffer: Buffer) -> None:
        x = torch.ones(8, 256, dtype=torch.bfloat16)
        (rows, first), (_, second) = (dispatch(buffer, x, routes(buffer.rank, seed)) for seed in (1, 2))
        handle = first if buffer.rank == ODD else second
        if again:
            buffer.dispatch(x, handle=handle)
        else:
            buffer.combine(torch.ones(handle.routing.num_rows, 256, dtype=torch.bfloat16), handle)

    say(throughput_refused(variables, ranks_per_node, step), "dispatch that the handle is of", 1, 2)


@NODES
def test_call_identity_throughput_other_rows_or_call(variables: Any, ranks_per_node: int) -> None:
    def hidden(buffer: Buffer) -> None:
        _, handle = dispatch(buffer, torch.ones(8, 256, dtype=torch.bfloat16), routes(buffer.rank, 1))
        buffer.combine(
            torch.ones(handle.routing.num_rows, 128 if buffer.rank == ODD else 256, dtype=torch.bfloat16), handle
        )

    def weights(buffer: Buffer) -> None:
        _, handle = dispatch(buffer, torch.ones(8, 256, dtype=torch.bfloat16), routes(buffer.rank, 1))
        n = handle.routing.num_rows
        given = torch.ones(n, 2) if buffer.rank == ODD else None
        buffer.combine(torch.ones(n, 256, dtype=torch.bfloat16), handle, topk_weights=given)

    def call(buffer: Buffer) -> None:
        x = torch.ones(8, 256, dtype=torch.bfloat16)
        _, handle = dispatch(buffer, x, routes(buffer.rank, 1))
        if buffer.rank == ODD:
            buffer.dispatch(x, handle=handle)
        else:
            buffer.combine(torch.ones(handle.routing.num_rows, 256, dtype=torch.bfloat16), handle)

    say(throughput_refused(variables, ranks_per_node, hidden), "row bytes", 256, 512)
    say(throughput_refused(variables, ranks_per_node, weights), "top-k", 2, 0)
    say(throughput_refused(variables, ranks_per_node, call), "call", "dispatch with a handle", "combine")


@NODES
def test_call_identity_a_step_left_out_is_told_by_its_tag(variables: Any, ranks_per_node: int) -> None:
    """Rank ODD leaves out step 2: the call that it makes next is refused by all."""
    c = shaped(5, 8, 128)

    def low_latency(buffer: Buffer) -> None:
        for number in range(1, 5):
            buffer.set_call_tag(number)
            if not (buffer.rank == ODD and number == 2):
                give_back(buffer, c, low_latency_round(buffer, c))

    def throughput(buffer: Buffer) -> None:
        for number in range(1, 5):
            buffer.set_call_tag(number)
            if not (buffer.rank == ODD and number == 2):
                rows, handle = dispatch(buffer, torch.ones(8, 256, dtype=torch.bfloat16), routes(buffer.rank, number))
                buffer.combine(rows, handle)

    say(low_latency_refused(variables, ranks_per_node, low_latency), "tag of the step", 3, 2)
    say(throughput_refused(variables, ranks_per_node, throughput), "tag of the step", 3, 2)


def test_call_identity_top_k_may_differ_in_low_latency(variables: Any) -> None:
    """A rank's own number of experts per token is nobody else's business there: rows come out right."""
    c = shaped(6, 8, 128)

    def body(group: ThreadGroup) -> None:
        hint = Buffer.get_low_latency_rdma_size_hint(8, 128, RANKS, 8)
        buffer = Buffer(group, num_rdma_bytes=2 * hint, low_latency_mode=True)
        k = 1 if group.rank() == ODD else c.topk_idx[0].shape[1]
        ids, rank = c.topk_idx[group.rank()][:, :k].contiguous(), group.rank()
        for _ in range(2):
            x, _, handle, _, _ = buffer.low_latency_dispatch(c.x[rank], ids, 8, 8, use_fp8=False)
            weights = torch.ones(ids.shape)
            out = buffer.low_latency_combine(x, ids, weights, handle)[0]
            shown = (ids >= 0).sum(1, keepdim=True).float() * c.x[rank].float()
            assert torch.equal(out, shown.bfloat16())
        buffer.destroy()

    variables(RANKS_PER_NODE="2")
    run_ranks(RANKS, body)


def test_call_identity_tag_is_refused_out_of_range() -> None:
    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, num_nvl_bytes=MIB)
        for tag in (-1, 1 << 32, "1"):
            with pytest.raises(ValueError, match="tag"):
                buffer.set_call_tag(tag)  # type: ignore[arg-type]
        buffer.destroy()

    run_ranks(1, body)
