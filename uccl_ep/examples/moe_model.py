"""Small mixtures of experts of transformers, random but seeded, and their experts spread over ranks.

Needs `pip install transformers` (5 or newer). To use a model of your own, call `spread(model, ...)`: it works for every
architecture whose layers keep their experts in `mlp.experts` with `gate_up_proj` and `down_proj` of all experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from uccl_ep import Buffer
from uccl_ep.errors import one_of, refuse
from uccl_ep.examples.expert_parallel import ExpertParallel, Mode

Layer = TypeVar("Layer", bound=nn.Module)
ARCHITECTURES = ("qwen3-moe", "deepseek-v3")
HIDDEN, EXPERTS, TOPK, VOCABULARY = 256, 16, 4, 512


def config_of(architecture: str) -> Any:
    """A transformers configuration small enough for a CPU.

    Raises:
        InvalidArgument: an architecture that is not in ARCHITECTURES.
    """
    if architecture not in ARCHITECTURES:
        refuse("architecture", architecture, one_of(ARCHITECTURES))
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_experts_per_tok": TOPK,
        "max_position_embeddings": 256,
        "eos_token_id": None,  # so that exactly as many tokens come as were asked for
        "pad_token_id": 0,
        "norm_topk_prob": True,
    }
    if architecture == "qwen3-moe":
        return transformers.Qwen3MoeConfig(num_key_value_heads=2, num_experts=EXPERTS, **common)
    return transformers.DeepseekV3Config(
        num_key_value_heads=4,
        n_routed_experts=EXPERTS,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        q_lora_rank=96,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        qk_nope_head_dim=32,
        v_head_dim=32,
        num_mtp_layers=0,
        **common,
    )


def make_model(architecture: str, seed: int) -> Any:
    """The whole model with random weights that depend on the seed alone; float32, in evaluation mode."""
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(architecture))
    model.set_experts_implementation("eager")  # the one that passes over ids of experts that live elsewhere
    return model.eval()


def spread(model: Any, buffer: Buffer, max_decode_tokens: int, fp8: bool = False) -> list[ExpertParallel]:
    """Leaves this rank its share of each layer's experts, in place, and puts ExpertParallel around them.

    Returns:
        The layers' ExpertParallel modules, for `set_mode`.
    """

    def make(experts: Any, num_experts: int) -> ExpertParallel:
        return ExpertParallel(experts, buffer, num_experts, max_decode_tokens, fp8)

    return spread_by(model, buffer.rank, buffer.group_size, make)


def spread_by(model: Any, rank: int, ranks: int, make: Callable[[Any, int], Layer]) -> list[Layer]:
    """The same with what `make(this rank's experts, experts of the layer)` gives around them."""
    layers = []
    for layer in model.model.layers:
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue  # a dense layer
        num_experts = int(experts.num_experts)
        share = num_experts // ranks
        mine = slice(rank * share, (rank + 1) * share)
        for name in ("gate_up_proj", "down_proj"):
            setattr(experts, name, nn.Parameter(getattr(experts, name).data[mine].clone()))
        experts.num_experts = share
        layer.mlp.experts = make(experts, num_experts)
        layers.append(layer.mlp.experts)
    return layers


def set_mode(layers: list[ExpertParallel], mode: Mode) -> None:
    """Which calls of the Buffer the layers use from now on; the same on all ranks."""
    for layer in layers:
        layer.mode = mode
