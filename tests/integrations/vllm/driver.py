"""vLLM's DeepEP prepare/finalize classes from its wheel on four ranks: high throughput, low latency, V2.

Each at once, in halves, and with two micro-batches in flight (dual-batch overlap). And its NIXL EP class, while ranks
join and leave.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.integrations.vllm.elastic import run_elastic
from tests.integrations.vllm.micro_batches import by_turns, override_tokens
from tests.integrations.vllm.surroundings import BLOCK, prepare
from tests.integrations.world import World, relative, seeded, world

HIDDEN, EXPERTS, TOPK, MAX_TOKENS = 2048, 16, 4, 32
TOKENS = (19, 0, 32, 3)  # of each rank: odd, none, many, few
BF16, FP8 = 0.02, 0.1


def inputs(rank: int, experts: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 rows [T, H], int64 ids [T, K] of the first experts, float32 weights [T, K]."""
    tokens = TOKENS[rank]
    x = seeded(150 + rank, torch.randn, tokens, HIDDEN).bfloat16()
    ids = seeded(160 + rank, torch.rand, tokens, experts).topk(TOPK, dim=-1).indices
    return x, ids, seeded(170 + rank, torch.rand, tokens, TOPK)


def factors() -> Tensor:
    """What expert e multiplies rows by: no two experts do the same, and powers of two keep rows exact."""
    return 2.0 ** (torch.arange(EXPERTS) % 4 - 2) * (-1.0) ** (torch.arange(EXPERTS) // 4)


def wanted(rank: int, experts: int = EXPERTS) -> Tensor:
    x, ids, weights = inputs(rank, experts)
    return x.float() * (weights * factors()[ids]).sum(1, keepdim=True)


def unpacked(rows: Tensor, scales: Tensor | None) -> Tensor:
    """float32 rows of what was prepared."""
    if scales is None:
        return rows.float()
    return (rows.float().view(*scales.shape, BLOCK) * scales.unsqueeze(-1)).flatten(-2)


def standard_experts(world: World, prepared: tuple[Any, ...]) -> Tensor:
    """Rows times factors and weights, reduced over the choices that are here, as vLLM's expert kernels give them."""
    rows, scales, meta, ids, weights = prepared
    local = EXPERTS // world.size
    begin = world.rank * local
    here = (ids >= begin) & (ids < begin + local)
    if meta is not None and meta.expert_num_tokens is not None:
        counts = [int((ids == begin + expert).sum()) for expert in range(local)]
        if meta.expert_num_tokens.tolist() != counts or meta.expert_num_tokens_cpu.tolist() != counts:
            raise RuntimeError(f"ExpertTokensMetadata has {meta.expert_num_tokens.tolist()}, the ids say {counts}")
    scale = torch.where(here, weights, 0.0) * torch.where(here, factors()[ids.clamp(min=0)], 0.0)
    result = unpacked(rows, scales) * scale.sum(1, keepdim=True)
    return torch.where(here.any(1, keepdim=True), result, 0.0).bfloat16()


def batched_experts(world: World, prepared: tuple[Any, ...]) -> Tensor:
    """Low latency: [experts, rows, H], of which expert_num_tokens count; weights are applied by combine."""
    rows, scales, meta, _, _ = prepared
    local = EXPERTS // world.size
    results = torch.zeros(rows.shape, dtype=torch.bfloat16)
    for expert, count in enumerate(meta.expert_num_tokens.tolist()):
        part = unpacked(rows[expert, :count], None if scales is None else scales[expert, :count])
        results[expert, :count] = (part * factors()[world.rank * local + expert]).bfloat16()
    return results


def once(
    world: World, one: Any, quantization: Any, overlapped: bool, part: slice = slice(None), experts: int = EXPERTS
) -> Tensor:
    """prepare, experts, finalize: at once, or in the halves that vLLM overlaps; of a part of the rank's rows."""
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEActivationFormat
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
        TopKWeightAndReduceDelegate,
        TopKWeightAndReduceNoOP,
    )
    from vllm.v1.worker.ubatching import dbo_maybe_run_recv_hook

    x, ids, weights = (given[part] for given in inputs(world.rank, experts))
    arguments = (x, weights, ids, EXPERTS, None, False, quantization)
    batched = one.activation_format == FusedMoEActivationFormat.BatchedExperts
    if overlapped:
        dbo_maybe_run_recv_hook()
        prepared = received(one.prepare_async(*arguments))
    else:
        prepared = one.prepare(*arguments)
    result = (batched_experts if batched else standard_experts)(world, prepared)
    output = torch.full((x.shape[0], HIDDEN), float("nan"), dtype=torch.bfloat16)
    reduce = TopKWeightAndReduceDelegate() if batched else TopKWeightAndReduceNoOP()
    finalized = (one.finalize_async if overlapped else one.finalize)(output, result, weights, ids, False, reduce)
    if overlapped:
        received(finalized)
    return output


def received(pending: Any) -> Any:
    """As FusedMoEKernelModularImpl ends a half: (hook, receiver) or a receiver alone."""
    from vllm.v1.worker.ubatching import dbo_enabled, dbo_register_recv_hook, dbo_yield

    hook, receiver = pending if isinstance(pending, tuple) else (None, pending)
    if hook is not None and dbo_enabled():
        dbo_register_recv_hook(hook)  # the other micro-batch calls it
        dbo_yield()
    elif hook is not None:
        hook()
    return receiver()


