"""Run on every rank: FlashInfer's registry makes our backend, and its contract holds by value.

Then a whole MoE layer of FlashInfer's, which asks for the backend by its name. Its experts are a kernel in torch,
registered with FlashInfer as its own are, which need a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import silu

from tests.integrations.world import World, quantized, relative, seeded, world
from uccl_ep.drop_in import flashinfer_backend

EXPERTS, TOPK, HIDDEN, MOST = 8, 3, 256, 24
TOKENS = (24, 0, 7, 15)
BLOCK, INNER = 128, 64
KERNEL = "swiglu_in_torch"


def drawn(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """A rank's rows, ids (one of them of no expert) and weights."""
    rows = seeded(rank, torch.randn, TOKENS[rank], HIDDEN).bfloat16()
    ids = seeded(rank + 50, torch.rand, TOKENS[rank], EXPERTS).topk(TOPK).indices.int()
    if len(ids):
        ids[0, 0] = -1
    return rows, ids, seeded(rank + 90, torch.rand, TOKENS[rank], TOPK)


def experts(result: Any, rank: int, rows: Tensor) -> Tensor:
    """Each local expert e multiplies a row by e + 1; its weights are applied, and a row's experts are added up."""
    local = EXPERTS // len(TOKENS)
    here = torch.div(result.topk_ids, local, rounding_mode="floor") == rank
    factors = (result.topk_weights * here * (result.topk_ids + 1)).sum(1, keepdim=True)
    return (rows.float() * factors).bfloat16()


