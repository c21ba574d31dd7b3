"""Markdown tables from result files: one table a kind of benchmark, every row with the file it is from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from uccl_ep.errors import one_of, refuse
from uccl_ep.tools.bench.show import verdict
from uccl_ep.tools.bench.summary import OURS

Result = dict[str, Any]
SOURCE = "_file"
"""Key under which `load` keeps the name of the file."""


def load(path: Path) -> Result:
    """A result file.

    Raises:
        InvalidArgument: the file is not there, is no JSON, or holds no benchmark that has a table.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse("FILES", str(path), f"a JSON file of `uccl-ep bench` ({error})")
    if not isinstance(result, dict) or result.get("benchmark") not in TABLES:
        refuse("FILES", str(path), "a file whose `benchmark` is " + one_of(TABLES))
    return {**result, SOURCE: path.name}


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(["---", *["---:"] * (len(heads) - 1)]) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _peers(results: list[Result]) -> str:
    heads = (
        "exchange",
        "side",
        "dispatch, ms",
        "combine, ms",
        "p99 of both, ms",
        "CPU of all ranks, ms",
        "uccl_ep is faster by",
        "file",
    )
    rows = []
    for result in sorted(results, key=_shape):
        o = result["options"]
        where = f"{o['mode']}, {o['ranks']} ranks, {o['ranks_per_node']} a node, {o['tokens']:,} x {o['hidden']:,}"
        where += ", outputs private" if o.get("outputs") == "private" else ""
        if o["mode"] == "low-latency" and o["ranks"] > o["ranks_per_node"]:
            where += f", combine {(result.get('combine') or {'form': 'direct'})['form']}"  # older files: no choice
        for side, row in result["sides"].items():
            name = side if side == OURS else f"{side}, {result['forms']['chosen'][side]}"
            ratio = result["pairs"].get(side, {}).get("both")
            faster = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['q25']:.2f} to {ratio['q75']:.2f})"
            times = [f"{row[part]['median_ms']:,.2f}" for part in ("dispatch", "combine")]
            times += [f"{row['both']['p99_ms']:,.2f}", f"{row['cpu_ms']:,.1f}"]
            rows.append((where, name, *times, faster, result[SOURCE]))
        limit = result["limit"]
        times = [f"{limit['limit_ms'][part]:,.2f}" for part in ("dispatch", "combine")]
        rows.append(
            (where, "memcpy limit", *times, "", "", f"{limit['share_of_limit']['both']:.0%} reached", result[SOURCE])
        )
        sockets = limit.get("sockets")
        if sockets is not None:
            floor = sockets["floor_ms"]
            times = [f"{floor[part]:,.2f}" for part in ("dispatch", "combine")]
            reached = f"{sockets['share_of_floor']:.0%} reached"
            rows.append((where, "bare sockets and memcpy", *times, "", "", reached, result[SOURCE]))
    return "## Beside peers\n\n" + table(heads, rows)


def _shape(result: Result) -> tuple[Any, ...]:
    o = result["options"]
    return (o["mode"], o["tokens"], o["hidden"], o["ranks"], -o["ranks_per_node"])


def _ring(results: list[Result]) -> str:
    rows = [
        (r["producers"], r["width"], f"{r['million_per_s']:.2f}", f"{r['of_raw']:.2f}", result[SOURCE])
        for result in results
        for r in result["rates"]
    ]
    heads = ("producers", "push width", "million commands/s", "over a raw hand-off", "file")
    trips = [
        (
            f"{result['raw']['million_per_s']:.2f}",
            result["raw"]["round_trip_ns"]["p50"],
            result["round_trip_ns"]["p50"],
            result["round_trip_ns"]["p99"],
            result[SOURCE],
        )
        for result in results
    ]
    more = ("raw, million/s", "raw round trip p50, ns", "ring round trip p50, ns", "ring p99, ns", "file")
    return "## The command ring\n\n" + table(heads, rows) + "\n\n" + table(more, trips)


def _costs(results: list[Result]) -> str:
    rows = [
        (name, f"{found:.1f}", f"{result['budget'].get(name, float('nan')):.1f}", result[SOURCE])
        for result in results
        for name, found in result["instructions"].items()
    ]
    return "## Instructions of the proxy\n\n" + table(("step", "instructions each", "budget", "file"), rows)


def _idle(results: list[Result]) -> str:
    rows = [
        (
            f"{result['threads']} proxy threads",
            f"{result['core_percent_per_thread']:.2f} %",
            *(_wake(result, p) for p in ("p50", "p99")),
            result[SOURCE],
        )
        for result in results
    ]
    heads = ("idle", "of a core, each", "wakes within p50, us (a bare thread)", "p99, us", "file")
    return "## Idle proxies\n\n" + table(heads, rows)


