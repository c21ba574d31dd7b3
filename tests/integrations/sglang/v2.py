"""SGLang's DeepEPv2Dispatcher, its adapter of ElasticBuffer: expanded and plain prefill, decode without CPU sync."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from tests.integrations.sglang.inputs import BF16, EXPERTS, FP8, HIDDEN, TOPK, factors, inputs, wanted
from tests.integrations.sglang.surroundings import prepare_v2
from tests.integrations.world import World, relative

BLOCK = 128
_EXPAND = "SGLANG_DEEPEP_V2_ENABLE_PREFILL_EXPAND"


def dispatcher(world: World, fp8: bool) -> Any:
    from sglang.srt.layers.moe.token_dispatcher.deepep_v2 import DeepEPv2Dispatcher

    return DeepEPv2Dispatcher(
        group=world.group,
        router_topk=TOPK,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS // world.size,
        hidden_size=HIDDEN,
        params_dtype=torch.bfloat16,
        use_fp8_dispatch=fp8,
    )


def scale_of_rows(got: Any, mine: Tensor) -> Tensor:
    """float32 [rows]: factor times weight of each received row, 0 for rows that belong to no expert."""
    if not got.is_expanded:
        here = got.topk_ids >= 0
        scale = torch.where(here, got.topk_weights, 0.0) * torch.where(here, mine[got.topk_ids.clamp(min=0)], 0.0)
        return scale.sum(1)
    scale, begin = torch.zeros(got.hidden_states.shape[0]), 0
    for expert, end in enumerate(got.psum_num_recv_tokens_per_expert.tolist()):
        scale[begin:end] = got.topk_weights[begin:end] * mine[expert]
        begin = -(-end // got.expert_alignment) * got.expert_alignment  # where SGLang's grouped GEMM begins the next
    return scale


def once(world: World, one: Any) -> Tensor:
    """Dispatch, experts, combine."""
    from sglang.srt.layers.moe.token_dispatcher.deepep_v2 import DeepEPv2CombineInput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    x, ids, weights = inputs(world.rank)
    local = EXPERTS // world.size
    got = one.dispatch(x, StandardTopKOutput(topk_weights=weights, topk_ids=ids, router_logits=weights))
    rows = got.hidden_states.float()
    if got.hidden_states_scale is not None:
        scales = got.hidden_states_scale
        rows = (rows.view(*scales.shape, BLOCK) * scales.unsqueeze(-1)).flatten(-2)
    scale = scale_of_rows(got, factors()[world.rank * local : (world.rank + 1) * local]).unsqueeze(1)
    result = torch.where(scale != 0, rows * scale, 0.0).bfloat16()  # rows that count for nothing may hold anything
    return one.combine(DeepEPv2CombineInput(result, None if got.is_expanded else got.topk_weights))


def run_v2(world: World) -> None:
    """One row for each layout and format."""
    prepare_v2(world)
    from sglang.srt.layers.dp_attention import set_is_extend_in_batch
    from sglang.srt.layers.moe.token_dispatcher.deepep_v2 import DeepEPv2Buffer

    reference = wanted(world.rank)
    for name, fp8, tolerance in (("bf16", False, BF16), ("FP8", True, FP8)):
        for layout, extend, expand in (
            ("prefill, expanded", True, "1"), ("prefill, not expanded", True, "0"), ("decode, no CPU sync", False, "1")
        ):  # fmt: skip
            os.environ[_EXPAND] = expand
            set_is_extend_in_batch(extend)
            error = relative(once(world, dispatcher(world, fp8)), reference)
            world.row(f"DeepEPv2Dispatcher {layout}, {name}", error, tolerance)
        buffer = DeepEPv2Buffer._state().buffer
        if type(buffer).__module__ != "uccl_ep.elastic.buffer":
            raise RuntimeError(f"the dispatcher ran on {type(buffer).__module__}")
