"""One training step of a mixture of experts over ranks, and its gradients beside those of one process.

    torchrun --nproc-per-node 4 -m uccl_ep.examples.train_step --architecture qwen3-moe [--buffer hybrid]

Each rank has a batch of its own. Dense weights are on every rank, so their gradients are averaged; an expert is on one
rank, whose backward pass has received every rank's rows, so its gradient is only divided by the number of ranks.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from uccl_ep.examples.expert_parallel import make_buffer
from uccl_ep.examples.moe_model import ARCHITECTURES, EXPERTS, HIDDEN, VOCABULARY, make_model, spread, spread_by
from uccl_ep.examples.one_process import in_one_process
from uccl_ep.examples.other_buffers import make_layers

BATCH, LENGTH, SEED = 2, 24, 5
BUFFERS = ("buffer", "elastic", "ep", "hybrid")
EQUAL = 5e-3
"""Largest allowed difference of a gradient from one process that rounds at the same places, as a share of its largest
element: what float32 sums in another order, and now and then a bf16 that falls to the other side, leave."""


@dataclass(frozen=True)
class Gradients:
    """How far a rank's gradients are from those of one process.

    Attributes:
        dense, experts: from one process that rounds rows to bf16 where they would have travelled: the largest
            difference, as a share of the parameter's largest element; of the worst parameter.
        unrounded: from the same model without any rounding: the norm of the difference of all gradients, as a share.
        losses: this step's, over ranks and in one process.
        allowed: how large dense and experts may be.
    """

    dense: float
    experts: float
    unrounded: float
    losses: tuple[float, float]
    allowed: float = EQUAL

    @property
    def equal(self) -> bool:
        return max(self.dense, self.experts) <= self.allowed


def step(model: Any, tokens: Tensor) -> float:
    """Forward and backward pass; gradients are added to what is there."""
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    return float(loss.detach())


def batch_of(rank: int) -> Tensor:
    draw = torch.Generator().manual_seed(SEED + 1 + rank)
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=draw)


def average_dense(model: Any, layers: Sequence[nn.Module], group: Any) -> None:
    """What a trainer does between backward pass and optimizer: see the docstring of this file."""
    local = {id(p) for layer in layers for p in layer.parameters()}
    for parameter in model.parameters():
        if parameter.grad is None:  # no row came to this rank's experts
            parameter.grad = torch.zeros_like(parameter)
        if id(parameter) not in local:
            distributed.all_reduce(parameter.grad, group=group)
        parameter.grad /= group.size()


def all_in_one(whole: Any, ranks: int, ranks_per_node: int) -> tuple[dict[str, Tensor], float]:
    """Gradients of the mean loss of all ranks' batches, by parameter name; ranks_per_node=0: without any rounding."""
    model = copy.deepcopy(whole)
    if ranks_per_node:
        in_one_process(model, ranks, ranks_per_node)
    loss = sum(step(model, batch_of(rank)) for rank in range(ranks)) / ranks
    named = {name.replace("experts.experts.", "experts."): p for name, p in model.named_parameters()}
    return {name: (torch.zeros_like(p) if p.grad is None else p.grad / ranks) for name, p in named.items()}, loss


def difference(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def compare(group: Any, architecture: str, ranks_per_node: int, name: Any = "buffer") -> Gradients:
    """One step on all ranks of the group through the buffer of this name, and the same step in this process alone."""
    whole = make_model(architecture, SEED)
    model = copy.deepcopy(whole)
    layers: Sequence[nn.Module]
    if name == "buffer":
        buffer: Any = make_buffer(group, HIDDEN, EXPERTS, max_decode_tokens=BATCH)
        layers = spread(model, buffer, max_decode_tokens=BATCH)
    else:
        buffer, layer_of = make_layers(name, group, HIDDEN, EXPERTS, max_tokens=BATCH * LENGTH)
        layers = spread_by(model, group.rank(), group.size(), lambda experts, of: layer_of(experts, buffer, of))
    mean = torch.tensor(step(model, batch_of(group.rank())), dtype=torch.float64)
    distributed.all_reduce(mean, group=group)
    average_dense(model, layers, group)

    rounded, loss = all_in_one(whole, group.size(), ranks_per_node)
    unrounded, _ = all_in_one(whole, group.size(), 0)
    share = EXPERTS // group.size()
    mine = slice(group.rank() * share, (group.rank() + 1) * share)
    dense, experts, far, length = [0.0], [0.0], 0.0, 0.0
    for key, parameter in model.named_parameters():
        of_experts, key = ".experts.local." in key, key.replace(".experts.local.", ".experts.")
        wanted, other = (g[key][mine] if of_experts else g[key] for g in (rounded, unrounded))
        (experts if of_experts else dense).append(difference(parameter.grad, wanted))
        far += float((parameter.grad - other).double().square().sum())
        length += float(other.double().square().sum())
    distributed.barrier(group)  # nobody leaves while others may still read its rows
    if name != "hybrid":  # HybridEP's has no destroy()
        buffer.destroy()
    # By HybridEP's buffer each expert rounds its own row, where one process rounds a rank's sum of them.
    allowed = 2 * EQUAL if name == "hybrid" else EQUAL
    return Gradients(max(dense), max(experts), (far / length) ** 0.5, (float(mean) / group.size(), loss), allowed)


def main() -> int:
    """One rank of the command line; 0 when the gradients are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default=ARCHITECTURES[0])
    parser.add_argument("--ranks-per-node", type=int, default=0, help="as UCCL_EP_RANKS_PER_NODE (default: all)")
    parser.add_argument("--buffer", choices=BUFFERS, default=BUFFERS[0], help="DeepEP's V1, V2, V2.5 or HybridEP's")
    options = parser.parse_args()
    torch.set_num_threads(1)  # ranks share the cores
    distributed.init_process_group("gloo")
    group = distributed.group.WORLD
    found = compare(group, options.architecture, options.ranks_per_node or distributed.get_world_size(), options.buffer)
    print(
        f"rank {distributed.get_rank()}: loss {found.losses[0]:.6f}, in one process {found.losses[1]:.6f}; gradients "
        f"differ by {found.dense:.2g} (dense), {found.experts:.2g} (experts), {found.unrounded:.2g} without rounding",
        flush=True,
    )
    distributed.destroy_process_group()
    return 0 if found.equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
