# The training loop, the same lines for a rank of the expert-parallel run and for the one-process run: only the
# `Exchange`, the micro-batches it owns and the sum over ranks differ.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from uccl_ep.tools.demo.corpus import Batch, Corpus, sample
from uccl_ep.tools.demo.model import Dense, Exchange, Experts, losses
from uccl_ep.tools.demo.options import DemoOptions

WARMUP_STEPS = 10
VALIDATION_KEY = 1 << 30
"""Takes the place of the step in a validation batch's key, beyond any step."""

SumOverRanks = Callable[[Tensor], None]
"""Adds a float64 tensor over all ranks, in place."""


class Trainer:
    """The micro-batches of `ranks` and the experts [first, first + count) of each layer."""

    def __init__(
        self,
        options: DemoOptions,
        corpus: Corpus,
        ranks: Sequence[int],
        exchange: Exchange,
        sum_over_ranks: SumOverRanks,
    ) -> None:
        self.options, self.corpus, self.ranks = options, corpus, list(ranks)
        self.exchange, self.sum_over_ranks = exchange, sum_over_ranks
        self.alive = list(range(options.ranks))
        first, count = self.ranks[0] * options.local_experts, len(self.ranks) * options.local_experts
        self.dense = Dense(options)
        self.replicas = [self.dense, *(self.dense.replica() for _ in self.ranks[1:])]
        self.experts = [Experts(options, layer, first, count) for layer in range(options.layers)]
        self.expert_parameters = [p for experts in self.experts for p in experts.parameters()]
        self.optimizer = torch.optim.AdamW(
            [*self.dense.parameters(), *self.expert_parameters], lr=options.learning_rate, betas=(0.9, 0.95)
        )

    def go_on_with(self, alive: Sequence[int]) -> None:
        """From now on only these ranks' micro-batches are there; what an unfinished step left is dropped."""
        self.alive = list(alive)
        self.ranks = [rank for rank in self.ranks if rank in self.alive]
        self.replicas = self.replicas[: len(self.ranks)]
        for module in (*self.replicas, *self.experts):
            module.zero_grad()

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        warm = min(1.0, (step + 1) / WARMUP_STEPS)
        return self.options.learning_rate * warm * (0.55 + 0.45 * math.cos(math.pi * step / self.options.steps))

    def batches(self, draw: Callable[[int], Batch]) -> list[tuple[Tensor, Tensor]]:
        drawn = [draw(rank) for rank in self.ranks]
        return [(torch.from_numpy(b.tokens), torch.from_numpy(b.targets)) for b in drawn]

    def step(self, step: int) -> float:
        """One update. Returns the cross entropy of the step's global batch, in nats per byte, equal on all ranks."""
        options = self.options
        batches = self.batches(
            lambda rank: sample(self.corpus.train, options.batch, options.sequence, (options.seed, step, rank))
        )
        found = losses(self.replicas, self.experts, self.exchange, batches)
        torch.autograd.backward([loss.objective for loss in found])
        mean_loss = self.average_gradients([loss.cross_entropy for loss in found])
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for replica in self.replicas[1:]:
            replica.zero_grad()
        return mean_loss

    def average_gradients(self, cross_entropies: Sequence[Tensor]) -> float:
        """Leaves the mean over all ranks' micro-batches in every .grad and returns the mean cross entropy.

        Dense gradients are summed over ranks in float64: four float32 numbers add up there without rounding, whatever
        order the network adds them in. An expert's gradient has already met the tokens of every rank through the
        exchange, so it is only divided.
        """
        flat = torch.zeros(sum(p.numel() for p in self.dense.parameters()) + 1, dtype=torch.float64)
        for replica, loss in zip(self.replicas, cross_entropies, strict=True):
            grads = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in replica.parameters()]
            flat += torch.cat([*grads, loss.detach().view(1)]).double()
        self.sum_over_ranks(flat)
        mean = flat / len(self.alive)
        sizes = [p.numel() for p in self.dense.parameters()]
        for p, grad in zip(self.dense.parameters(), torch.split(mean[:-1].float(), sizes), strict=True):
            p.grad = grad.view_as(p).clone()
        for p in self.expert_parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)  # no token came: Adam's averages must decay as they would elsewhere
            p.grad /= len(self.alive)
        return float(mean[-1])

    @torch.no_grad()
    def validate(self) -> float:
        """Mean cross entropy over text that training has not seen, in nats per byte."""
        options = self.options
        total = torch.zeros((), dtype=torch.float64)
        for i in range(options.validation_batches):
            key = VALIDATION_KEY + i
            batches = self.batches(
                lambda rank, key=key: sample(  # type: ignore[misc]
                    self.corpus.validation, options.batch, options.sequence, (options.seed, key, rank)
                )
            )
            for loss in losses(self.replicas, self.experts, self.exchange, batches):
                total += loss.cross_entropy.double()
        self.sum_over_ranks(total)
        return float(total) / (len(self.alive) * options.validation_batches)
