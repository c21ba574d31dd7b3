"""Options of a measurement: what is refused, and how; the published shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.options import BenchOptions


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
        ("budget_s", 0.0, "--seconds"),
        ("outputs", "here", "--outputs"),
        ("combine", "rings", "--combine"),
        ("peers", ("nccl",), "nccl"),
        ("peers", (), "--peer"),
    ],
)
def test_bench_refuses_what_cannot_run(field: str, value: object, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        replace(BenchOptions(), **{field: value}).check()  # type: ignore[arg-type]


def test_bench_shapes_are_deepseek_v3s() -> None:
    throughput = BenchOptions(mode="throughput").shaped("v3")
    assert (throughput.tokens, throughput.hidden, throughput.topk, throughput.experts) == (4096, 7168, 8, 256)
    assert BenchOptions(mode="low-latency").shaped("v3").tokens == 128
    assert BenchOptions().shaped("small") == BenchOptions()
    with pytest.raises(InvalidArgument, match="--shape"):
        BenchOptions().shaped("v4")


def test_bench_nodes_and_rows() -> None:
    options = BenchOptions(ranks=5, ranks_per_node=2, hidden=256)
    assert options.num_nodes == 3 and options.row_bytes == 512
