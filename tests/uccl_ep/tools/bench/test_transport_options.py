"""What the comparison of networks refuses, and how much it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.transport_options import MOST_BYTES, NETWORKS, RIVALS, TransportOptions


def test_bench_transport_defaults_are_allowed_and_hold_all() -> None:
    options = TransportOptions()
    options.check()
    assert options.chosen() == list(NETWORKS) and set(RIVALS) <= set(options.networks)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"networks": ("tcp", "ucx")}, "ucx"),
        ({"networks": ()}, "--network"),
        ({"sizes": ()}, "--size"),
        ({"sizes": (8, 0)}, "--size"),
        ({"sizes": (MOST_BYTES + 1,)}, str(MOST_BYTES)),
        ({"rounds": 0}, "--rounds"),
        ({"megabytes": 0}, "--megabytes"),
    ],
)
def test_bench_transport_refuses_what_cannot_run(change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        replace(TransportOptions(), **change).check()  # type: ignore[arg-type]


def test_bench_transport_large_writes_are_fewer() -> None:
    options = TransportOptions()
    counts = [options.writes(size) for size in options.sizes]
    assert counts == sorted(counts, reverse=True) and counts[0] == options.most_writes and counts[-1] >= 16
    assert all(options.writes(size) * size <= options.megabytes * 1_000_000 for size in options.sizes)
    assert all(4 <= options.trips(size) <= options.round_trips for size in options.sizes)
