"""Tables of a result on the terminal: what `uccl-ep bench` prints, from the same dictionary as the JSON file."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from uccl_ep.tools.bench.summary import OURS, PARTS


def title(result: dict[str, Any]) -> str:
    """Shapes and ranks of a measurement."""
    o = result["options"]
    return (
        f"{o['mode']}: {o['tokens']:,} tokens x {o['hidden']:,}, top-{o['topk']} of {o['experts']}, "
        f"{o['ranks']} ranks, {o['ranks_per_node']} to a node, bf16"
    )


def show_peers(result: dict[str, Any], console: Console) -> None:
    """Prints one measurement: milliseconds of the slowest rank, ratios of pairs, the limit, and the targets."""
    table = Table(title=f"{title(result)}; slowest rank, median ms")
    for heading in ("", *PARTS, "p99", "CPU of all", "uccl_ep faster by"):
        table.add_column(heading, justify="right" if heading else "left")
    for side, row in result["sides"].items():
        name = side if side == OURS else f"{side}, {result['forms']['chosen'][side]}"
        cells = [f"{row[part]['median_ms']:,.2f}" for part in PARTS]
        ratio = result["pairs"].get(side, {}).get("both")
        faster = "" if ratio is None else f"{ratio['median']:.2f} x ({ratio['q25']:.2f} to {ratio['q75']:.2f})"
        table.add_row(name, *cells, f"{row['both']['p99_ms']:,.2f}", f"{row['cpu_ms']:,.1f}", faster)
    limit = result["limit"]
    cells = [f"{limit['limit_ms'][part]:,.2f}" for part in PARTS]
    table.add_row("memcpy limit", *cells, "", "", f"{limit['share_of_limit']['both']:.0%} of it reached", style="dim")
    for cells in floor_rows(result):
        table.add_row(*cells, style="dim")
    console.print(table)
    machine, pairs = result["machine"], next(iter(result["pairs"].values()))["both"]["pairs"]
    console.print(
        f"{pairs} interleaved rounds, every result checked; {machine['cores']} cores of {machine['cpu']}, load "
        f"{machine['load_1min']}, memcpy {limit['memcpy_bytes_per_s'] / 1e9:.1f} GB/s by "
        f"{limit['memcpy_ranks_at_once']} ranks at once; paths: {', '.join(result['paths'])}",
        highlight=False,
    )
    for note in result["notes"]:
        console.print(note, style="dim", highlight=False)
    show_targets(result["targets"], console)


def floor_rows(result: dict[str, Any]) -> list[list[str]]:
    """Over tcp, what bare sockets and memcpy would take: a row of the table of six columns behind a name."""
    sockets = result["limit"].get("sockets")
    if sockets is None:
        return []
    cells = [f"{sockets['floor_ms'][part]:,.2f}" for part in PARTS]
    return [["bare sockets and memcpy", *cells, "", "", f"{sockets['share_of_floor']:.0%} of it reached"]]


def verdict(target: dict[str, Any]) -> str:
    """A target's line, without markup."""
    sign = ">=" if target["at_least"] else "<="
    met = "met" if target["met"] else "NOT MET"
    best = f"; {target['at_best']['of']}: {target['at_best']['measured']:.3g}" if "at_best" in target else ""
    wanted = f"wanted {sign} {target['wanted']:g}{best}"
    return f"{met}: {target['where']}: {target['name']}: {target['measured']:.4g} ({wanted})"


def show_targets(targets: list[dict[str, Any]], console: Console) -> None:
    """A line for each target."""
    for target in targets:
        console.print(verdict(target), style="green" if target["met"] else "red", highlight=False, markup=False)
