"""transformers' MoE models over four ranks by uccl_ep/examples: generation and a training step."""

from __future__ import annotations

from tests.integrations.launch import RANKS_PER_NODE
from tests.integrations.world import World, world
from uccl_ep.examples import generate, train_step
from uccl_ep.examples.moe_model import ARCHITECTURES

NEW_TOKENS = 64
# Beside the unchanged model in float32: 8 bits, or 4, of a row on its way, and the choices of experts that they change.
BF16, FP8 = 0.05, 0.2


def run(ranks: World, architecture: str) -> None:
    path = f"{architecture}:"
    found = generate.compare(ranks.group, architecture, NEW_TOKENS, RANKS_PER_NODE)
    wrong = int((found.tokens != found.wanted).sum())
    ranks.row(f"{path} {NEW_TOKENS} greedy tokens; how many not as in one process", wrong, 0)
    ranks.row(f"{path} logits, beside the model without rounding", found.logits_error, BF16)
    fp8 = generate.compare(ranks.group, architecture, 4, RANKS_PER_NODE, fp8=True)
    ranks.row(f"{path} logits with FP8 dispatch, beside the model without rounding", fp8.logits_error, FP8)
    for name in train_step.BUFFERS:
        step = f"{path} training step ({name})"
        gradients = train_step.compare(ranks.group, architecture, RANKS_PER_NODE, name)
        ranks.row(f"{step}, dense gradients", gradients.dense, gradients.allowed)
        ranks.row(f"{step}, experts' gradients", gradients.experts, gradients.allowed)
        ranks.row(f"{step}, beside the model without rounding", gradients.unrounded, BF16)


def main() -> None:
    with world() as ranks:
        for architecture in ARCHITECTURES:
            run(ranks, architecture)


if __name__ == "__main__":
    main()
