"""Times that upstream and others published, and the job that each belongs to.

Rates are turned into times by upstream's own definition (`jobs.py`). A figure that a constant was fitted on is one of
upstream's table with at most two nodes (`is_fitted`): whatever has three nodes or more is a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

TABLE, PAPER, BLOG, THIRD, HARNESS = "table", "paper", "blog", "third party", "harness"
BOTH = "both"  # dispatch and combine of one measurement


@dataclass(frozen=True)
class Row:
    """One published figure of upstream.

    Attributes:
        phase: "dispatch", "combine" or BOTH.
        us: as published; 0: only `gb_per_s` was.
        of: TABLE (the README), PAPER, BLOG, THIRD: measured by others (AWS) with upstream's own program, or HARNESS: by
            AWS's, which counts a round of the slowest rank from end to end (layout, dispatch and combine; not the cast
            to fp8), another boundary than the kernel times of the table.
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
    return row.of in (TABLE, HARNESS) and row.ranks <= 2 * ranks_per_node


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


HARNESS_US: dict[tuple[str, int, str], dict[str, float]] = {
    ("low-latency", 16, "fp8"): {"DeepEP V1": 1020, "DeepEP V2": 467, "UCCL": 519},
    ("low-latency", 16, "bf16"): {"DeepEP V1": 1036, "DeepEP V2": 496, "UCCL": 594},
    ("low-latency", 32, "fp8"): {"DeepEP V1": 1557, "DeepEP V2": 836, "UCCL": 776},
    ("low-latency", 32, "bf16"): {"DeepEP V1": 1560, "DeepEP V2": 942, "UCCL": 872},
    ("throughput", 16, "fp8"): {"DeepEP V1": 2973, "DeepEP V2": 2648, "UCCL": 5275},
    ("throughput", 16, "bf16"): {"DeepEP V1": 3542, "DeepEP V2": 3368, "UCCL": 5507},
    ("throughput", 32, "fp8"): {"DeepEP V1": 12749, "DeepEP V2": 6623, "UCCL": 8089},
    ("throughput", 32, "bf16"): {"DeepEP V1": 13177, "DeepEP V2": 8710, "UCCL": 9890},
}
"""AWS's harness of 2026-09-01, three libraries on the same nodes (p6-b200, EFA): microseconds of the slowest rank, over
four starts. V2 is DeepEP's with GDA over EFA; in bf16 prefill it took 64 multiprocessors, the others 20. Source:
awslabs, n4.json at bbc61e79."""

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
    Row("p6-b200", "throughput", 16, "dispatch", "fp8", 1161, of=THIRD),
    Row("p6-b200", "throughput", 16, "combine", "bf16", 2097, of=THIRD),
    Row("p6-b200", "throughput", 32, "dispatch", "fp8", 2230, of=THIRD),
    Row("p6-b200", "throughput", 32, "combine", "bf16", 3951, of=THIRD),
    *(
        Row("p6-b200-aws", mode, ranks, BOTH, row_format, us["UCCL"], of=HARNESS)
        for (mode, ranks, row_format), us in HARNESS_US.items()
    ),
]