def wanted(rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    factors = (weights * (ids >= 0) * (ids + 1)).sum(1, keepdim=True)
    return rows.float() * factors


def main() -> None:
    from flashinfer.moe_ep import BootstrapConfig, MoEEpCommParams, create_communication

    flashinfer_backend.register()
    with world() as w:
        bootstrap = BootstrapConfig(world_size=w.size, rank=w.rank, process_group=distributed.group.WORLD)
        params = MoEEpCommParams(num_experts=EXPERTS, top_k=TOPK, max_tokens_per_rank=MOST, hidden_size=HIDDEN)
        backend = create_communication(bootstrap, params, flashinfer_backend.NAME)
        if not type(backend).__module__.startswith("uccl_ep."):
            raise RuntimeError(f"the registry gave {type(backend)}")
        rows_travel(w, backend)
        scales_travel(w, backend)
        distributed.barrier()
        backend.destroy()
        layer_runs(w, bootstrap)


def drawn_experts() -> tuple[Tensor, Tensor]:
    """w13 [E, 2 I, H] (gates first) and w2 [E, H, I] of all experts, bf16."""
    w13 = seeded(7, torch.randn, EXPERTS, 2 * INNER, HIDDEN) / HIDDEN**0.5
    return w13.bfloat16(), (seeded(8, torch.randn, EXPERTS, HIDDEN, INNER) / INNER**0.5).bfloat16()


def swiglu(rows: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """float32 [n, H]: a row's weighted sum over experts 0 to len(w13) - 1; other ids count for nothing."""
    total = torch.zeros(rows.shape, dtype=torch.float32)
    for expert in range(len(w13)):
        token, choice = (ids == expert).nonzero(as_tuple=True)
        gate, up = (rows[token].float() @ w13[expert].float().T).chunk(2, 1)
        made = (silu(gate) * up) @ w2[expert].float().T
        total.index_add_(0, token, made * weights[token, choice].float().unsqueeze(1))
    return total


def register_kernel() -> None:
    """What FlashInfer's layer calls between dispatch and combine."""
    from flashinfer.moe_ep.core.kernel.base import SplitKernelBackend
    from flashinfer.moe_ep.core.kernel.registry import register_split_kernel

    @register_split_kernel(KERNEL)
    class SwigluInTorch(SplitKernelBackend):  # type: ignore[misc]  # FlashInfer is not there for mypy
        @classmethod
        def kernel_name(cls) -> str:
            return KERNEL

        def compute(self, context: Any) -> Tensor:
            rows, pack = context.expert_tensors.flatten(0, -2), self._transformed_weights
            ids, weights = context.recv_topk_idx.flatten(0, -2), context.recv_topk_weights.flatten(0, -2)
            return swiglu(rows, ids, weights, pack.w13, pack.w2).bfloat16()


def layer_runs(w: World, bootstrap: Any) -> None:
    """MoEEpLayer with SplitConfig(comm="uccl_ep"), twice: weights in, rows in, rows out."""
    from flashinfer.moe_ep import EpLayout, FleetParams, MoEEpLayer, MoEEpTensors, MoEWeightPack, SplitConfig

    register_kernel()
    sizes = FleetParams(EXPERTS, max_tokens_per_rank=MOST, token_hidden_size=HIDDEN, layout=EpLayout.RANK_MAJOR)
    w13, w2 = drawn_experts()
    local = EXPERTS // w.size
    mine = slice(w.rank * local, (w.rank + 1) * local)
    kernel = SimpleNamespace(kernel_name=KERNEL)
    config = SplitConfig(comm=flashinfer_backend.NAME, kernel=kernel)
    layer = MoEEpLayer(bootstrap, sizes, MoEWeightPack(w13[mine].clone(), w2[mine].clone()), backend=config)
    for step in ("first", "again"):
        rows, ids, weights = drawn(w.rank)
        got = layer.forward(MoEEpTensors(rows, ids, weights))
        wanted_rows = swiglu(rows, ids, weights, w13, w2)
        w.row(f'MoEEpLayer, SplitConfig(comm="uccl_ep"), {step}', relative(got, wanted_rows), 2e-2)
    if not type(layer._communication).__module__.startswith("uccl_ep."):
        raise RuntimeError(f"the layer runs on {type(layer._communication)}")
    distributed.barrier()
    layer.destroy()


def rows_travel(w: World, backend: Any) -> None:
    rows, ids, weights = drawn(w.rank)
    for path, most in (("moe_ep communication, bf16", None), ("moe_ep communication, tokens_per_rank of a step", 24)):
        result = backend.dispatch(rows, ids, weights, max_tokens_per_rank=most)
        check_contract(w, result, [drawn(rank) for rank in range(w.size)])
        out = None if most is None else torch.empty_like(rows)
        combined = backend.combine(experts(result, w.rank, result.hidden_states), output=out)
        if out is not None and combined is not out:
            raise RuntimeError("combine has not written into the output that it was given")
        w.row(path, relative(combined, wanted(rows, ids, weights)), 2e-2)


def scales_travel(w: World, backend: Any) -> None:
    rows, ids, weights = drawn(w.rank)
    data, scales = quantized(rows, BLOCK)
    plain = (data.float().view(-1, HIDDEN // BLOCK, BLOCK) * scales.unsqueeze(-1)).view(rows.shape)
    for path, sent in (("DeepSeek FP8", scales), ("scales of one byte", scales.contiguous().view(torch.uint8))):
        result = backend.dispatch(data, ids, weights, hidden_states_scale=sent)
        if result.hidden_states_scale.dtype != sent.dtype or result.hidden_states.dtype != data.dtype:
            raise RuntimeError("a dtype has changed on the way")
        came = result.hidden_states_scale.view(torch.float32)
        opened = (result.hidden_states.float().view(-1, HIDDEN // BLOCK, BLOCK) * came.unsqueeze(-1)).view(-1, HIDDEN)
        present = (result.topk_ids >= 0).any(1, keepdim=True)  # rows without a token hold anything
        combined = backend.combine(experts(result, w.rank, torch.where(present, opened, 0.0)))
        w.row(f"moe_ep communication, {path}", relative(combined, wanted(plain, ids, weights)), 2e-2)


def check_contract(w: World, result: Any, every: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Each token that is for this rank in one row, others' picks marked, and no more rows than are allowed."""
    local = EXPERTS // w.size
    own = [[i for i in row.tolist() if i // local == w.rank and i >= 0] for _, ids, _ in every for row in ids]
    came = [[i for i in row.tolist() if i >= 0] for row in result.topk_ids]
    if [row for row in own if row] != [row for row in came if row]:
        raise RuntimeError("the ids that came are not those of this rank's experts, in the order of ranks")
    if len(came) != w.size * result.tokens_per_rank or result.topk_ids.dtype != torch.int32:
        raise RuntimeError(f"{len(came)} rows for {result.tokens_per_rank} tokens of a rank")


if __name__ == "__main__":
    main()
