"""uccl_ep.examples.generate: its loop with a model that counts; tests/integrations runs it on real models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from uccl_ep.examples.expert_parallel import ExpertParallel
from uccl_ep.examples.generate import Comparison, generate

VOCABULARY = 11


class Counter:
    """Says the sum of all tokens so far, modulo VOCABULARY; remembers what it was asked in which mode."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.calls = layer, []  # type: ignore[var-annotated]

    def __call__(self, tokens: Tensor, past_key_values: Tensor | None = None, use_cache: bool = False) -> Any:
        assert use_cache
        self.calls.append((self.layer.mode, tuple(tokens.shape)))
        before = torch.zeros(len(tokens), 1, dtype=torch.long) if past_key_values is None else past_key_values
        sums = before + tokens.cumsum(1)
        logits = torch.nn.functional.one_hot(sums % VOCABULARY, VOCABULARY).float()
        return SimpleNamespace(logits=logits, past_key_values=sums[:, -1:])


def test_examples_generate_prefills_by_throughput_and_decodes_by_low_latency() -> None:
    layer = cast(ExpertParallel, SimpleNamespace(mode=None))
    model = Counter(layer)
    prompt = torch.tensor([[1, 2, 3], [4, 0, 0]])
    got = generate(model, [layer], prompt, 4)
    assert got.tolist() == [[6, 1, 2, 4], [4, 8, 5, 10]]  # 6, 12, 13, 15 and 4, 8, 16, 21, modulo 11
    assert model.calls == [("throughput", (2, 3))] + [("low_latency", (2, 1))] * 3
    assert generate(model, [layer], prompt, 1).tolist() == [[6], [4]]


def test_examples_generate_comparison_is_identical_only_if_every_token_is() -> None:
    tokens = torch.tensor([[1, 2]])
    assert Comparison(tokens, tokens.clone(), 0.1).identical
    assert not Comparison(tokens, torch.tensor([[1, 3]]), 0.0).identical
