"""TorchTitan's token dispatchers from its wheel on four ranks: DeepEP V2 and HybridEP, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from tests.integrations.torchtitan.surroundings import prepare
from tests.integrations.world import World, relative, seeded, world

HIDDEN, EXPERTS, TOPK, TOKENS, MAX_TOKENS = 256, 12, 3, 37, 48
BF16 = 0.02
PAD = 16
PARTS = ("output", "gradient of the tokens", "gradient of the scores", "gradients of the experts")


def inputs(rank: int, zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 tokens [T, H], ids [T, K], float32 scores [T, K] of which some are 0 if `zeros`: not routed at all."""
    x = seeded(250 + rank, torch.randn, TOKENS, HIDDEN).bfloat16()
    ids = seeded(260 + rank, torch.rand, TOKENS, EXPERTS).topk(TOPK, dim=-1).indices
    scores = seeded(270 + rank, torch.rand, TOKENS, TOPK) + 0.1
    if zeros:
        scores[::5, -1] = 0.0
        scores[::11] = 0.0
    return x, ids, scores


def expert_weights() -> Tensor:
    """float32 [E, H]."""
    return seeded(240, torch.randn, EXPERTS, HIDDEN)


def output_gradient(rank: int) -> Tensor:
    return seeded(280 + rank, torch.randn, TOKENS, HIDDEN).bfloat16()


def expert(rows: Tensor, weights: Tensor) -> Tensor:
    """Any function of a row and an expert's weights whose gradients depend on both."""
    return torch.tanh(rows * weights)


def wanted(world: World, zeros: bool) -> list[Tensor]:
    """PARTS of this rank in float32, without a dispatcher; of the experts' gradients its own experts."""
    weights, parts = expert_weights().requires_grad_(), []
    for rank in range(world.size):
        x, ids, scores = inputs(rank, zeros)
        leaves = x.float().requires_grad_(), scores.requires_grad_()
        output = (expert(leaves[0].unsqueeze(1), weights[ids]) * scores.unsqueeze(-1)).sum(1)
        output.backward(output_gradient(rank).float())
        parts.append([output.detach(), *(leaf.grad for leaf in leaves)])
    assert weights.grad is not None
    local = EXPERTS // world.size
    return [*parts[world.rank], weights.grad[world.rank * local : (world.rank + 1) * local]]


def local_experts(rows: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Rows grouped by expert through their experts; rows that belong to none come out as zeros."""
    by_row = torch.arange(len(counts)).repeat_interleave(counts.long())
    result = expert(rows[: len(by_row)], weights[by_row]).bfloat16()
    return torch.cat([result, result.new_zeros(rows.shape[0] - len(by_row), rows.shape[1])])


def forward(one: Any, leaves: tuple[Tensor, Tensor], ids: Tensor, weights: Tensor) -> Tensor:
    unused = torch.empty(0)  # tokens per expert: both dispatchers say that they ignore it
    rows, counts, metadata = one.dispatch(leaves[0], leaves[1], ids, unused)
    return one.combine(local_experts(rows, counts, weights), metadata, leaves[0])


def got(world: World, one: Any, zeros: bool) -> list[Tensor]:
    """PARTS through a dispatcher, with autograd."""
    x, ids, scores = inputs(world.rank, zeros)
    local = EXPERTS // world.size
    weights = expert_weights()[world.rank * local : (world.rank + 1) * local].clone().requires_grad_()
    leaves = x.requires_grad_(), scores.requires_grad_()
    output = forward(one, leaves, ids, weights)
    output.backward(output_gradient(world.rank))
    grads = [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in (*leaves, weights)]
    return [output.detach(), *grads]


def check(world: World, path: str, make: Callable[[], Any], zeros: bool = False) -> None:
    """One row for each of PARTS. Where a score is 0 the choice is dropped: its own gradient is 0 by design."""
    reference = wanted(world, zeros)
    if zeros:
        reference[2] = torch.where(inputs(world.rank, True)[2] == 0, 0.0, reference[2])
    for part, value, right in zip(PARTS, got(world, make(), zeros), reference, strict=True):
        world.row(f"{path}: {part}", relative(value, right), BF16)


def main() -> None:
    with world() as ranks:
        mesh = prepare(ranks)
        from torchtitan.distributed.deepep import deepep, hybridep
        from torchtitan.models.common import token_dispatcher as dispatchers

        def made(cls: Any, **options: Any) -> Any:
            sizes = {"num_max_tokens_per_rank": MAX_TOKENS, "hidden_dim": HIDDEN}
            one = cls(cls.Config(num_experts=EXPERTS, top_k=TOPK, **sizes, **options))
            one.wire_meshes(ep_mesh=mesh)
            return one

        check(ranks, "DeepEPTokenDispatcher, compact", lambda: made(dispatchers.DeepEPTokenDispatcher), zeros=True)
        x, ids, scores = inputs(ranks.rank, False)
        local = EXPERTS // ranks.size
        weights = expert_weights()[ranks.rank * local : (ranks.rank + 1) * local]
        with torch.no_grad():
            one = made(dispatchers.DeepEPTokenDispatcher, cudagraphable=True)
            output = forward(one, (x, scores), ids, weights)
        path = "DeepEPTokenDispatcher, expanded, no CPU sync: output"
        ranks.row(path, relative(output, wanted(ranks, False)[0]), BF16)
        hybrid = dispatchers.HybridEPTokenDispatcher
        check(ranks, f"HybridEPTokenDispatcher, padded to {PAD}", lambda: made(hybrid, pad_multiple=PAD))
        check(ranks, "HybridEPTokenDispatcher, non-blocking", lambda: made(hybrid, non_blocking_capacity_factor=1.0))
        owners = [type(module._buffer).__module__ for module in (deepep, hybridep)]
        if owners != ["uccl_ep.elastic.buffer", "uccl_ep.elastic.hybrid"]:
            raise RuntimeError(f"TorchTitan's buffers are of {owners}")
        distributed.barrier()
        deepep._buffer.destroy()  # TorchTitan leaves it to the process's end


if __name__ == "__main__":
    main()
