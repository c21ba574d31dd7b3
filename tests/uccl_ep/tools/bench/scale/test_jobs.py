"""Published rates become times as upstream counts them; jobs have upstream's shapes."""

from __future__ import annotations

import pytest

from uccl_ep.tools.bench.scale.jobs import counted_rows, demand_of, plans_of, published_us
from uccl_ep.tools.bench.scale.platforms import PLATFORMS
from uccl_ep.tools.bench.scale.published import BOTH, Row


def test_jobs_rates_and_times_of_one_row_agree() -> None:
    """Where both were published: 280 GB/s and 571 us, 33 GB/s and 228 us (rounded as they stand there)."""
    b200 = PLATFORMS["p6-b200"]
    rate = Row("p6-b200", "throughput", 8, "dispatch", "fp8", gb_per_s=280)
    assert published_us(rate, b200) == pytest.approx(571, rel=0.01)
    rate = Row("p6-b200", "low-latency", 16, "dispatch", "fp8", gb_per_s=33)
    assert published_us(rate, b200) == pytest.approx(228, rel=0.02)
    assert published_us(Row("p6-b200", "low-latency", 16, "dispatch", "fp8", us=5, gb_per_s=0), b200) == 5


def test_jobs_count_nodes_in_throughput_mode() -> None:
    assert counted_rows("throughput", 16, 8) == pytest.approx(4096 * 2, rel=0.01)
    assert counted_rows("low-latency", 16, 8) == 128 * 8


def test_jobs_keep_tokens_to_four_nodes() -> None:
    demand = demand_of("throughput", 20, 4)  # five nodes of four
    nodes = demand.cluster.node_of[demand.routing[3] // demand.local_experts]
    assert max(len(set(token)) for token in nodes.tolist()) == 4
    assert demand.tokens == 20 * 4096 and demand.num_experts == 260


def test_jobs_both_phases_are_two_plans() -> None:
    row = Row("p6-b200", "low-latency", 16, BOTH, "fp8", 1.0)
    assert len(plans_of(row, PLATFORMS["p6-b200"])) == 2
    batched = Row("p6-b200", "low-latency", 16, "dispatch", "fp8", 1.0, batched=True)
    plain, one = plans_of(row, PLATFORMS["p6-b200"])[0], plans_of(batched, PLATFORMS["p6-b200"])[0]
    assert one.traffic.of("rows").writes.sum() < plain.traffic.of("rows").writes.sum()
