"""Options of a measurement: what is refused, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.bench.options import BenchOptions
from uccl_ep.errors import InvalidArgument


def test_bench_defaults_are_allowed() -> None:
    BenchOptions().check()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("mode", "fast", "--mode"),
        ("ranks", 1, "--ranks"),
        ("ranks_per_node", 0, "--ranks-per-node"),
        ("experts", 66, "--experts"),
        ("topk", 33, "--topk"),
        ("hidden", 100, "--hidden"),
        ("tokens", 0, "--tokens"),
        ("rounds", 0, "--rounds"),
    ],
)
def test_bench_refuses_what_cannot_run(field: str, value: object, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        replace(BenchOptions(), **{field: value}).check()
