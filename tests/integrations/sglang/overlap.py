"""SGLang's two-batch overlap: its own stepper takes two halves of a batch through its own dispatcher, by turns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.integrations.sglang.inputs import BF16, inputs, wanted
from tests.integrations.world import World, relative

_LAYERS = 2  # the second half of a batch is in one while the first is in the next


class Half:
    """The steps of one half of a rank's batch through all layers; each layer is given the same rows."""

    def __init__(self, world: World, one: Any, experts: Callable[[World, Any], Any], index: int) -> None:
        self._world, self._one, self._experts, self._index = world, one, experts, index
        x, ids, weights = inputs(world.rank)
        self.part = slice(0, len(x) // 2) if index == 0 else slice(len(x) // 2, len(x))
        self._given = x[self.part], ids[self.part], weights[self.part]
        self._passed: Any = None
        self.results: list[Tensor] = []

    def dispatch_a(self, state: Any, **_: Any) -> None:
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        x, ids, weights = self._given
        topk = StandardTopKOutput(topk_weights=weights, topk_ids=ids, router_logits=weights)
        self._one.dispatch_a(hidden_states=x, topk_output=topk, tbo_subbatch_index=self._index)

    def dispatch_b(self, state: Any) -> None:
        self._passed = self._experts(self._world, self._one.dispatch_b(tbo_subbatch_index=self._index))

    def combine_a(self, state: Any) -> None:
        self._one.combine_a(combine_input=self._passed, tbo_subbatch_index=self._index)

    def combine_b(self, state: Any) -> None:
        self.results.append(self._one.combine_b(tbo_subbatch_index=self._index))

    @staticmethod
    def elsewhere(state: Any, **_: Any) -> None:
        """Attention, gate and output, which are not tested."""


def steps(half: Half, prefill: bool) -> list[Any]:
    """In the order, and with the yields, of operations_strategy.py for DeepSeek's layers."""
    from sglang.srt.batch_overlap.operations import YieldOperation

    stop = YieldOperation()
    middle = [half.dispatch_b, half.combine_a, stop, half.combine_b]
    if prefill:
        return [half.elsewhere, half.dispatch_a, stop, *middle] * _LAYERS
    before = [half.elsewhere, stop, half.elsewhere, stop, half.dispatch_a, stop]
    return [*before, *middle, stop, half.elsewhere] * _LAYERS


def run_overlap(world: World, make: Callable[[Any], Any], experts: Callable[[World, Any], Any]) -> None:
    """One row for prefill and one for decode; `make` makes a dispatcher of a class, `experts` stand behind dispatch."""
    from sglang.srt.batch_overlap.operations import execute_overlapped_operations
    from sglang.srt.batch_overlap.two_batch_overlap import MaybeTboDeepEPDispatcher
    from sglang.srt.layers.dp_attention import set_is_extend_in_batch
    from sglang.srt.layers.moe.utils import MoeA2ABackend
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang.srt.runtime_context import get_flags

    flags = get_flags().moe
    flags.tbo_enabled, flags.a2a_backend = True, MoeA2ABackend.DEEPEP
    one = make(MaybeTboDeepEPDispatcher)
    batch = SimpleNamespace(
        moe_num_token_non_padded=None, global_dp_buffer_len=0, tbo_padded_len=0, global_num_tokens_cpu=None,
        dp_padding_mode=SimpleNamespace(is_max_len=lambda: True),
    )  # fmt: skip
    for name, prefill in (("normal, as in prefill", True), ("low latency, as in decode", False)):
        set_is_extend_in_batch(prefill)
        halves = [Half(world, one, experts, index) for index in range(2)]
        with forward_context(ForwardContext(attn_backend=None)):
            execute_overlapped_operations(
                [{"forward_batch": batch}] * 2, [steps(half, prefill) for half in halves], [0, 0 if prefill else 2]
            )
        for layer in range(_LAYERS):
            got = torch.cat([half.results[layer] for half in halves])
            error = relative(got, wanted(world.rank))
            world.row(f"two-batch overlap {name}, layer {layer + 1}", error, BF16)
