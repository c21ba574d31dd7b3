"""Tables of a simulation on the terminal, from the same dictionary as the JSON. Every title says "simulated"."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from uccl_ep.tools.bench.scale.calibrate import TARGET
from uccl_ep.tools.bench.scale.published import TABLE

NOTE = "All times here are simulated; none was measured on such hardware by this project."


def show_scale(result: dict[str, Any], console: Console) -> None:
    """Calibration, ours beside upstream's, disturbances."""
    console.print(NOTE, style="bold", highlight=False)
    for table in calibration_tables(result["calibration"]):
        console.print(table)
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
    console.print(harness_table(result["harness"]))
    _note(
        console,
        "Microseconds of a whole round of the slowest rank. V1, V2, UCCL: published; beside them UCCL's traffic as "
        "simulated. ours: with every constant of UCCL's; mended: kernels pass rows on as fast as within a node, and a "
        "host part as DeepEP V1's; by node: that with sums in the node. Last: mended, the best form, over the best "
        "published.",
    )
    for name in result["options"]["platforms"]:
        console.print(_ratio_table(name, [r for r in result["ratios"] if r["platform"] == name]))
    _note(
        console,
        "Microseconds of dispatch + combine, slowest rank; in brackets over upstream's. by node: combine reduced in "
        "the node (UCCL_EP_LOW_LATENCY_COMBINE). Upstream's wire fields end at 256 ranks (low latency on EFA: 64); "
        "beyond, its pattern is continued.",
    )
    for name in result["options"]["platforms"]:
        lines = [r for r in result["disturbances"] if r["platform"] == name]
        for table in _disturbance_tables(name, lines):
            console.print(table)
    _note(
        console,
        "x: times the healthy round. it, others: mean delay, in the phase that suffers more, of the ranks that the "
        "disturbance is about (hottest node, rail, late rank) and of all others. delayed: others that end 5 % later. "
        "last: ranks whose last rows came from those ranks.",
    )
    console.print(NOTE, style="bold", highlight=False)


def calibration_tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Every published row, fitted ones marked; a table for each testbed. Fits 80 columns."""
    heads = ("mode", "EP", "phase", "rows", "published", "simulated", "error", "")
    tables = {}
    for name in dict.fromkeys(row["platform"] for row in rows):
        tables[name] = _table(f"simulated: upstream's traffic on {name} beside published us", *heads)
    for row in rows:
        kind = ["fitted" if row["fitted"] else "predicted"]
        kind += ["batched"] * row["batched"] + [row["of"]] * (row["of"] != TABLE)
        tables[row["platform"]].add_row(
            row["mode"],
            str(row["ranks"]),
            row["phase"],
            row["format"],
            f"{row['published_us']:,.0f}",
            f"{row['simulated_us']:,.0f}",
            f"{row['error']:+.1%}",
            ", ".join(kind) + ("" if row["within"] else " OUTSIDE"),
            style=None if row["within"] else "red",
        )
    return list(tables.values())


def harness_table(rows: list[dict[str, Any]]) -> Table:
    """Three libraries as AWS published them, ours simulated."""
    heads = ("mode", "EP", "rows", "V1", "V2", "UCCL", "simulated", "ours", "mended", "by node", "")
    table = _table("simulated: ours beside what AWS published of p6-b200", *heads)
    for row in rows:
        table.add_row(
            row["job"],
            str(row["ranks"]),
            row["format"],
            *(f"{us:,.0f}" for us in row["published"].values()),
            f"{row['upstream_us']:,.0f} {row['error']:+.0%}",
            f"{row['ours_us']:,.0f}",
            f"{row['mended_us']:,.0f}",
            f"{row['node_us']:,.0f}" if "node_us" in row else "",
            f"{row['ratio']:.2f}",
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


def _disturbance_tables(name: str, rows: list[dict[str, Any]]) -> list[Table]:
    heads = ("disturbance", "side", "round us", "x", "it", "others", "delayed", "last")
    tables = []
    for mode, ranks in dict.fromkeys((row["mode"], row["ranks"]) for row in rows):
        table = _table(f"simulated: disturbances on {name}, {mode}, {ranks} ranks", *heads)
        for row in rows:
            if (row["mode"], row["ranks"]) == (mode, ranks):
                table.add_row(
                    row["condition"],
                    row["side"],
                    f"{row['us']:,.0f}",
                    f"{row['times_healthy']:.2f}",
                    f"{row['affected_us']:+,.0f}",
                    f"{row['others_us']:+,.0f}",
                    f"{row['others_delayed']:.0%}",
                    f"{row['blamed']:.0%}",
                )
        tables.append(table)
    return tables


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    words = ("mode", "phase", "rows", "", "disturbance", "side")
    for head in heads:
        table.add_column(head, justify="left" if head in words else "right", no_wrap=head != "")
    return table


def _note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False)
