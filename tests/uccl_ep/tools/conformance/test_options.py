"""Options of a conformance run: what is refused, and how ranks spread over nodes."""

from __future__ import annotations

from typing import Any

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.tools.conformance.options import ConformanceOptions


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"ranks": 1}, "--ranks must be .*; got 1."),
        ({"ranks": 65}, "--ranks must be .*; got 65."),
        ({"nodes": 0}, "--nodes must be .*; got 0."),
        ({"ranks": 4, "nodes": 5}, "--nodes must be 1 to 4, .*; got 5."),
        ({"device": "tpu"}, "--device must be .*; got 'tpu'."),
        ({"check_seconds": 0.0}, "check_seconds must be .*; got 0.0."),
    ],
)
def test_options_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ConformanceOptions(**wrong).check()


@pytest.mark.parametrize("ranks, nodes, each", [(4, 1, 4), (4, 2, 2), (5, 2, 3), (4, 4, 1)])
def test_options_spread_ranks(ranks: int, nodes: int, each: int) -> None:
    options = ConformanceOptions("deep_ep", ranks, nodes)
    options.check()
    assert options.ranks_per_node == each
