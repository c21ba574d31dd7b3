"""Times that upstream and others published, and the job that each belongs to.

Rates are turned into times by upstream's own definition (`jobs.py`). A figure that a constant was fitted on is one of
upstream's table with at most two nodes (`is_fitted`): whatever has three nodes or more is a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

TABLE, PAPER, BLOG, THIRD = "table", "paper", "blog", "third party"
BOTH = "both"  # dispatch and combine of one measurement


@dataclass(frozen=True)
class Row:
    """One published figure of upstream.

    Attributes:
        phase: "dispatch", "combine" or BOTH.
        us: as published; 0: only `gb_per_s` was.
        of: TABLE (the README), PAPER, BLOG, or THIRD: measured by others (AWS) as the slowest rank's time from end to
            end, which is another boundary than the kernel times of the table.
        batched: built with per-expert batching.
    """

    platform: str
    mode: str
    ranks: int
    phase: str
    row_format: str
    us: float = 0.0
    gb_per_s: float = 0.0
    of: str = TABLE
    batched: bool = False


def is_fitted(row: Row, ranks_per_node: int) -> bool:
    """Whether constants were fitted on this row."""
    return row.of == TABLE and row.ranks <= 2 * ranks_per_node


def _pairs(platform: str, mode: str, ranks: int, dispatch: float, combine: float) -> list[Row]:
    return [
        Row(platform, mode, ranks, "dispatch", "fp8", dispatch),
        Row(platform, mode, ranks, "combine", "bf16", combine),
    ]


def _rates(platform: str, ranks: int, fp8: float, bf16: float, combine: float) -> list[Row]:
    return [
        Row(platform, "throughput", ranks, "dispatch", "fp8", gb_per_s=fp8),
        Row(platform, "throughput", ranks, "dispatch", "bf16", gb_per_s=bf16),
        Row(platform, "throughput", ranks, "combine", "bf16", gb_per_s=combine),
    ]


ROWS: list[Row] = [
    *_pairs("p5en", "throughput", 8, 500, 973),
    *_pairs("p5en", "throughput", 16, 1196, 6379),
    *_pairs("p5en", "throughput", 24, 1633, 6365),
    *_pairs("p5en", "throughput", 32, 2022, 4899),
    *_pairs("p6-b200", "throughput", 8, 571, 727),
    *_pairs("p6-b200", "throughput", 16, 1141, 1965),
    *_pairs("p6-b200", "throughput", 24, 1637, 2887),
    *_pairs("p6-b200", "throughput", 32, 2072, 3724),
    *_rates("mi300x-cx7", 8, 260, 295, 304),
    *_rates("mi300x-cx7", 16, 74, 82, 78),
    *_rates("mi300x-cx7", 32, 60, 61, 60),
    *_rates("mi300x-cx7", 64, 52, 53, 51),
    *_rates("mi355x-pollara", 8, 299, 336, 333),
    *_rates("mi355x-pollara", 16, 82, 82, 82),
    *_rates("mi355x-pollara", 32, 59, 58, 59),
    *_rates("mi355x-pollara", 64, 50, 49, 49),
    *_rates("mi300x-thor2", 16, 71, 81, 45),
    *_rates("mi300x-thor2", 32, 49, 55, 50),
    *_rates("gh200-cxi", 4, 348, 395, 364),
    *_rates("gh200-cxi", 8, 40, 43, 42),
    *_rates("gh200-cxi", 16, 25.5, 25.6, 26),
    *_rates("gh200-cxi", 32, 23.6, 22.4, 22.3),
    *_rates("gh200-cxi", 64, 20.8, 20.2, 19.4),
    *_pairs("p5en", "low-latency", 16, 226, 293),
    *_pairs("p5en", "low-latency", 24, 386, 580),
    *_pairs("p5en", "low-latency", 32, 465, 694),
    *_pairs("p6-b200", "low-latency", 16, 228, 318),
    *_pairs("p6-b200", "low-latency", 24, 448, 566),
    *_pairs("p6-b200", "low-latency", 32, 406, 617),
    *_pairs("mi300x-cx7", "low-latency", 8, 65, 92),
    *_pairs("mi300x-cx7", "low-latency", 16, 136, 207),
    *_pairs("mi300x-cx7", "low-latency", 32, 224, 341),
    # Elsewhere. The blog's EP32 rows contradict the table's (217 here, 465 there): shown, never fitted.
    Row("p5en", "low-latency", 16, "dispatch", "fp8", 216.6, of=PAPER),
    Row("p5en", "low-latency", 16, "dispatch", "fp8", 177.7, of=PAPER, batched=True),
    Row("p5en", "low-latency", 32, "dispatch", "fp8", 217, of=BLOG),
    Row("p5en", "low-latency", 32, "dispatch", "fp8", 178, of=BLOG, batched=True),
    Row("p5en", "low-latency", 32, "dispatch", "bf16", 299, of=BLOG),
    Row("p5en", "low-latency", 32, "dispatch", "bf16", 268, of=BLOG, batched=True),
    Row("p6-b200", "low-latency", 16, BOTH, "fp8", 521, of=THIRD),
    Row("p6-b200", "low-latency", 16, BOTH, "bf16", 592, of=THIRD),
    Row("p6-b200", "low-latency", 32, BOTH, "fp8", 766, of=THIRD),
    Row("p6-b200", "low-latency", 32, BOTH, "bf16", 869, of=THIRD),
    Row("p6-b200", "throughput", 16, "dispatch", "fp8", 1161, of=THIRD),
    Row("p6-b200", "throughput", 16, "combine", "bf16", 2097, of=THIRD),
    Row("p6-b200", "throughput", 32, "dispatch", "fp8", 2230, of=THIRD),
    Row("p6-b200", "throughput", 32, "combine", "bf16", 3951, of=THIRD),
]
