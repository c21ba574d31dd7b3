"""A small GPT-MoE of Megatron's own GPTModel: the flex dispatcher on us trains as its alltoall dispatcher does.

Both runs start from the same weights and see the same tokens. With two experts a token, every sum has at most two terms
and is rounded once whatever the order, so the curves must be equal to the bit. With more, Megatron's alltoall adds a
token's rows in another order and rounding than DeepEP's combine, and bf16 leaves a difference that stays small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from tests.integrations.world import World, seeded

STEPS, LENGTH, BATCH, VOCABULARY = 50, 16, 2, 64
HIDDEN, EXPERTS = 64, 8
LEAST_FALL = 0.5  # nats: a curve that does not fall compares nothing
TOLERANCE = {2: 0.0, 4: 0.04}  # of the loss, at every step


def model_of(topk: int, dispatcher: str) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2,
        hidden_size=HIDDEN,
        ffn_hidden_size=HIDDEN,
        num_attention_heads=4,
        num_moe_experts=EXPERTS,
        moe_router_topk=topk,
        moe_router_pre_softmax=True,
        moe_router_dtype="fp32",
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type=dispatcher,
        moe_flex_dispatcher_backend="deepep",
        expert_model_parallel_size=4,
        use_cpu_initialization=True,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    sizes = {"vocab_size": VOCABULARY, "max_sequence_length": LENGTH}
    model = GPTModel(config, spec, **sizes, share_embeddings_and_output_weights=False)
    return model.bfloat16()


def start_alike(model: torch.nn.Module, rank: int) -> None:
    """Weights from names: dense ones equal on all ranks, experts different on each, the same in every run."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() < 2:
            continue  # norms start as they are
        seed = 1000 * index + (rank if ".experts." in name else 0)
        values = seeded(seed, torch.randn, *parameter.shape) * 0.1
        parameter.data.copy_(values)


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Sequences that can be learnt: each counts up from a random start by a stride of its own."""
    draw = torch.Generator().manual_seed(7919 * step + rank)
    start, stride = (torch.randint(0, limit, (BATCH, 1), generator=draw) for limit in (VOCABULARY, 3))
    tokens = (start + (stride + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(world: World, topk: int, dispatcher: str) -> list[float]:
    """The mean loss of all ranks at every step."""
    model = model_of(topk, dispatcher)
    kind = type(model.decoder.layers[0].mlp.token_dispatcher).__name__
    assert kind == {"flex": "MoEFlexTokenDispatcher", "alltoall": "MoEAlltoAllTokenDispatcher"}[dispatcher]
    start_alike(model, world.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    future = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    curve = []
    for step in range(STEPS):
        tokens, labels = batch_of(world.rank, step)
        loss = model(tokens, positions, future, labels=labels).float().mean()
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            if ".experts." not in name:
                distributed.all_reduce(parameter.grad)
            parameter.grad /= world.size
        optimizer.step()
        mean = loss.detach().double().clone()
        distributed.all_reduce(mean)
        curve.append(mean.item() / world.size)
    return curve


def run_training(world: World) -> None:
    """One row for each top-k."""
    from megatron.core.transformer.moe import fused_a2a

    for topk in TOLERANCE:
        wanted, got = (train(world, topk, dispatcher) for dispatcher in ("alltoall", "flex"))
        fall = wanted[0] - wanted[-1]
        if fall < LEAST_FALL:
            raise RuntimeError(f"the loss fell by {fall:.3f} nats only: {wanted}")
        error = max(abs(a - b) / b for a, b in zip(got, wanted, strict=True))
        whose = type(fused_a2a._buffer).__module__
        if whose != "uccl_ep.buffer":
            raise RuntimeError(f"the flex dispatcher ran on {whose}")
        curve = f"loss {wanted[0]:.3f} to {wanted[-1]:.3f} (alltoall), {got[0]:.3f} to {got[-1]:.3f} (deepep)"
        world.note(f"GPTModel, top-{topk}, {STEPS} steps: {curve}")
        world.row(f"GPTModel top-{topk}, {STEPS} steps: loss curve of alltoall", error, TOLERANCE[topk])
