"""What a terminal shows of a result: every side, the limit, a line for each target."""

from __future__ import annotations

import io

from rich.console import Console

from tests.uccl_ep.tools.bench.sample import peers_result
from uccl_ep.tools.bench.show import floor_rows, show_peers, show_targets, title, verdict


def test_bench_show_prints_sides_limit_and_targets() -> None:
    text = io.StringIO()
    show_peers(peers_result(), Console(file=text, width=200))
    printed = text.getvalue()
    for said in (
        "gloo, once per rank",
        "5.50 x",
        "5.00 to 6.00",
        "memcpy limit",
        "25% of it",
        "7 interleaved",
        "a note",
    ):
        assert said in printed, said
    assert "met: here: speed: 5.5 (wanted >= 5)" in printed


def test_bench_verdict_of_both_directions() -> None:
    met, missed = peers_result()["targets"]
    assert verdict(met) == "met: here: speed: 5.5 (wanted >= 5)"
    assert verdict(missed) == "NOT MET: there: cost: 2 (wanted <= 1)"
    text = io.StringIO()
    show_targets([met, missed], Console(file=text, width=200))
    assert text.getvalue().splitlines() == [verdict(met), verdict(missed)]


def test_bench_show_says_what_bare_sockets_would_take() -> None:
    result = peers_result()
    times = {"dispatch": 1.5, "combine": 1.5, "both": 3.0}
    result["limit"]["sockets"] = {"floor_ms": times, "share_of_floor": 0.66}
    result["targets"][0]["at_best"] = {"of": "bare sockets and memcpy", "measured": 3.14159}
    text = io.StringIO()
    show_peers(result, Console(file=text, width=200))
    line = next(line for line in text.getvalue().splitlines() if "bare sockets and memcpy" in line)
    assert "3.00" in line and "66% of it reached" in line
    assert "speed: 5.5 (wanted >= 5; bare sockets and memcpy: 3.14)" in text.getvalue()
    assert floor_rows(peers_result()) == []


def test_bench_title_names_the_shape() -> None:
    assert title(peers_result()) == "throughput: 4,096 tokens x 7,168, top-8 of 256, 4 ranks, 2 to a node, bf16"
