"""fused_a2a and MoEFlexTokenDispatcher: values and gradients against all ranks' tokens in one process.

Rows are bf16 on the way, as in training; the reference computes in float32 from the same bf16 inputs. The experts are
one matrix each, so that a row at a wrong expert, a wrong weight or a lost gradient shows as a value, not as a shape.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.integrations.world import World, relative, seeded

HIDDEN, EXPERTS, TOPK = 256, 8, 3
TOKENS = (37, 0, 64, 5)  # of each rank: odd, none, many, few
EQUAL_TOKENS = 41  # of every rank, for HybridEPBuffer
PADDED_TOKENS, PADDED_CAPACITY = 32, 12  # of each rank; and of those, how many each expert takes
TOLERANCE = 0.02  # of rows: bf16 keeps 8 bits, and a few rounded rows are summed
EXACT = 1e-5  # of what travels in float32, or is computed from rows that bf16 holds exactly


def inputs(rank: int, tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """bf16 rows [T, H] and float32 router probabilities [T, E], zero but for TOPK of each row. T is TOKENS's if not
    given."""
    tokens = TOKENS[rank] if tokens is None else tokens
    x = seeded(10 + rank, torch.randn, tokens, HIDDEN).bfloat16()
    scores = seeded(20 + rank, torch.rand, tokens, EXPERTS)
    chosen = scores.topk(TOPK, dim=-1).indices
    probs = torch.zeros(tokens, EXPERTS).scatter(1, chosen, torch.softmax(scores.gather(1, chosen), -1))
    return x, probs


def wanted_gradient(rank: int, tokens: int | None = None) -> Tensor:
    """What flows back into rank's output."""
    return seeded(30 + rank, torch.randn, TOKENS[rank] if tokens is None else tokens, HIDDEN).bfloat16()


def expert_matrices() -> Tensor:
    return seeded(40, torch.randn, EXPERTS, HIDDEN, HIDDEN) * HIDDEN**-0.5


def one_process(x: Tensor, probs: Tensor, experts: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Output and gradients of sum over chosen experts of probs[e] * (x @ experts[e]), in float32."""
    x, probs = x.float().requires_grad_(), probs.clone().requires_grad_()
    experts = experts.clone().requires_grad_()
    output = torch.einsum("te,th,eho->to", probs, x, experts)
    output.backward(gradient.float())
    assert x.grad is not None and probs.grad is not None and experts.grad is not None
    return {"output": output.detach(), "x": x.grad, "probs": probs.grad, "experts": experts.grad}


def run_fused_a2a(world: World) -> None:
    """fused_dispatch and fused_combine alone, synchronous and asynchronous."""
    from megatron.core.transformer.moe import fused_a2a

    local = EXPERTS // world.size
    first = world.rank * local
    x, probs = inputs(world.rank)
    gradient, experts = wanted_gradient(world.rank), expert_matrices()
    wanted = one_process(x, probs, experts, gradient)
    chosen = probs.topk(TOPK, dim=-1).indices
    for is_async in (False, True):
        rows = x.clone().requires_grad_()
        weights = probs.gather(1, chosen).clone().requires_grad_()
        received, idx, got_probs, counts, handle = fused_a2a.fused_dispatch(
            rows, chosen, weights, EXPERTS, world.group, async_finish=is_async, allocate_on_comm_stream=is_async
        )
        assert counts.tolist() == [(idx == e).sum() for e in range(local)]
        results = received.float() * 0
        for e in range(local):
            weight = (got_probs * (idx == e)).sum(1, keepdim=True)
            results = results + weight * (received.float() @ experts[first + e])
        combined, _ = fused_a2a.fused_combine(
            results.bfloat16(), world.group, handle, async_finish=is_async, allocate_on_comm_stream=is_async
        )
        combined.backward(gradient)
        assert rows.grad is not None and weights.grad is not None
        how = "async" if is_async else "sync"
        world.row(f"fused_a2a {how}: output", relative(combined, wanted["output"]), TOLERANCE)
        world.row(f"fused_a2a {how}: gradient of x", relative(rows.grad, wanted["x"]), TOLERANCE)
        wanted_probs = wanted["probs"].gather(1, chosen)
        world.row(f"fused_a2a {how}: gradient of probs", relative(weights.grad, wanted_probs), EXACT)


def config_of(backend: str, **more: Any) -> Any:
    """A TransformerConfig for a flex dispatcher on "deepep" or "hybridep"."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOPK,
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="flex",
        moe_flex_dispatcher_backend=backend,
        expert_model_parallel_size=4,
        use_cpu_initialization=True,
        add_bias_linear=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        **more,
    )


