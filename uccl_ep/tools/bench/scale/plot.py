"""A picture of a simulation: calibration, round times by rank count, disturbances. Draws without a display."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from uccl_ep.tools.bench.scale.report import NOTE
from uccl_ep.tools.figures import write

_COLOURS = {"upstream": "tab:orange", "ours": "tab:blue", "ours, by node": "tab:cyan"}
_MARKS = "osD^vP"


def draw_scale(result: dict[str, Any], path: Path) -> None:
    """A row of panels for the calibration and one for each testbed.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """
    platforms = result["options"]["platforms"]
    write(path, (14, 4.2 * (1 + len(platforms))), partial(_fill, result, platforms))


def _fill(result: dict[str, Any], platforms: list[str], figure: Any) -> None:
    figure.suptitle(NOTE)
    panels = figure.subplots(1 + len(platforms), 3, squeeze=False)
    _draw_calibration(panels[0][0], result["calibration"])
    _draw_errors(panels[0][1], result["calibration"])
    panels[0][2].axis("off")
    for line, name in zip(panels[1:], platforms, strict=True):
        for panel, mode in zip(line, ("low-latency", "throughput"), strict=False):
            _draw_rounds(panel, name, mode, result["ratios"])
        _draw_disturbances(line[2], name, result["disturbances"])


def _draw_calibration(panel: Any, rows: list[dict[str, Any]]) -> None:
    """Simulated over published time; filled: fitted."""
    for mark, name in zip(_MARKS, dict.fromkeys(row["platform"] for row in rows), strict=False):
        for fitted in (True, False):
            some = [r for r in rows if r["platform"] == name and r["fitted"] == fitted]
            panel.plot(
                [r["published_us"] for r in some],
                [r["simulated_us"] for r in some],
                mark,
                fillstyle="full" if fitted else "none",
                color="tab:grey" if fitted else "tab:red",
                label=f"{name}, {'fitted' if fitted else 'predicted'}",
                markersize=5,
            )
    ends = np.array([min(r["published_us"] for r in rows), max(r["published_us"] for r in rows)])
    panel.plot(ends, ends, "k-", linewidth=0.8)
    for factor in (0.8, 1.2):
        panel.plot(ends, ends * factor, "k:", linewidth=0.8)
    panel.set(xscale="log", yscale="log", xlabel="published us", ylabel="simulated us", title="upstream, 20 % dotted")
    panel.legend(fontsize=6)


def _draw_errors(panel: Any, rows: list[dict[str, Any]]) -> None:
    """Error of each row, in the table's order."""
    colours = ["tab:grey" if row["fitted"] else "tab:red" for row in rows]
    panel.bar(range(len(rows)), [100 * row["error"] for row in rows], color=colours)
    for limit in (-20, 20):
        panel.axhline(limit, color="black", linestyle=":", linewidth=0.8)
    panel.set(xlabel="published row (grey: fitted)", ylabel="error, %", title="error of every published row")


def _draw_rounds(panel: Any, name: str, mode: str, ratios: list[dict[str, Any]]) -> None:
    rows = sorted((r for r in ratios if r["platform"] == name and r["mode"] == mode), key=lambda r: int(r["ranks"]))
    for key, side in (("upstream_us", "upstream"), ("ours_us", "ours"), ("node_us", "ours, by node")):
        points = [(row["ranks"], row[key]) for row in rows if key in row]
        if points:
            panel.plot(*zip(*points, strict=True), "o-", color=_COLOURS[side], label=side, markersize=4)
    panel.set_xscale("log", base=2)
    panel.set_xticks([row["ranks"] for row in rows], [str(row["ranks"]) for row in rows])
    panel.set_ylim(bottom=0)
    panel.set(xlabel="ranks", ylabel="us, dispatch + combine", title=f"{name}, {mode} (simulated)")
    panel.grid(alpha=0.3)
    if rows:
        panel.legend(fontsize=7)


def _draw_disturbances(panel: Any, name: str, rows: list[dict[str, Any]]) -> None:
    some = [row for row in rows if row["platform"] == name]
    short = {"low-latency": "LL", "throughput": "HT"}
    labels = [f"{short[r['mode']]} {r['ranks']} {r['condition']}, {r['side']}" for r in some]
    panel.barh(range(len(some)), [r["times_healthy"] for r in some], color=[_COLOURS[r["side"]] for r in some])
    panel.set_yticks(range(len(some)), labels, fontsize=4)
    panel.invert_yaxis()
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set(xlabel="round, times the healthy one", title=f"{name}: disturbances (simulated)")
