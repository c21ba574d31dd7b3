"""For tests of Buffer: buffers that end well, cases for all ranks, and comparison with the reference row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from uccl_ep import Buffer, InvalidArgument, reference
from uccl_ep.reference import CaseShape, LowLatencyReceived, RandomCase, random_case

Tensor = torch.Tensor
MIB = 1 << 20


def case(seed: int, traffic: str = "some_unused", **shape: int) -> RandomCase:
    """A random case whose ids Buffer accepts: what is out of range in a drawn one is not routed."""
    c = random_case(seed, CaseShape(**shape), traffic)
    c.topk_idx[:] = [torch.where(ids >= c.shape.num_experts, -1, ids) for ids in c.topk_idx]
    return c


@contextmanager
def low_latency(group: Any, shape: CaseShape, **arguments: Any) -> Iterator[Buffer]:
    """A Buffer for the low-latency calls of a case; at the end all ranks wait for each other, unless one failed."""
    hint = Buffer.get_low_latency_rdma_size_hint(shape.max_tokens, shape.hidden, shape.num_ranks, shape.num_experts)
    buffer = Buffer(group, 0, hint, low_latency_mode=True, **arguments)
    yield from _until_the_end(buffer)


@contextmanager
def throughput(group: Any, num_nvl_bytes: int = 2 * MIB, **arguments: Any) -> Iterator[Buffer]:
    """A Buffer for dispatch and combine; ends like the other."""
    yield from _until_the_end(Buffer(group, num_nvl_bytes, **arguments))


def _until_the_end(buffer: Buffer) -> Iterator[Buffer]:
    try:
        yield buffer
        buffer.group.barrier()
    finally:
        buffer.destroy()


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, also NaNs and signs of zero."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (torch.empty(t.shape, dtype=t.dtype).copy_(t).flatten() for t in (a, b))  # strides of one's own
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def assert_low_latency(received: tuple[Any, Tensor, Any], wanted: LowLatencyReceived) -> None:
    """(recv_x, recv_count, handle) is what the reference says, row for row."""
    recv_x, count, (src_info, layout_range, *_) = received
    x, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    assert torch.equal(count, wanted.recv_count)
    assert torch.equal(layout_range, wanted.layout_range)
    assert (scales is None) == (wanted.scales is None)
    for expert, n in enumerate(count.tolist()):
        assert torch.equal(src_info[expert, :n], wanted.src_info[expert, :n])
        assert same(x[expert, :n], wanted.recv_x[expert, :n])
        if scales is not None and wanted.scales is not None:
            assert same(scales[expert, :n], wanted.scales[expert, :n])
            assert scales.stride() == (scales[0].numel(), 1, scales.shape[1])  # column-major


def reference_of(c: RandomCase, **options: Any) -> list[LowLatencyReceived]:
    """The reference's low-latency dispatch of a case."""
    return reference.low_latency_dispatch(c.x, c.topk_idx, c.shape.max_tokens, c.shape.num_experts, **options)


def expert_rows(rank: int, shape: CaseShape, scale: float = 1.0) -> Tensor:
    """Random bf16 [L, P, H]: what a rank's experts might have computed."""
    generator = torch.Generator().manual_seed(977 + rank)
    local, rows = shape.num_experts // shape.num_ranks, shape.num_ranks * shape.max_tokens
    return (torch.randn(local, rows, shape.hidden, generator=generator) * scale).bfloat16()


def layout_arguments(buffer: Buffer, topk_idx: Tensor, num_experts: int) -> dict[str, Any]:
    """get_dispatch_layout's results under dispatch's names for them."""
    names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")
    return dict(zip(names, buffer.get_dispatch_layout(topk_idx, num_experts)[:4], strict=True))


def assert_refused(call: Any, words: Sequence[object]) -> None:
    """The call raises InvalidArgument and its message has all the words: what is allowed and how the value is shown.

    The first may be "argument=value", or "argument=" for any value: "argument must be ...; got value." is due then.
    """
    pair = re.fullmatch(r"([\w.\[\]]+(?:(?:, | and )\w+)*)=(.*)", str(words[0]))
    due = [f"{pair[1]} must be ", f"; got {pair[2]}." if pair[2] else "; got ", *words[1:]] if pair else words
    try:
        call()
    except InvalidArgument as refusal:
        missing = [word for word in due if str(word) not in str(refusal)]
        assert not missing, f"{missing} not in: {refusal}"
    else:
        raise AssertionError(f"accepted, although {words[0]} should have been refused")