def _wake(result: Result, share: str) -> str:
    bare = result.get("bare_wake_us")  # older files have none
    return f"{result['wake_us'][share]:.1f}" + (f" ({bare[share]:.1f})" if bare else "")


def _transport(results: list[Result]) -> str:
    rows = [
        (
            name,
            f"{int(size):,}",
            f"{row['writes_per_s'] / 1e3:,.1f}",
            f"{row['bytes_per_s'] / 1e6:,.1f}",
            f"{row['round_trip_us']:,.1f}",
            result[SOURCE],
        )
        for result in results
        for name, by_size in result["networks"].items()
        for size, row in by_size.items()
    ]
    heads = ("network", "bytes", "thousand writes/s", "MB/s", "round trip, us", "file")
    return "## Networks of one host\n\n" + table(heads, rows)


def _bytes(results: list[Result]) -> str:
    heads = ("ranks", "mode, routing", "KB a token", "upstream's", "KB over upstream's", "reduced by node", "file")
    rows = []
    for result in results:
        for row in result["rows"]:
            per = row["per_token"]
            ours, theirs = (
                sum(per[f"{side}{p}"]["bytes"] for p in ("dispatch", "combine")) for side in ("", "upstream_")
            )
            ratios = [_ratio(row.get(key)) for key in ("bytes_ratio", "bytes_ratio_node")]
            name = f"{row['mode']}, {row['routing']}"
            rows.append((row["ranks"], name, f"{ours / 1e3:.1f}", f"{theirs / 1e3:.1f}", *ratios, result[SOURCE]))
    return "## Bytes between nodes, dispatch and combine\n\n" + table(heads, rows)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _memory(results: list[Result]) -> str:
    heads = ("ranks", "experts", "ours, MB", "upstream's, MB", "ours over upstream's", "wanted", "file")
    rows = [
        (
            row["ranks"],
            row["asked_experts"],
            *(f"{row[side] / 1e6:,.1f}" for side in ("ours", "upstream")),
            *(f"{row[key]:.3f}" for key in ("ratio", "limit")),
            result[SOURCE],
        )
        for result in results
        for row in result["rows"]
    ]
    return "## Memory of a rank in low latency\n\n" + table(heads, rows)


def _flame(results: list[Result]) -> str:
    heads = ("CPU ms of all ranks in a round, inside of our module", "in all", "where most of it goes", "file")
    rows = []
    for result in results:
        o = result["options"]
        for profile in result["profiles"]:
            parts: dict[str, float] = {}
            for stack, ms in profile["stacks"].items():
                first = stack.split(";")[0]
                parts[first] = parts.get(first, 0.0) + ms
            most = sorted(parts.items(), key=lambda part: -part[1])[:4]
            said = ", ".join(f"{name} {ms:,.1f}" for name, ms in most)
            where = f"{o['mode']}, {o['ranks']} ranks, {profile['name']}"
            rows.append((where, f"{profile['ms_per_round']:,.1f}", said, result[SOURCE]))
    return "## Where CPU time goes\n\n" + table(heads, rows)


TABLES: dict[str, Callable[[list[Result]], str]] = {
    "beside peers": _peers,
    "ring": _ring,
    "proxy costs": _costs,
    "idle proxies": _idle,
    "bytes": _bytes,
    "memory": _memory,
    "transport": _transport,
    "flame": _flame,
}


def machine_line(machine: dict[str, Any]) -> str:
    """A machine and its versions in a line."""
    loaded = machine.get("loaded") or {name: machine[name] for name in ("torch", "numpy", "uccl_ep") if name in machine}
    versions = ", ".join(f"{name} {version}" for name, version in loaded.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {versions} ({machine['time']})"
    )


def tables(results: list[Result]) -> str:
    """One Markdown table a kind of benchmark."""
    parts = []
    for kind, make in TABLES.items():
        of_kind = [result for result in results if result["benchmark"] == kind]
        if of_kind:
            parts.append(make(of_kind))
    return "\n\n".join(parts)


def markdown(results: list[Result]) -> str:
    """All tables, the targets, and the machines."""
    parts = [tables(results)]
    targets = [verdict(target) for result in results for target in result.get("targets", [])]
    if targets:
        parts.append("## Targets\n\n" + "\n".join(f"- {line}" for line in targets))
    machines = [f"- {r[SOURCE]}: {machine_line(r['machine'])}" for r in results if "machine" in r]
    if machines:
        parts.append("## Machines\n\n" + "\n".join(machines))
    return "\n\n".join(parts)
