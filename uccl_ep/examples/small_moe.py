"""A small mixture of experts that needs only torch, for serve_members.py. Its weights come from a seed. It reads one
text a token at a time and computes each row by itself: a token's bits do not depend on who else is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uccl_ep.examples.one_process import OneProcess

HIDDEN, INNER, LAYERS, EXPERTS, TOPK, VOCABULARY, SEED = 128, 64, 2, 16, 4, 256, 5
PROMPT, LENGTH, REQUESTS = 4, 24, 8  # tokens of a prompt, of a whole text; different prompts


class Experts(nn.Module):
    """All experts of a layer."""

    num_experts = EXPERTS

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / HIDDEN**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / INNER**0.5)

    def forward(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """[n, H], [n, 1], [n, 1] -> [n, H]."""
        results = [self.down[e] @ torch.relu(self.up[e] @ row) for row, e in zip(rows, ids[:, 0].tolist(), strict=True)]
        return 8 * torch.stack(results) * weights if results else torch.zeros_like(rows)


class Layer(nn.Module):
    """Attention over what the cache holds, then the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.router = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts: nn.Module = Experts()

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        """x [1, H]; its key and value are appended to the cache [P, 2, H]."""
        query, key, value = self.qkv(nn.functional.rms_norm(x, (HIDDEN,))).split(HIDDEN, dim=1)
        cache[0] = torch.cat([cache[0], torch.stack([key, value], dim=1)])
        x = x + (query @ cache[0][:, 0].T / HIDDEN**0.5).softmax(-1) @ cache[0][:, 1]
        rows = nn.functional.rms_norm(x, (HIDDEN,))
        weights, ids = self.router(rows).softmax(-1).topk(TOPK)
        mixed: Tensor = self.experts(rows, ids, weights)
        return x + mixed


class Model(nn.Module):
    """One text at a time, a token a call. Its weights depend on the seed alone, so a rank that joins has them too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.layers: Any = nn.ModuleList(Layer() for _ in range(LAYERS))

    @torch.no_grad()
    def forward(self, token: int, caches: list[list[Tensor]]) -> int:
        """The next token after `token`."""
        x = self.embedding(torch.tensor([token]))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return int(self.head(x).argmax())


@dataclass
class Text:
    """A request while it is served: its tokens, and the keys and values of those that the model has read."""

    request: int
    tokens: list[int] = field(default_factory=list)
    caches: list[list[Tensor]] = field(default_factory=lambda: [[torch.zeros(0, 2, HIDDEN)] for _ in range(LAYERS)])

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.request)
        self.tokens = torch.randint(0, VOCABULARY, (PROMPT,), generator=draw).tolist()
        self.read = 0

    def advance(self, model: Model) -> Callable[[], None]:
        """Reads a token. Returns what makes it count; until then the same may be done again."""
        for cache in self.caches:
            cache[0] = cache[0][: self.read]
        following = model(self.tokens[self.read], self.caches)

        def keep() -> None:
            self.read += 1
            if self.read == len(self.tokens):
                self.tokens.append(following)

        return keep


def in_one_process() -> Model:
    """The model with all of its experts, whose rows are rounded where they would travel."""
    model = Model()
    for layer in model.layers:
        layer.experts = OneProcess(layer.experts, 1, 1, max_decode_tokens=1)
    return model


def undisturbed() -> list[list[int]]:
    """The tokens of every request in one process, without uccl_ep."""
    model, texts = in_one_process(), []
    for request in range(REQUESTS):
        text = Text(request)
        while len(text.tokens) < LENGTH:
            text.advance(model)()
        texts.append(text.tokens)
    return texts
