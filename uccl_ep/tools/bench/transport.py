"""`uccl-ep bench transport`: the networks of this host, side by side in the same minute, and which is the default.

Two processes write to each other: as fast as a network takes it, then one write at a time there and back. Every stream
is checked for its bytes. Absolute times drift on a shared machine, so the networks take turns and the comparison is the
median over rounds of what two of them did one after the other.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import secrets
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.bench.fingerprint import cpu_model, fingerprint
from uccl_ep.tools.bench.transport_options import NETWORKS, RIVALS, TransportOptions
from uccl_ep.tools.bench.transport_worker import Part, run_part

_LIMIT_S = 120.0  # between two signs of life


def summarise(options: TransportOptions, times: dict[str, dict[int, list[tuple[float, float]]]]) -> dict[str, Any]:
    """Per network and size: medians of the rate (writes/s), bandwidth (bytes/s) and round trip (us), and all rounds."""
    found: dict[str, Any] = {}
    for name, by_size in times.items():
        found[name] = {}
        for size, rounds in by_size.items():
            rates = [options.writes(size) / stream for stream, _ in rounds]
            trips = [trip / options.trips(size) * 1e6 for _, trip in rounds]
            rate = statistics.median(rates)
            found[name][str(size)] = {
                "writes_per_s": rate,
                "bytes_per_s": rate * size,
                "round_trip_us": statistics.median(trips),
                "rounds_writes_per_s": rates,
                "rounds_round_trip_us": trips,
            }
    return found


def compare(summary: dict[str, Any]) -> dict[str, Any] | None:
    """Our tcp against libfabric's, by size: rate and round trip as ratios (above 1: ours is faster), medians of rounds.

    `default` is the one that wins more of these comparisons; ours when they are equal, since it needs no library.
    """
    if any(name not in summary for name in RIVALS):
        return None
    ours, theirs = (summary[name] for name in RIVALS)
    by_size: dict[str, dict[str, float]] = {}
    for size in ours:
        a, b = ours[size], theirs[size]
        rate = [x / y for x, y in zip(a["rounds_writes_per_s"], b["rounds_writes_per_s"], strict=True)]
        trip = [y / x for x, y in zip(a["rounds_round_trip_us"], b["rounds_round_trip_us"], strict=True)]
        by_size[size] = {"rate": statistics.median(rate), "round_trip": statistics.median(trip)}
    ratios = [ratio for size in by_size.values() for ratio in size.values()]
    wins = sum(ratio >= 1.0 for ratio in ratios)
    return {
        "ours_over_libfabric": by_size,
        "won_by_ours": wins,
        "comparisons": len(ratios),
        "default": RIVALS[0] if 2 * wins >= len(ratios) else RIVALS[1],
    }


def _collect(options: TransportOptions, progress: Progress) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ends = context.Pipe()
    secret = secrets.token_bytes(32)
    parts = [Part(rank, options, secret, ends[rank]) for rank in range(2)]
    processes = [context.Process(target=run_part, args=(part, results), daemon=True) for part in parts]
    total = (options.rounds + 1) * len(options.sizes) * len(options.chosen())
    task = progress.add_task("connecting", total=total)
    for process in processes:
        process.start()
    try:
        return _follow(results, progress, task)
    finally:
        for process in processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()


def _follow(results: Any, progress: Progress, task: Any) -> dict[str, Any]:
    done: dict[int, Any] = {}
    while len(done) < 2:
        try:
            message = results.get(timeout=_LIMIT_S)
        except queue.Empty:
            raise UcclEpError(f"bench transport: no sign of life for {_LIMIT_S:.0f} s") from None
        if message[0] == "step":
            progress.update(task, advance=1, description=message[1])
            continue
        _, rank, result, error = message
        if error:
            raise UcclEpError(f"bench transport: process {rank}: {error}")
        done[rank] = result
    progress.update(task, completed=progress.tasks[0].total)
    found: dict[str, Any] = done[0]
    return found


def run_transport(options: TransportOptions, out: Path | None, as_json: bool, console: Console) -> dict[str, Any]:
    """Measures, prints tables (or the JSON), writes `out` when given; returns what was written.

    Raises:
        InvalidArgument: the options cannot run.
        UcclEpError: a process failed, wrong bytes arrived, or nothing happened for two minutes.
    """
    options.check()
    with Progress(console=console, transient=True, disable=as_json) as progress:
        found = _collect(options, progress)
    summary = summarise(options, found["times"])
    result = {
        "benchmark": "transport",
        "options": asdict(options),
        "machine": fingerprint(),
        "networks": summary,
        "absent": found["absent"],
        "notes": found["notes"],
        "tcp_or_libfabric": compare(summary),
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        console.print_json(json.dumps(result))
    else:
        _print(options, result, console)
    return result


def _print(options: TransportOptions, result: dict[str, Any], console: Console) -> None:
    table = Table(title="two processes of this host; medians of the rounds")
    for heading in ("network", "bytes", "thousand writes/s", "MB/s", "round trip, us"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for network in NETWORKS:
        for size, row in result["networks"].get(network.name, {}).items():
            cells = (row["writes_per_s"] / 1e3, row["bytes_per_s"] / 1e6, row["round_trip_us"])
            table.add_row(network.name, f"{int(size):,}", *(f"{value:,.1f}" for value in cells))
        table.add_section()
    console.print(table)
    for name, why in result["absent"].items():
        console.print(f"{name} was not measured: {why}", markup=False, highlight=False)
    for name, notes in result["notes"].items():
        for choice, reason in notes[:1]:
            console.print(f"{name}: {choice} ({reason})", markup=False, highlight=False)
    _print_verdict(result["tcp_or_libfabric"], console)
    console.print(
        f"{options.rounds} rounds, on {len(os.sched_getaffinity(0))} cores of {cpu_model()}, "
        f"load {result['machine']['load_1min']}",
        highlight=False,
    )


def _print_verdict(verdict: dict[str, Any] | None, console: Console) -> None:
    if verdict is None:
        return
    table = Table(title="our tcp over libfabric's tcp; above 1 ours is faster")
    for heading in ("bytes", "rate", "round trip"):
        table.add_column(heading, justify="right")
    for size, ratio in verdict["ours_over_libfabric"].items():
        table.add_row(f"{int(size):,}", f"{ratio['rate']:.2f}", f"{ratio['round_trip']:.2f}")
    console.print(table)
    console.print(
        f"Ours wins {verdict['won_by_ours']} of {verdict['comparisons']}: between hosts without an RDMA NIC the faster "
        f"here is {verdict['default']}.",
        highlight=False,
    )
