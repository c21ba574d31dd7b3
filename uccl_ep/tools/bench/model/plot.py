"""Pictures of what the model found. Draws to files without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uccl_ep.tools.figures import write

_COLOURS = {"random": "tab:blue", "group-limited": "tab:green", "skewed": "tab:orange"}


def draw_bytes(result: dict[str, Any], path: Path) -> None:
    """Ours over upstream's by rank count: bytes to the left, messages to the right, a line for each gate and mode.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        for panel, what, title in zip(panels, ("bytes", "messages"), ("wire bytes", "messages"), strict=True):
            for label, colour, style, points in _ratio_lines(result["rows"], what):
                panel.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1.4, markersize=4)
            panel.axhline(1.0, color="black", linewidth=0.8)
            panel.set_ylim(bottom=0.0)
            _label(panel, "ranks", sorted({row["ranks"] for row in result["rows"]}))
            panel.set_title(f"{title} of dispatch + combine, ours / upstream's")
            panel.grid(alpha=0.3)
        panels[0].axhline(0.5, color="tab:red", linestyle=":", label="target at 32 ranks")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)

    write(path, (11, 5.2), fill)


def _label(panel: Any, name: str, sizes: list[int]) -> None:
    """Sizes on a logarithmic axis, as they are and not as powers."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel(name)


def _ratio_lines(rows: list[dict[str, Any]], what: str) -> list[tuple[str, str, str, list[tuple[int, float]]]]:
    """(label, colour, line style, points) of everything that crosses a network."""
    lines = []
    styles = (
        ("low-latency", f"{what}_ratio", "o-", "low latency"),
        ("low-latency", f"{what}_ratio_node", "o--", "low latency, combine by node"),
        ("throughput", f"{what}_ratio", "s:", "throughput"),
    )
    for routing in dict.fromkeys(row["routing"] for row in rows):
        for mode, key, style, words in styles:
            of_line = (row for row in rows if row["mode"] == mode and row["routing"] == routing)
            points = [(row["ranks"], row[key]) for row in of_line if row.get(key) is not None]
            if points:
                lines.append((f"{words}, {routing}", _COLOURS.get(routing, "grey"), style, points))
    return lines


def draw_memory(result: dict[str, Any], path: Path) -> None:
    """Bytes of a rank by rank count: ours, with one rank a node, and upstream's.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """

    def fill(figure: Any) -> None:
        panel = figure.subplots()
        experts = sorted({row["asked_experts"] for row in result["rows"]})
        for count, style in zip(experts, ("o-", "o--", "o:") * len(experts), strict=False):
            rows = sorted((r for r in result["rows"] if r["asked_experts"] == count), key=lambda row: int(row["ranks"]))
            ranks = [row["ranks"] for row in rows]
            for key, colour, label in (
                ("ours", "tab:blue", "ours"),
                ("ours_one_rank_a_node", "tab:cyan", "ours, one rank a node"),
                ("upstream", "tab:orange", "upstream"),
            ):
                values = [row[key] / 2**30 for row in rows]
                panel.plot(ranks, values, style, color=colour, label=f"{label}, {count} experts", markersize=4)
        _label(panel, "ranks", sorted({row["ranks"] for row in result["rows"]}))
        panel.set_yscale("log")
        panel.set_ylabel("GiB of one rank, low latency")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)

    write(path, (7, 4.5), fill)


def draw_growth(result: dict[str, Any], path: Path) -> None:
    """A panel for each axis, counted above and measured below: every quantity relative to its first value.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """
    kinds = [kind for kind in ("counted", "measured") if result[kind]]

    def fill(figure: Any) -> None:
        panels = figure.subplots(len(kinds), max(len(result[kind]) for kind in kinds), squeeze=False)
        for line, kind in zip(panels, kinds, strict=True):
            for panel, entry in zip(line, result[kind], strict=False):
                sizes = entry["sizes"]
                for name, values in entry["values"].items():
                    points = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
                    if points:
                        relative = [value / points[0][1] for _, value in points]
                        panel.plot([size for size, _ in points], relative, "o-", label=name, markersize=3, linewidth=1)
                panel.plot(sizes, [size / sizes[0] for size in sizes], "k:", linewidth=1, label="linear")
                panel.set_yscale("log", base=2)
                _label(panel, entry["axis"], sizes)
                panel.set_title(f"{kind}, times the first", fontsize=9)
                panel.grid(alpha=0.3)
            line[0].legend(fontsize=6)

    write(path, (4 * max(len(result[kind]) for kind in kinds), 3.6 * len(kinds)), fill)
