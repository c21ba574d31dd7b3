# A DeepSeek-style language model over bytes: RMSNorm, rotary causal attention, a shared expert, and routed experts
# behind a top-k gate with a load-balancing term. How rows reach the experts is the caller's `Exchange`: through
# uccl_ep (expert_parallel.py) or inside one process (one_process.py).
from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from uccl_ep.tools.demo.options import DemoOptions

VOCABULARY = 256
BALANCE_FLOOR = 1e-9


class Routed(NamedTuple):
    """One micro-batch of T tokens on its way to the experts of one layer."""

    rows: Tensor
    """bf16 [T, hidden]"""
    topk_idx: Tensor
    """int64 [T, K], expert ids of the whole layer"""
    topk_weights: Tensor
    """float32 [T, K]"""


class Exchange(Protocol):
    """Runs a layer's routed experts for the micro-batches of this process; one bf16 [T, hidden] result each."""

    def __call__(self, batches: Sequence[Routed], experts: Experts) -> list[Tensor]: ...


def fresh(name: str, shape: tuple[int, ...], fan_in: int, options: DemoOptions) -> nn.Parameter:
    """Initial weights that depend on the name and the seed alone: expert 7 starts alike wherever it lives."""
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + zlib.crc32(name.encode()))
    return nn.Parameter(torch.randn(shape, generator=generator) * fan_in**-0.5)


class Experts(nn.Module):
    """Routed experts [first, first + count) of one layer, each a SwiGLU of its own parameters."""

    def __init__(self, options: DemoOptions, layer: int, first: int, count: int) -> None:
        super().__init__()
        self.first = first
        hidden, width = options.hidden, options.expert_width
        names = [f"layer{layer}.expert{first + i}" for i in range(count)]
        self.up = nn.ParameterList([fresh(f"{n}.up", (hidden, 2 * width), hidden, options) for n in names])
        self.down = nn.ParameterList([fresh(f"{n}.down", (width, hidden), width, options) for n in names])

    def forward(self, rows: Tensor, local_idx: Tensor, weights: Tensor, begin: int, end: int) -> Tensor:
        """Weighted sum over the experts [begin, end) of this module that each row names.

        rows bf16 [n, hidden]; local_idx [n, K] counts from `begin`, -1 where another rank's expert is meant; weights
        float32 [n, K]. Returns bf16 [n, hidden]; arithmetic is float32.
        """
        row, choice = (local_idx >= 0).nonzero(as_tuple=True)
        expert = local_idx[row, choice]
        order = torch.sort(expert, stable=True).indices
        row, choice, expert = row[order], choice[order], expert[order]
        counts = torch.bincount(expert, minlength=end - begin).tolist()
        inputs = torch.split(rows.float().index_select(0, row), counts)
        # Experts without rows take part as well: a result that did not depend on `rows` would make autograd skip this
        # rank's backward exchange, for which its peers wait.
        outputs = [swiglu(x, self.up[begin + i], self.down[begin + i]) for i, x in enumerate(inputs)]
        weighted = torch.cat(outputs) * weights[row, choice].unsqueeze(1)
        result = torch.zeros(rows.shape, dtype=torch.float32).index_add(0, row, weighted)
        return result.to(torch.bfloat16)


