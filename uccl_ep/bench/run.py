"""Launches the ranks of a measurement, sums up, prints a table and writes JSON."""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from uccl_ep.bench.fingerprint import fingerprint
from uccl_ep.bench.options import BenchOptions
from uccl_ep.bench.worker import run_rank
from uccl_ep.errors import UcclEpError

_LIMIT_S = 600.0


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarise(per_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Per side: slowest rank's time of each round (median, p99), dispatch and combine apart; and the ratio of pairs."""
    sides = list(per_rank[0]["times"])
    slowest: dict[str, list[tuple[float, float, float]]] = {}
    for side in sides:
        rounds = zip(*(r["times"][side] for r in per_rank), strict=True)
        slowest[side] = [(max(d for d, _ in of), max(c for _, c in of), max(d + c for d, c in of)) for of in rounds]
    summary: dict[str, Any] = {}
    for side in sides:
        columns = list(zip(*slowest[side], strict=True))
        summary[side] = {
            name: {"median_ms": statistics.median(v) * 1e3, "p99_ms": percentile(list(v), 0.99) * 1e3}
            for name, v in zip(("dispatch", "combine", "both"), columns, strict=True)
        }
    ours, peer = (slowest[side] for side in sides)
    ratios = [p[2] / o[2] for o, p in zip(ours, peer, strict=True)]
    summary["speedup"] = {"median_of_pairs": statistics.median(ratios), "pairs": len(ratios)}
    return summary


def _collect(options: BenchOptions) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        context.Process(target=run_rank, args=(rank, options, port, results), daemon=True)
        for rank in range(options.ranks)
    ]
    for process in ranks:
        process.start()
    try:
        found = [results.get(timeout=_LIMIT_S) for _ in ranks]
    finally:
        for process in ranks:
            process.join(5.0)
            if process.is_alive():
                process.kill()
    errors = [f"rank {rank}: {error}" for rank, _, error in found if error]
    if errors:
        raise UcclEpError("; ".join(errors))
    return [value for _, value, _ in sorted(found, key=lambda item: int(item[0]))]


def run_bench(options: BenchOptions, out: Path | None, as_json: bool, console: Console) -> dict[str, Any]:
    """Measures, prints a table (or the JSON), writes `out` when given; returns what was written.

    Raises:
        InvalidArgument: the options cannot run.
        UcclEpError: a rank failed, or a timed round returned wrong rows.
    """
    options.check()
    per_rank = _collect(options)
    result = {
        "benchmark": options.mode,
        "options": asdict(options),
        "machine": fingerprint(),
        "paths": per_rank[0]["via"],
        "proxy_writes": sum(r["proxy"]["writes"] for r in per_rank),
        "proxy_bytes": sum(r["proxy"]["write_bytes"] for r in per_rank),
        **summarise(per_rank),
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        console.print_json(json.dumps(result))
    else:
        _print(options, result, console)
    return result


def _print(options: BenchOptions, result: dict[str, Any], console: Console) -> None:
    o = options
    table = Table(
        title=f"{o.mode}: {o.tokens} tokens x {o.hidden}, top-{o.topk} of {o.experts}, {o.ranks} ranks, "
        f"{o.ranks_per_node} to a node, bf16; slowest rank, ms"
    )
    for heading in ("", "dispatch", "combine", "both", "both, p99"):
        table.add_column(heading, justify="left" if not heading else "right")
    for side in ("uccl_ep", "gloo all_to_all"):
        row = result[side]
        cells = [f"{row[part]['median_ms']:.2f}" for part in ("dispatch", "combine", "both")]
        table.add_row(side, *cells, f"{row['both']['p99_ms']:.2f}")
    console.print(table)
    speed = result["speedup"]
    machine = result["machine"]
    console.print(
        f"{speed['median_of_pairs']:.2f} times gloo's speed (median of {speed['pairs']} pairs), on "
        f"{machine['cores']} cores, load {machine['load_1min']}; paths: {', '.join(result['paths'])}"
    )
