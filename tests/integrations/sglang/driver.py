"""SGLang's dispatchers from its wheel on four ranks.

DeepEPDispatcher in both modes by turns, the same with two halves of a batch in flight, DeepEPv2Dispatcher, and
NixlEPDispatcher while ranks join.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tests.integrations.sglang.elastic import run_elastic
from tests.integrations.sglang.inputs import BF16, EXPERTS, FP8, HIDDEN, TOPK, factors, inputs, wanted
from tests.integrations.sglang.overlap import run_overlap
from tests.integrations.sglang.surroundings import prepare
from tests.integrations.sglang.v2 import run_v2
from tests.integrations.world import World, relative, world


def dispatcher(world: World, cls: Any, mode: Any) -> Any:
    """`cls` is DeepEPDispatcher, or what makes two of it for two halves of a batch."""
    return cls(
        group=world.group,
        router_topk=TOPK,
        num_experts=EXPERTS,
        num_local_experts=EXPERTS // world.size,
        hidden_size=HIDDEN,
        params_dtype=torch.bfloat16,
        deepep_mode=mode,
        async_finish=True,
        return_recv_hook=True,
    )


def experts(world: World, got: Any) -> Any:
    """What stands between dispatch and combine: the input of combine for a dispatch's output."""
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPLLCombineInput, DeepEPNormalCombineInput

    local = EXPERTS // world.size
    mine = factors()[world.rank * local : (world.rank + 1) * local]
    rows = got.hidden_states
    if got.hidden_states_scale is not None:
        blocks = rows.float().view(*got.hidden_states_scale.shape, 128) * got.hidden_states_scale.unsqueeze(-1)
        rows = blocks.flatten(-2).bfloat16()
    if hasattr(got, "masked_m"):  # low latency: [experts, rows, H], of which masked_m count
        results = torch.zeros(rows.shape, dtype=torch.bfloat16)
        for expert, count in enumerate(got.masked_m.tolist()):
            results[expert, :count] = rows[expert, :count] * mine[expert]
        return DeepEPLLCombineInput(results, got.topk_ids, got.topk_weights)
    here = got.topk_ids >= 0
    assert got.num_recv_tokens_per_expert == [
        -(-int((got.topk_ids == expert).sum()) // 128) * 128 for expert in range(local)
    ]
    scale = (got.topk_weights * torch.where(here, mine[got.topk_ids.clamp(min=0)], 0.0)).sum(1, keepdim=True)
    return DeepEPNormalCombineInput((rows.float() * scale).bfloat16(), got.topk_ids, got.topk_weights)


def once(world: World, one: Any) -> Tensor:
    """Dispatch, experts, combine: through the four halves that SGLang's overlap calls apart."""
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    x, ids, weights = inputs(world.rank)
    one.dispatch_a(x, StandardTopKOutput(topk_weights=weights, topk_ids=ids, router_logits=weights))
    one.combine_a(experts(world, one.dispatch_b()))
    return one.combine_b()


def main() -> None:
    with world() as ranks:
        prepare(ranks)
        from sglang.srt.layers.dp_attention import set_is_extend_in_batch
        from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPBuffer, DeepEPDispatcher
        from sglang.srt.layers.moe.utils import DeepEPMode, DispatcherOutputDtype

        one = dispatcher(
            ranks, DeepEPDispatcher, DeepEPMode.AUTO
        )  # one Buffer for both modes, as a server without disaggregation has
        reference = wanted(ranks.rank)
        for turn in ("first", "again"):  # back to normal and to low latency again: the Buffer is cleaned between
            set_is_extend_in_batch(True)
            ranks.row(f"DeepEPDispatcher normal, async, {turn}", relative(once(ranks, one), reference), BF16)
            set_is_extend_in_batch(False)
            ranks.row(f"DeepEPDispatcher low latency, hooks, {turn}", relative(once(ranks, one), reference), BF16)
        low = one._low_latency_dispatcher
        low.deepep_output_dtype, low.use_fp8 = DispatcherOutputDtype.FP8, True
        ranks.row("DeepEPDispatcher low latency, hooks, FP8", relative(once(ranks, one), reference), FP8)
        run_overlap(ranks, functools.partial(dispatcher, ranks, mode=DeepEPMode.AUTO), experts)
        buffer = DeepEPBuffer._state().buffer
        if type(buffer).__module__ != "uccl_ep.buffer":
            raise RuntimeError(f"the dispatcher ran on {type(buffer).__module__}")
        run_v2(ranks)
        run_elastic(ranks, experts)


if __name__ == "__main__":
    main()
