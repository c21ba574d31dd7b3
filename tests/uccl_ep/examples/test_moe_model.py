"""uccl_ep.examples.moe_model without transformers: which modules spread() replaces, and what it leaves to a rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from uccl_ep import Buffer, InvalidArgument
from uccl_ep.examples.expert_parallel import ExpertParallel
from uccl_ep.examples.moe_model import config_of, set_mode, spread


def model_of(num_experts: int) -> Any:
    """A dense layer, then one with experts, shaped as transformers has them."""
    experts = torch.nn.Module()
    experts.num_experts = num_experts  # type: ignore[assignment]
    experts.gate_up_proj = torch.nn.Parameter(torch.arange(num_experts * 6.0).view(num_experts, 2, 3))
    experts.down_proj = torch.nn.Parameter(-torch.arange(num_experts * 3.0).view(num_experts, 3, 1))
    layers = [SimpleNamespace(mlp=torch.nn.Linear(1, 1)), SimpleNamespace(mlp=SimpleNamespace(experts=experts))]
    return SimpleNamespace(model=SimpleNamespace(layers=layers))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_examples_moe_model_spread_leaves_each_rank_its_share(rank: int) -> None:
    model, whole = model_of(8), model_of(8).model.layers[1].mlp.experts
    buffer = cast(Buffer, SimpleNamespace(rank=rank, group_size=4))
    (layer,) = spread(model, buffer, max_decode_tokens=3, fp8=True)
    assert isinstance(layer, ExpertParallel) and model.model.layers[1].mlp.experts is layer
    assert (layer.num_experts, layer.num_local, layer.max_decode_tokens, layer.fp8) == (8, 2, 3, True)
    local: Any = layer.local
    assert local.num_experts == 2
    for name in ("gate_up_proj", "down_proj"):
        assert torch.equal(getattr(local, name), getattr(whole, name)[2 * rank : 2 * rank + 2])
    assert len(list(layer.parameters())) == 2  # optimizers see the experts
    set_mode([layer], "low_latency")
    assert layer.mode == "low_latency"


def test_examples_moe_model_refuses_an_unknown_architecture() -> None:
    with pytest.raises(InvalidArgument, match="qwen3-moe"):
        config_of("qwen4")
