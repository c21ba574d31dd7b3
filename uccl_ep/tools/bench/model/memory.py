"""What low-latency mode takes on a rank, ours beside upstream's, and what a running rank has really been given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from uccl_ep.errors import refuse
from uccl_ep.sizes import round_up, upstream_low_latency_size_hint

_NEAR_RANKS, _NEAR_SHARE, _FAR_SHARE = 128, 0.25, 0.5
"""The targets: at most a quarter of upstream's up to 128 ranks, at most a half beyond."""


@dataclass(frozen=True)
class MemoryOptions:
    """Shapes that are billed. Defaults are the target's."""

    tokens: int = 128
    hidden: int = 7168
    ranks: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    experts: tuple[int, ...] = (256, 288)
    ranks_per_node: int = 8

    def check(self) -> None:
        """Refuses what cannot be billed.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        positive = [("--tokens", self.tokens, 1 << 16), ("--ranks-per-node", self.ranks_per_node, 64)]
        positive += [("--ranks", count, 4096) for count in self.ranks]
        positive += [("--experts", count, 4096) for count in self.experts]
        for name, value, most in positive:
            if not 1 <= value <= most:
                refuse(name, value, f"1 to {most}")
        if self.hidden < 128 or self.hidden % 128:
            refuse("--hidden", self.hidden, "a multiple of 128")


def memory_table(options: MemoryOptions) -> dict[str, Any]:
    """{"benchmark", "options", "rows": one per expert and rank count, "targets": one per row}; bytes of one rank.

    Upstream's formula has no rank count in it. Ours has no expert count. Where ranks cannot share the experts, both are
    asked for the next count that they can share, and the row also says what upstream takes without that.

    Raises:
        InvalidArgument: the options cannot be billed.
    """
    options.check()
    rows = [_row(options, ranks, experts) for experts in options.experts for ranks in options.ranks]
    targets = [
        {
            "where": f"low latency, {row['ranks']} ranks, {row['asked_experts']} experts",
            "name": "memory of a rank over upstream's",
            "wanted": row["limit"],
            "at_least": False,
            "measured": row["ratio"],
            "met": row["ratio"] <= row["limit"],
        }
        for row in rows
    ]
    return {"benchmark": "memory", "options": asdict(options), "rows": rows, "targets": targets}


def _row(options: MemoryOptions, ranks: int, asked: int) -> dict[str, Any]:
    from uccl_ep.layout.plan import memory_bill  # loads the native module

    experts = round_up(asked, ranks)
    sizes = (options.tokens, options.hidden)
    bill = memory_bill(*sizes, ranks, experts, ranks_per_node=options.ranks_per_node)
    upstream = upstream_low_latency_size_hint(*sizes, 1, asked)  # the least that it could be: experts not padded
    return {
        "ranks": ranks,
        "asked_experts": asked,
        "experts": experts,
        "ours": bill.total_bytes,
        "items": {item.name: item.num_bytes for item in bill.items},
        "ours_one_rank_a_node": memory_bill(*sizes, ranks, experts, ranks_per_node=1).total_bytes,
        "ours_enable_shrink": memory_bill(
            *sizes, ranks, experts, ranks_per_node=options.ranks_per_node, enable_shrink=True
        ).total_bytes,
        "upstream": upstream,
        "upstream_padded": upstream_low_latency_size_hint(*sizes, ranks, experts),
        "ratio": bill.total_bytes / upstream,
        "limit": _NEAR_SHARE if ranks <= _NEAR_RANKS else _FAR_SHARE,
    }
