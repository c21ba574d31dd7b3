"""uccl_ep.examples.small_moe: bits that depend on nobody else, and a step that can be done again."""

from __future__ import annotations

import torch

from uccl_ep.examples.small_moe import (
    EXPERTS,
    HIDDEN,
    LENGTH,
    PROMPT,
    REQUESTS,
    Experts,
    Text,
    in_one_process,
    undisturbed,
)


def test_examples_small_moe_computes_each_row_by_itself() -> None:
    torch.manual_seed(0)
    experts, rows = Experts(), torch.randn(40, HIDDEN)
    ids, weights = torch.randint(0, EXPERTS, (40, 1)), torch.rand(40, 1)
    together = experts(rows, ids, weights)
    alone = torch.cat([experts(rows[i : i + 1], ids[i : i + 1], weights[i : i + 1]) for i in range(40)])
    assert torch.equal(together, alone) and together.std() > 0.1
    assert experts(rows[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)


def test_examples_small_moe_texts_differ_and_a_step_may_be_done_again() -> None:
    due = undisturbed()
    assert {len(tokens) for tokens in due} == {LENGTH} and len({tuple(tokens) for tokens in due}) == REQUESTS
    assert sum(len(set(tokens[PROMPT:])) > 10 for tokens in due) > REQUESTS / 2  # not one token for ever
    model, text = in_one_process(), Text(3)
    for _ in range(10):
        for _ in range(3):
            keep = text.advance(model)
        keep()
    assert text.read == 10 and [len(cache[0]) for cache in text.caches] == [10, 10]
    assert len(text.tokens) == 11 and text.tokens[:PROMPT] == due[3][:PROMPT]
