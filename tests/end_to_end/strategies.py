"""What hypothesis draws: worlds and steps. Tensors come from seeds, so an example is small and repeats anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.end_to_end.steps import (
    COMBINES,
    LOW_LATENCY_FORMATS,
    THROUGHPUT_FORMATS,
    LowLatencyStep,
    Step,
    ThroughputStep,
)
from tests.end_to_end.world import World
from uccl_ep.reference import TRAFFIC

SEEDS = st.integers(0, 2**40)


def examples(count: int) -> settings:
    """Hypothesis settings. No shrinking: examples are small, and one that fails may take a whole timeout."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, phases=phases, suppress_health_check=checks, print_blob=True)


@st.composite
def worlds(
    draw: st.DrawFn,
    transports: Sequence[str] = ("loopback", "shared_memory", "tcp"),
    proxies: Sequence[str] = ("thread",),
    max_ranks: int = 8,
) -> World:
    """1 to `max_ranks` ranks on 1 to 4 nodes, also uneven ones; everything that changes timing varies."""
    ranks = draw(st.integers(1, max_ranks))
    sizes = [size for size in (0, 1, 2, 3, 4, 5) if size == 0 or -(-ranks // size) <= 4]
    proxy = draw(st.sampled_from(list(proxies)))
    transport = draw(st.sampled_from([t for t in transports if proxy == "thread" or t != "loopback"]))
    return World(
        ranks=ranks,
        ranks_per_node=draw(st.sampled_from(sizes)),
        transport=transport,
        proxy=proxy,
        proxy_threads=draw(st.sampled_from([1, 1, 2])),
        rings=draw(st.integers(1, 3)),
        ring_capacity=draw(st.sampled_from([4, 32, 1024])),
        max_in_flight=draw(st.sampled_from([1, 3, 64])),
        host_blocks=draw(st.sampled_from([0, 1, 2, 3])),
        host_threads=draw(st.sampled_from([1, 1, 2])),
        shuffle_seed=draw(SEEDS) if transport == "loopback" else 0,
    )


def _topk(draw: st.DrawFn) -> int:
    return draw(st.one_of(st.integers(1, 8), st.integers(9, 32)))


@st.composite
def low_latency_steps(draw: st.DrawFn) -> LowLatencyStep:
    """Any low-latency call."""
    combine = draw(st.sampled_from(["plain", *COMBINES]))
    row_format = draw(st.sampled_from(sorted(LOW_LATENCY_FORMATS)))
    unit = max(COMBINES[combine], 8 if row_format == "bf16" else 128)
    return LowLatencyStep(
        seed=draw(SEEDS),
        max_tokens=draw(st.sampled_from([1, 5, 12, 40])),
        hidden=unit * draw(st.integers(1, 1200 // unit)),
        local_experts=draw(st.sampled_from([1, 2, 3, 5, 40])),
        topk=_topk(draw),
        traffic=draw(st.sampled_from(["mixed", *TRAFFIC])),
        format=row_format,
        send=draw(st.sampled_from(["sync", "async", "hook"])),
        combine=combine,
    )


@st.composite
def throughput_steps(draw: st.DrawFn) -> ThroughputStep:
    """Any throughput call."""
    row_format = draw(st.sampled_from(THROUGHPUT_FORMATS))
    with_topk = draw(st.sampled_from([True, True, False]))
    unit = 128 if row_format.startswith("fp8") else 8
    return ThroughputStep(
        seed=draw(SEEDS),
        max_tokens=draw(st.sampled_from([1, 7, 20, 60])),
        hidden=unit * draw(st.integers(1, 1200 // unit)),
        local_experts=draw(st.sampled_from([1, 2, 3, 7])),
        topk=_topk(draw),
        traffic=draw(st.sampled_from(["mixed", *TRAFFIC])),
        format=row_format,
        num_scales=draw(st.integers(1, 9)),
        column_major=draw(st.booleans()),
        with_topk=with_topk,
        worst=with_topk and draw(st.booleans()),
        alignment=draw(st.sampled_from([1, 4, 13, 128])),
        num_bias=draw(st.integers(0, 2)),
        combine_weights=draw(st.booleans()),
        num_cached=draw(st.integers(0, 2)),
        use_async=draw(st.booleans()),
        num_sms=draw(st.sampled_from([2, 4, 20])),
    )


def steps(kind: st.SearchStrategy[Step], most: int = 4) -> st.SearchStrategy[list[Step]]:
    """A few steps on one Buffer."""
    return st.lists(kind, min_size=1, max_size=most)


SLACK = st.sampled_from([1, 2, 8, 30])  # how many times the least memory throughput rings get