def row(world: World, name: str, one: Any, quantization: tuple[str, Any, float], overlapped: str) -> None:
    """One row at once and one in halves, and one with two micro-batches by turns; `overlapped` names the halves."""
    of, config, tolerance = quantization
    for suffix, halves in (("", False), (f", {overlapped}", True)):
        with override_tokens(TOKENS):
            error = relative(once(world, one, config, halves), wanted(world.rank))
        world.row(f"{name}, {of}{suffix}", error, tolerance)
    made = by_turns(TOKENS, world.rank, lambda part: once(world, one, config, True, part))
    world.row(f"{name}, {of}, two micro-batches (DBO)", relative(made, wanted(world.rank)), tolerance)


def quantizations() -> list[tuple[str, Any, float]]:
    """What a layer says of its activations: nothing, or FP8 with a scale for each 128 channels."""
    from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG, fp8_w8a8_moe_quant_config

    scale = torch.ones(1)
    fp8 = fp8_w8a8_moe_quant_config(w1_scale=scale, w2_scale=scale, block_shape=[BLOCK, BLOCK])
    return [("bf16", FUSED_MOE_UNQUANTIZED_CONFIG, BF16), ("FP8", fp8, FP8)]


def run_high_throughput(world: World, group: Any) -> None:
    from vllm.distributed.device_communicators.all2all import DeepEPHTAll2AllManager
    from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_ht import DeepEPHTPrepareAndFinalize

    manager = DeepEPHTAll2AllManager(group)
    one = DeepEPHTPrepareAndFinalize(manager.get_handle({}), world.size, 1, world.rank * (EXPERTS // world.size))
    check_whose(one.buffer, "uccl_ep.buffer")
    for quantization in quantizations():
        row(world, "DeepEPHTPrepareAndFinalize", one, quantization, "async")
    manager.destroy()


def run_low_latency(world: World, group: Any) -> None:
    from vllm.distributed.device_communicators.all2all import DeepEPLLAll2AllManager
    from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_ll import DeepEPLLPrepareAndFinalize

    manager = DeepEPLLAll2AllManager(group)
    sizes = {"num_ep_ranks": world.size, "num_global_experts": EXPERTS, "num_local_experts": EXPERTS // world.size}
    buffer = manager.get_handle({"max_num_tokens_per_dp_rank": MAX_TOKENS, "token_hidden_size": HIDDEN, **sizes})
    check_whose(buffer, "uccl_ep.buffer")
    for quantization in quantizations():
        one = DeepEPLLPrepareAndFinalize(buffer, MAX_TOKENS, world.size, use_fp8_dispatch=quantization[0] == "FP8")
        row(world, "DeepEPLLPrepareAndFinalize", one, quantization, "receive hooks")
    manager.destroy()


def run_v2(world: World, group: Any) -> None:
    from vllm.distributed.device_communicators.all2all import DeepEPV2All2AllManager
    from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_v2 import DeepEPV2PrepareAndFinalize

    manager = DeepEPV2All2AllManager(group)
    sizes = {"num_max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_topk": TOPK, "num_experts": EXPERTS}
    for quantization in quantizations():
        name = quantization[0]
        buffer = manager.get_handle({**sizes, "use_fp8_dispatch": name == "FP8"})
        check_whose(buffer, "uccl_ep.elastic.buffer")
        for phase, cudagraph in (("prefill, expanded", False), ("decode, no CPU sync", True)):
            offset = world.rank * (EXPERTS // world.size)
            one = DeepEPV2PrepareAndFinalize(
                buffer, world.size, 1, offset, EXPERTS, TOPK, name == "FP8", use_cudagraph=cudagraph
            )
            row(world, f"DeepEPV2PrepareAndFinalize, {phase}", one, quantization, "async")
    manager.destroy()


def run_nixl(world: World) -> None:
    def step(one: Any, ranks: int) -> tuple[Tensor, Tensor]:
        experts = EXPERTS // world.size * ranks
        with override_tokens(TOKENS[:ranks]):
            made = once(world, one, quantizations()[0][1], True, experts=experts)
        return made, wanted(world.rank, experts)

    sizes = {"max_num_tokens_per_dp_rank": MAX_TOKENS, "token_hidden_size": HIDDEN}
    run_elastic(world, {**sizes, "num_local_experts": EXPERTS // world.size}, step)


def check_whose(buffer: Any, module: str) -> None:
    if type(buffer).__module__ != module:
        raise RuntimeError(f"vLLM's buffer is of {type(buffer).__module__}, not {module}")


def main() -> None:
    with world() as ranks:
        config = prepare(ranks)
        from vllm.config import set_current_vllm_config
        from vllm.distributed.parallel_state import get_ep_group

        with set_current_vllm_config(config):
            group = get_ep_group().cpu_group
            run_high_throughput(ranks, group)
            run_low_latency(ranks, group)
            run_v2(ranks, group)
            run_nixl(ranks)


if __name__ == "__main__":
    main()
