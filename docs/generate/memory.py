"""The table of low-latency memory in models' shapes, from the bill itself and upstream's formula."""

from __future__ import annotations

from docs.generate.markdown import table
from uccl_ep import memory_bill
from uccl_ep.sizes import upstream_low_latency_size_hint

_MODELS = (("DeepSeek-V3, R1", 7168, 256), ("Kimi-K2", 7168, 384), ("Qwen3-235B-A22B", 4096, 128))
_TOKENS = (128, 512)
_RANKS = (8, 16, 32, 64)


def memory_table() -> str:
    """One row for each model and M, one column for each number of ranks, in GiB."""

    def gib(size: float) -> str:
        return f"{size / 2**30:.2f}"

    rows = [
        [name, str(tokens)]
        + [gib(memory_bill(tokens, hidden, ranks, experts, ranks_per_node=8).total_bytes) for ranks in _RANKS]
        + [gib(upstream_low_latency_size_hint(tokens, hidden, _RANKS[0], experts))]
        for name, hidden, experts in _MODELS
        for tokens in _TOKENS
    ]
    return table(["model", "M", *(f"{ranks} ranks" for ranks in _RANKS), "upstream, any"], rows)
