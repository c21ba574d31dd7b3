"""Megatron-core from its wheel on four ranks: fused_a2a, the flex dispatcher on both backends, a GPT-MoE trained."""

from __future__ import annotations

from tests.integrations.megatron.dispatcher import run_dispatcher, run_fused_a2a, run_hybrid_dispatcher
from tests.integrations.megatron.gpt import run_training
from tests.integrations.megatron.surroundings import prepare
from tests.integrations.world import world


def main() -> None:
    with world() as ranks:
        prepare(ranks)
        run_fused_a2a(ranks)
        run_dispatcher(ranks)
        run_hybrid_dispatcher(ranks)
        run_training(ranks)


if __name__ == "__main__":
    main()