def run_dispatcher(world: World) -> None:
    """MoEFlexTokenDispatcher on Buffer."""
    case = [(*inputs(r), wanted_gradient(r)) for r in range(world.size)]
    through_dispatcher(world, "MoEFlexTokenDispatcher", config_of("deepep"), case)


def padded_inputs(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 rows, probabilities and the output's gradient where each rank gives each expert PADDED_CAPACITY tokens."""
    x = seeded(50 + rank, torch.randn, PADDED_TOKENS, HIDDEN).bfloat16()
    scores = seeded(60 + rank, torch.rand, PADDED_TOKENS, EXPERTS)
    chosen = scores.topk(PADDED_CAPACITY, dim=0).indices  # as a router with a capacity: each expert takes its best
    probs = torch.zeros_like(scores).scatter(0, chosen, scores.gather(0, chosen))
    return x, probs, seeded(70 + rank, torch.randn, PADDED_TOKENS, HIDDEN).bfloat16()


def run_hybrid_dispatcher(world: World) -> None:
    """MoEFlexTokenDispatcher on HybridEPBuffer: rows as they come, and as many as a capacity says without CPU sync."""
    from megatron.core.transformer.moe import fused_a2a

    path = "MoEFlexTokenDispatcher, hybridep"
    # Megatron sizes the buffer by each rank's own first call, and every rank of a buffer must name the same size.
    case = [(*inputs(r, EQUAL_TOKENS), wanted_gradient(r, EQUAL_TOKENS)) for r in range(world.size)]
    through_dispatcher(world, path, config_of("hybridep"), case)
    fused_a2a.reset_hybrid_ep_buffer()  # Megatron makes it for the first call's number of tokens
    factor = PADDED_CAPACITY * EXPERTS / (PADDED_TOKENS * TOPK)
    padded = config_of("hybridep", moe_expert_capacity_factor=factor, moe_pad_expert_input_to_capacity=True)
    through_dispatcher(world, f"{path}, padded to capacity", padded, [padded_inputs(r) for r in range(world.size)])
    whose = type(fused_a2a._hybrid_ep_buffer).__module__
    if whose != "uccl_ep.elastic.hybrid":
        raise RuntimeError(f"the flex dispatcher's hybridep backend ran on {whose}")


def through_dispatcher(world: World, path: str, config: Any, case: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """MoEFlexTokenDispatcher from preprocess to postprocess, in the order in which MoELayer calls it.

    Args:
        case: of each rank its rows, probabilities and the gradient of its output.
    """
    from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
    from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher

    local = EXPERTS // world.size
    mine = list(range(world.rank * local, (world.rank + 1) * local))
    flex = MoEFlexTokenDispatcher(local, mine, config=config, pg_collection=get_default_pg_collection())
    x, probs, gradient = case[world.rank]
    experts = expert_matrices()
    wanted = one_process(x, probs, experts, gradient)

    rows, weights = x.clone().requires_grad_(), probs.clone().requires_grad_()
    matrices = experts[mine].clone().requires_grad_()
    hidden, token_probs = flex.dispatch_preprocess(rows, probs > 0, weights)
    hidden, token_probs = flex.token_dispatch(hidden, token_probs)
    grouped, counts, permuted_probs = flex.dispatch_postprocess(hidden, token_probs)
    parts = torch.split(grouped.float(), counts.tolist())
    results = torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
    results = (results * permuted_probs.unsqueeze(-1)).bfloat16()
    output = flex.combine_postprocess(flex.token_combine(flex.combine_preprocess(results)))
    output.backward(gradient)
    assert rows.grad is not None and weights.grad is not None and matrices.grad is not None

    world.row(f"{path}: output", relative(output, wanted["output"]), TOLERANCE)
    world.row(f"{path}: gradient of x", relative(rows.grad, wanted["x"]), TOLERANCE)
    chosen = probs > 0
    world.row(f"{path}: gradient of probs", relative(weights.grad * chosen, wanted["probs"] * chosen), EXACT)
    # An expert's gradient has rows of every rank, so the yardstick is all ranks' tokens in this process.
    everybody = [one_process(theirs, p, experts, g)["experts"] for theirs, p, g in case]
    world.row(f"{path}: gradient of the experts", relative(matrices.grad, sum(everybody)[mine]), EXACT)
