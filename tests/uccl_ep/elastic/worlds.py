"""For tests of ElasticBuffer: ranks as threads, cases whose experts are distinct, what must come, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tests.uccl_ep.ranks import case
from uccl_ep import ThreadGroup, reference, run_ranks
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.reference import RandomCase, ThroughputInput, ThroughputReceived
from uccl_ep.sizes import round_up

Tensor = torch.Tensor
HIDDEN, TOPK, MAX_TOKENS, LOCAL = 256, 3, 20, 3


@contextmanager
def elastic(group: ThreadGroup, **arguments: Any) -> Iterator[ElasticBuffer]:
    buffer = ElasticBuffer(
        group,
        num_max_tokens_per_rank=MAX_TOKENS,
        hidden=HIDDEN,
        num_topk=TOPK,
        explicitly_destroy=True,
        **arguments,
    )
    try:
        yield buffer
        group.barrier()
    finally:
        buffer.destroy()


def on_ranks(ranks: int, body: Callable[[ThreadGroup, ElasticBuffer], Any], **arguments: Any) -> list[Any]:
    """`body(group, buffer)` on each rank."""

    def run(group: ThreadGroup) -> Any:
        with elastic(group, **arguments) as buffer:
            return body(group, buffer)

    return run_ranks(ranks, run)


def a_case(seed: int, ranks: int, traffic: str = "some_unused") -> RandomCase:
    return case(
        seed, traffic, num_ranks=ranks, num_experts=LOCAL * ranks, num_topk=TOPK, hidden=HIDDEN, max_tokens=MAX_TOKENS
    )


@dataclass
class Expected:
    """What one rank must receive: tokens by the oracle, with the source's own weights."""

    tokens: ThroughputReceived
    weights: Tensor  # f32 [n, K], unmasked
    source: Tensor  # int64 [n]: source rank * M + token

    def counts(self) -> list[int]:
        ids = self.tokens.recv_topk_idx
        assert ids is not None
        return [int((ids == expert).sum()) for expert in range(LOCAL)]

    def aligned(self, alignment: int) -> list[int]:
        return [round_up(n, alignment) for n in self.counts()]

    def choices(self, alignment: int) -> list[tuple[int, int] | None]:
        """The (row of tokens, k) in each expanded row, None in padding."""
        ids = self.tokens.recv_topk_idx
        assert ids is not None
        found: list[tuple[int, int] | None] = []
        for expert in range(LOCAL):
            found += [(int(n), int(k)) for n, k in (ids == expert).nonzero()]
            found += [None] * (-len(found) % alignment)
        return found


def expected(c: RandomCase, fp8: list[tuple[Tensor, Tensor]] | None = None) -> list[Expected]:
    """Of all ranks."""
    inputs = []
    for rank, x in enumerate(c.x):
        layout = reference.dispatch_layout(c.topk_idx[rank], c.shape.num_experts, c.shape.num_ranks)
        data, scales = (x, None) if fp8 is None else fp8[rank]
        topk = (c.topk_idx[rank], c.topk_weights[rank])
        inputs.append(ThroughputInput(data, layout.is_token_in_rank, *topk, scales))
    result = []
    for tokens in reference.throughput_dispatch(inputs, c.shape.num_experts):
        pairs = list(zip(tokens.src_rank.tolist(), tokens.src_token.tolist(), strict=True))
        weights = [c.topk_weights[rank][token] for rank, token in pairs]
        source = torch.tensor([rank * MAX_TOKENS + token for rank, token in pairs], dtype=torch.int64)
        result.append(Expected(tokens, torch.stack(weights) if weights else torch.zeros(0, TOPK), source))
    return result
