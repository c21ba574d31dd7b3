"""Tables of a simulation on the terminal, from the same dictionary as the JSON. Every title says "simulated"."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from uccl_ep.bench.scale.calibrate import TARGET

NOTE = "All times here are simulated; none was measured on such hardware by this project."


def show_scale(result: dict[str, Any], console: Console) -> None:
    """Calibration, ours beside upstream's, disturbances."""
    console.print(NOTE, style="bold", highlight=False)
    console.print(calibration_table(result["calibration"]))
    for line in result["summary"]:
        console.print(
            f"{line['rows']}: {line['within']} of {line['count']} within {TARGET:.0%}, median error "
            f"{line['median_error']:.1%}",
            style="green" if line["within"] == line["count"] else "red",
            highlight=False,
        )
    for name, constants in result["constants"].items():
        values = ", ".join(f"{key} {value:.4g}" for key, value in constants.items())
        console.print(f"fitted constants of {name}: {values}", style="dim", highlight=False)
    for name in result["options"]["platforms"]:
        console.print(_ratio_table(name, [r for r in result["ratios"] if r["platform"] == name]))
    _note(
        console,
        "Microseconds of dispatch + combine, slowest rank; in brackets over upstream's. by node: combine reduced in "
        "the node, which is not built. Upstream's wire fields end at 256 ranks (low latency on EFA: 64); beyond, its "
        "pattern is continued.",
    )
    for name in result["options"]["platforms"]:
        lines = [r for r in result["disturbances"] if r["platform"] == name]
        if lines:
            console.print(_disturbance_table(name, lines))
    _note(
        console,
        "cost: of the worse phase's slowest rank. it, others: mean delay of the ranks that the disturbance is about "
        "(hottest node, rail, late rank) and of all others. delayed: others that end 5 % later. last from it: ranks "
        "whose last rows came from there.",
    )
    console.print(NOTE, style="bold", highlight=False)


def calibration_table(rows: list[dict[str, Any]]) -> Table:
    """Every published row, fitted ones marked."""
    heads = ("testbed", "mode", "EP", "phase", "rows", "source", "published us", "simulated us", "error", "")
    table = _table("simulated: upstream's traffic beside published times", *heads)
    for row in rows:
        outside = "" if row["within"] else "OUTSIDE 20 %"
        table.add_row(
            row["platform"],
            row["mode"],
            str(row["ranks"]),
            row["phase"] + (", batched" if row["batched"] else ""),
            row["format"],
            row["of"],
            f"{row['published_us']:,.0f}",
            f"{row['simulated_us']:,.0f}",
            f"{row['error']:+.1%}",
            " ".join(word for word in ("fitted" if row["fitted"] else "predicted", outside) if word),
            style=None if row["within"] else "red",
        )
    return table


def _ratio_table(name: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(f"simulated: a round on {name}", "mode", "EP", "upstream", "ours", "ours, by node")
    for row in sorted(rows, key=lambda r: (r["mode"], r["ranks"])):
        node = f"{row['node_us']:,.0f} ({row['node_ratio']:.2f})" if "node_us" in row else ""
        table.add_row(
            row["mode"],
            str(row["ranks"]),
            f"{row['upstream_us']:,.0f}",
            f"{row['ours_us']:,.0f} ({row['ours_ratio']:.2f})",
            node,
        )
    return table


def _disturbance_table(name: str, rows: list[dict[str, Any]]) -> Table:
    heads = ("mode", "EP", "disturbance", "side", "round us", "x healthy", "cost us", "it", "others", "delayed", "last")
    table = _table(f"simulated: disturbances on {name}", *heads)
    for row in rows:
        table.add_row(
            row["mode"],
            str(row["ranks"]),
            row["condition"],
            row["side"],
            f"{row['us']:,.0f}",
            f"{row['times_healthy']:.2f}",
            f"{row['cost_us']:,.0f} ({row['phase']})",
            f"{row['affected_us']:+,.0f}",
            f"{row['others_us']:+,.0f}",
            f"{row['others_delayed']:.0%}",
            f"{row['blamed']:.0%}",
        )
    return table


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    words = ("testbed", "mode", "phase", "rows", "source", "", "disturbance", "side")
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", no_wrap=head in ("testbed", "mode"))
    return table


def _note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False)
