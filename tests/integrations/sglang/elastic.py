"""SGLang's NixlEPDispatcher, through which its elastic expert parallelism runs: two ranks serve, two more join."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from tests.integrations.sglang.inputs import BF16, EXPERTS, FP8, HIDDEN, TOPK, factors, inputs
from tests.integrations.world import World, relative

FIRST = 2  # ranks that serve before the others join
MAX_TOKENS = 128


def _step(world: World, one: Any, ranks: int, experts: Callable[[World, Any], Any]) -> float:
    """Dispatch, experts, combine among the first `ranks` ranks; the error."""
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    x, ids, weights = inputs(world.rank)
    ids = ids % (ranks * (EXPERTS // world.size))
    one.dispatch_a(x, StandardTopKOutput(topk_weights=weights, topk_ids=ids, router_logits=weights))
    one.combine_a(experts(world, one.dispatch_b()))
    return relative(one.combine_b(), _wanted(x, ids, weights))


def _wanted(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return x.float() * (weights * factors()[ids]).sum(1, keepdim=True)


def run_elastic(world: World, experts: Callable[[World, Any], Any]) -> None:
    """Two ranks, then four: SGLang connects the new ones in the first dispatch after it was told to scale."""
    from sglang.srt.distributed.utils import set_global_tcp_store
    from sglang.srt.layers.dp_attention import set_is_extend_in_batch
    from sglang.srt.layers.moe.token_dispatcher.nixl import NixlEPBuffer, NixlEPDispatcher
    from sglang.srt.layers.moe.utils import DeepEPMode
    from sglang.srt.runtime_context import get_parallel

    os.environ["SGLANG_NIXL_EP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(MAX_TOKENS)
    store = distributed.PrefixStore("elastic", distributed.distributed_c10d._get_default_store())
    set_global_tcp_store(store)
    get_parallel().override_permanently(max_ep_size=world.size)
    world.shim("get_parallel().max_ep_size: as --max-ep-size says; there is no server")
    set_is_extend_in_batch(False)
    local, first = EXPERTS // world.size, distributed.new_group(list(range(FIRST)))

    def dispatcher(group: Any, ranks: int) -> Any:
        return NixlEPDispatcher(
            group=group,
            router_topk=TOPK,
            num_experts=ranks * local,
            num_local_experts=local,
            hidden_size=HIDDEN,
            params_dtype=torch.bfloat16,
            deepep_mode=DeepEPMode.LOW_LATENCY,
            return_recv_hook=True,
        )

    here = world.rank < FIRST
    for bf16, tolerance in (("1", BF16), ("0", FP8)):
        os.environ["SGLANG_NIXL_EP_BF16_DISPATCH"] = bf16
        name = "bf16" if bf16 == "1" else "FP8"
        if bf16 == "1":
            one = dispatcher(first, FIRST) if here else None
            error = _step(world, one, FIRST, experts) if here else 0.0
            world.row(f"NixlEPDispatcher, {name}, {FIRST} ranks", error, tolerance)
            if here:
                NixlEPBuffer.on_scale(FIRST, world.size)
            else:
                one = dispatcher(world.group, world.size)
        for turn in ("that have scaled up", "again"):
            error = _step(world, one, world.size, experts)
            world.row(f"NixlEPDispatcher, {name}, {world.size} ranks {turn}", error, tolerance)
    buffer = NixlEPBuffer._state().buffer
    if type(buffer).__module__ != "uccl_ep.drop_in.nixl_ep":
        raise RuntimeError(f"the dispatcher ran on {type(buffer).__module__}")
    distributed.barrier()
    buffer.destroy()