def swiglu(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = (x @ up).chunk(2, dim=-1)
    return (functional.silu(gate) * value) @ down


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale


def rotary(length: int, width: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, width / 2] of rotary position embedding."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Block(nn.Module):
    """What a layer holds on every rank: attention, gate and shared expert."""

    def __init__(self, options: DemoOptions, layer: int) -> None:
        super().__init__()
        self.options = options
        hidden = options.hidden

        def weights(name: str, rows: int, columns: int) -> nn.Parameter:
            return fresh(f"layer{layer}.{name}", (rows, columns), rows, options)

        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.experts_norm = nn.Parameter(torch.ones(hidden))
        self.query_key_value = weights("query_key_value", hidden, 3 * hidden)
        self.attention_out = weights("attention_out", hidden, hidden)
        self.gate = weights("gate", hidden, options.experts)
        self.shared_up = weights("shared_up", hidden, 2 * hidden)
        self.shared_down = weights("shared_down", hidden, hidden)

    def attend(self, x: Tensor) -> Tensor:
        """x + causal attention over it; float32 [sequences, length, hidden]."""
        sequences, length, hidden = x.shape
        heads = self.options.heads
        qkv = rms_norm(x, self.attention_norm) @ self.query_key_value
        query, key, value = qkv.view(sequences, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
        cos, sin = rotary(length, hidden // heads)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True
        )
        return x + mixed.transpose(1, 2).reshape(sequences, length, hidden) @ self.attention_out

    def route(self, x: Tensor) -> tuple[Routed, Tensor, Tensor]:
        """What goes to the routed experts, the shared expert's output [T, hidden], and the balancing term."""
        options = self.options
        normed = rms_norm(x, self.experts_norm).flatten(0, 1)
        logits = normed @ self.gate
        scores = logits.sigmoid() if options.gate == "sigmoid" else logits.softmax(-1)
        chosen, topk_idx = scores.topk(options.topk, dim=-1)
        weights = chosen / (chosen.sum(-1, keepdim=True) + BALANCE_FLOOR)
        # Switch-style term: share of selections an expert gets times its mean score; 1 when all are equal.
        share = torch.bincount(topk_idx.flatten(), minlength=options.experts) / topk_idx.numel()
        mean_score = (scores / (scores.sum(-1, keepdim=True) + BALANCE_FLOOR)).mean(0)
        balance = options.experts * (share * mean_score).sum()
        shared = swiglu(normed, self.shared_up, self.shared_down)
        return Routed(normed.to(torch.bfloat16), topk_idx.contiguous(), weights), shared, balance


class Dense(nn.Module):
    """Everything that each rank holds a full copy of (data-parallel)."""

    def __init__(self, options: DemoOptions) -> None:
        super().__init__()
        self.options = options
        hidden = options.hidden
        self.embedding = fresh("embedding", (VOCABULARY, hidden), 1, options)
        self.blocks = nn.ModuleList([Block(options, layer) for layer in range(options.layers)])
        self.final_norm = nn.Parameter(torch.ones(hidden))
        self.head = fresh("head", (hidden, VOCABULARY), hidden, options)

    def block(self, layer: int) -> Block:
        return cast(Block, self.blocks[layer])

    def replica(self) -> Dense:
        """A second model on the same storage: one update moves both, but gradients are counted apart."""
        other = Dense(self.options)
        for theirs, ours in zip(other.parameters(), self.parameters(), strict=True):
            theirs.data = ours.data
        return other


class Losses(NamedTuple):
    """One micro-batch's cross entropy (nats per byte) and what it is trained on (with the balancing term)."""

    cross_entropy: Tensor
    objective: Tensor


def losses(
    replicas: Sequence[Dense],
    experts: Sequence[Experts],
    exchange: Exchange,
    batches: Sequence[tuple[Tensor, Tensor]],
) -> list[Losses]:
    """Runs micro-batch i through replica i, all in step, so that they meet at the routed experts of each layer.

    An expert-parallel rank passes one micro-batch; one process passes all ranks' micro-batches, each through a replica
    that shares its storage with the others but has gradients of its own.
    """
    pairs = list(zip(replicas, batches, strict=True))
    streams = [functional.embedding(tokens, replica.embedding) for replica, (tokens, _) in pairs]
    balances = [torch.zeros(()) for _ in replicas]
    for layer, layer_experts in enumerate(experts):
        routed, shared = [], []
        for i, replica in enumerate(replicas):
            block = replica.block(layer)
            streams[i] = block.attend(streams[i])
            to_experts, from_shared, balance = block.route(streams[i])
            routed.append(to_experts)
            shared.append(from_shared)
            balances[i] = balances[i] + balance
        for i, result in enumerate(exchange(routed, layer_experts)):
            streams[i] = streams[i] + (shared[i] + result.float()).view_as(streams[i])
    found = []
    for i, (replica, (_, targets)) in enumerate(pairs):
        logits = rms_norm(streams[i], replica.final_norm) @ replica.head
        cross_entropy = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        found.append(Losses(cross_entropy, cross_entropy + replica.options.balance * balances[i]))
    return found
