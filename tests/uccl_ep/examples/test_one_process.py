"""uccl_ep.examples.one_process: its roundings are those of the reference, in both modes, and backwards too."""

from __future__ import annotations

import torch
from torch import Tensor

from uccl_ep.examples.one_process import OneProcess, in_one_process, travel

EXPERTS, HIDDEN, TOPK, TOKENS = 8, 32, 3, 11


class Scales(torch.nn.Module):
    """Expert e multiplies by its own factor: every sum can be written down."""

    num_experts = EXPERTS

    def forward(self, rows: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        factors = torch.cat([torch.linspace(0.3, 1.7, EXPERTS), torch.zeros(1)])
        return rows * (factors[idx] * weights).sum(1, keepdim=True)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(TOKENS, HIDDEN, generator=draw)
    idx = torch.rand(TOKENS, EXPERTS, generator=draw).topk(TOPK).indices
    return x, idx, torch.rand(TOKENS, TOPK, generator=draw)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def test_examples_one_process_rounds_as_throughput_does() -> None:
    x, idx, weights = inputs()
    got = OneProcess(Scales(), num_ranks=4, ranks_per_node=2)(x, idx, weights)
    nodes = []
    for node in range(2):
        first, second = (torch.where(idx // 2 == rank, idx, EXPERTS) for rank in (2 * node, 2 * node + 1))
        nodes.append(bf16(bf16(Scales()(bf16(x), first, weights)) + bf16(Scales()(bf16(x), second, weights))))
    assert torch.equal(got, bf16(nodes[0] + nodes[1]))
    exact = Scales()(x, idx, weights)
    assert not torch.equal(got, exact) and bool(((got - exact).abs() <= 0.02 * exact.abs().max()).all())


def test_examples_one_process_rounds_as_low_latency_does_for_few_rows() -> None:
    x, idx, weights = inputs()
    layer = OneProcess(Scales(), 4, 2, max_decode_tokens=TOKENS)
    wanted = torch.zeros_like(x)
    for k in range(TOPK):
        wanted = wanted + weights[:, k : k + 1] * bf16(Scales()(bf16(x), idx[:, k : k + 1], torch.ones(TOKENS, 1)))
    assert torch.equal(layer(x, idx, weights), bf16(wanted))
    layer.max_decode_tokens = TOKENS - 1
    assert not torch.equal(layer(x, idx, weights), bf16(wanted))


def test_examples_one_process_rounds_gradients() -> None:
    x = torch.tensor([1.0 + 2**-12], requires_grad=True)
    y = travel(x)
    assert y.item() == 1.0 and y.dtype == torch.float32
    y.backward(torch.tensor([3.0 + 2**-12]))
    assert x.grad is not None and x.grad.item() == 3.0


def test_examples_one_process_takes_the_place_of_every_layers_experts() -> None:
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    dense, sparse = torch.nn.Module(), torch.nn.Module()
    dense.mlp, sparse.mlp = torch.nn.Linear(1, 1), torch.nn.Module()
    sparse.mlp.experts = Scales()
    model.model.layers = torch.nn.ModuleList([dense, sparse])
    in_one_process(model, 4, 2, 7)
    assert isinstance(sparse.mlp.experts, OneProcess) and sparse.mlp.experts.max_decode_tokens == 7
    assert isinstance(dense.mlp, torch.nn.Linear)
