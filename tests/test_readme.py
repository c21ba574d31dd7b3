"""The README's example is code: it runs as printed, and identity experts give back what dispatch counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from uccl_ep import ThreadGroup, run_ranks

README = Path(__file__).parent.parent / "README.md"


def test_readme_example_runs_as_printed() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(blocks[0], names)  # noqa: S102 - our own README
    tokens, hidden, experts = 6, 64, 4

    def body(group: ThreadGroup) -> None:
        generator = torch.Generator().manual_seed(group.rank())
        x = torch.randn(tokens, hidden, generator=generator).bfloat16()
        idx = torch.rand(tokens, experts, generator=generator).topk(2).indices
        out = names["layer"](group, x, idx, torch.rand(tokens, 2), experts, lambda rows, idx, weights: rows)
        visited = torch.tensor([len({e // 2 for e in row}) for row in idx.tolist()]).unsqueeze(1)
        assert torch.equal(out, (x.float() * visited).bfloat16())
        group.barrier()  # the layer's Buffer goes with its function; nobody leaves before all are done

    run_ranks(2, body)
