"""Result files become Markdown tables; what is none is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.uccl_ep.tools.bench.sample import peers_result, ring_result
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.render import TABLES, load, machine_line, markdown, table

COSTS = {"benchmark": "proxy costs", "instructions": {"ring_pop": 23.2, "new": 5.0}, "budget": {"ring_pop": 24.0}}
IDLE = {
    "benchmark": "idle proxies",
    "threads": 2,
    "core_percent_per_thread": 0.7,
    "wake_us": {"p50": 30.0, "p99": 60.0},
    "bare_wake_us": {"p50": 25.0, "p99": 41.5},
}
TRANSPORT = {
    "benchmark": "transport",
    "networks": {"tcp": {"7168": {"writes_per_s": 5e4, "bytes_per_s": 3.5e8, "round_trip_us": 41.5}}},
}
BYTES = {
    "benchmark": "bytes",
    "rows": [
        {
            "ranks": 32,
            "mode": "low-latency",
            "routing": "random",
            "bytes_ratio": 0.75,
            "per_token": {
                f"{side}{phase}": {"bytes": size} for side, size in (("", 3e3), ("upstream_", 4e3)) for phase in PHASES
            },
        }
        for PHASES in [("dispatch", "combine")]
    ],
}
MEMORY = {
    "benchmark": "memory",
    "rows": [{"ranks": 8, "asked_experts": 256, "ours": 2e6, "upstream": 1e7, "ratio": 0.2, "limit": 0.25}],
}


FLAME = {
    "benchmark": "flame",
    "options": {"mode": "throughput", "ranks": 4},
    "profiles": [{"name": "now", "ms_per_round": 6.5, "stacks": {"combine;copy": 3.0, "combine": 2.0, "counts": 1.5}}],
}


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_bench_render_a_file_from_before_bare_threads_were_measured(tmp_path: Path) -> None:
    older = {name: value for name, value in IDLE.items() if name != "bare_wake_us"}
    text = markdown([load(write(tmp_path, "idle.json", older))])
    assert "| 2 proxy threads | 0.70 % | 30.0 | 60.0 | idle.json |" in text


def test_bench_render_every_kind_has_its_rows(tmp_path: Path) -> None:
    kinds = {"peers": peers_result(), "ring": ring_result(), "costs": COSTS, "idle": IDLE, "transport": TRANSPORT}
    kinds |= {"bytes": BYTES, "memory": MEMORY, "flame": FLAME}
    assert {kind["benchmark"] for kind in kinds.values()} == set(TABLES)
    text = markdown([load(write(tmp_path, f"{name}.json", kind)) for name, kind in kinds.items()])
    lines = text.splitlines()
    for said in (
        "throughput, 4 ranks, 2 a node, 4,096 x 7,168 | gloo, once per rank | 2.00 | 2.00 | 3.00 | 9.0 | 5.50 (5.00 to",
        "| 2 | 8 | 20.00 | 0.80 | ring.json |",
        "| ring_pop | 23.2 | 24.0 | costs.json |",
        "| 2 proxy threads | 0.70 % | 30.0 (25.0) | 60.0 (41.5) | idle.json |",
        "| tcp | 7,168 | 50.0 | 350.0 | 41.5 | transport.json |",
        "| 32 | low-latency, random | 6.0 | 8.0 | 0.750 | - | bytes.json |",
        "| 8 | 256 | 2.0 | 10.0 | 0.200 | 0.250 | memory.json |",
        "| throughput, 4 ranks, now | 6.5 | combine 5.0, counts 1.5 | flame.json |",
        "- met: here: speed: 5.5 (wanted >= 5)",
        "- peers.json: a processor, 2 cores",
    ):
        assert any(said in line for line in lines), said


def test_bench_render_says_how_combine_crossed_nodes(tmp_path: Path) -> None:
    older = peers_result("low-latency")  # from before there was a choice
    newer = {**older, "combine": {"form": "node", "reason": "the model's"}}
    text = markdown([load(write(tmp_path, "older.json", older)), load(write(tmp_path, "newer.json", newer))])
    assert "4,096 x 7,168, combine direct | uccl_ep" in text and "4,096 x 7,168, combine node | uccl_ep" in text
    one_node = peers_result("low-latency", 4, 4)
    assert "combine direct" not in markdown([load(write(tmp_path, "one.json", one_node))])


def test_bench_render_says_what_bare_sockets_would_take(tmp_path: Path) -> None:
    result = peers_result()
    times = {"dispatch": 1.5, "combine": 2.5, "both": 4.0}
    result["limit"]["sockets"] = {"floor_ms": times, "share_of_floor": 0.66}
    text = markdown([load(write(tmp_path, "tcp.json", result))])
    assert "| bare sockets and memcpy | 1.50 | 2.50 |  |  | 66% reached | tcp.json |" in text


def test_bench_render_orders_shapes(tmp_path: Path) -> None:
    worlds = [(8, 8), (2, 2), (4, 2), (4, 4)]
    results = [load(write(tmp_path, f"{r}-{p}.json", peers_result(ranks=r, ranks_per_node=p))) for r, p in worlds]
    rows = [line for line in markdown(results).splitlines() if "memcpy limit" in line]
    assert [row.split("|")[-2].strip() for row in rows] == ["2-2.json", "4-4.json", "4-2.json", "8-8.json"]


@pytest.mark.parametrize("content", ["{", "[]", '{"benchmark": "magic"}', "{}"])
def test_bench_render_refuses_what_is_no_result(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match="odd.json"):
        load(path)


def test_bench_render_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="gone.json"):
        load(tmp_path / "gone.json")


def test_bench_render_table_and_machine() -> None:
    assert table(("a", "b"), [(1, 2.5)]) == "| a | b |\n|---|---:|\n| 1 | 2.5 |"
    line = machine_line(peers_result()["machine"])
    assert line == "a processor, 2 cores, load 0.5, Linux 6.1, Python 3.11, torch 2.13, mpi Open MPI v5 (then)"
