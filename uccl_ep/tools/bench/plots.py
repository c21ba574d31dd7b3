"""Pictures of result files: ours over each peer, times beside the memcpy limit, the ring. Needs no display."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from uccl_ep.tools.bench.summary import OURS, WANTED
from uccl_ep.tools.figures import write

Result = dict[str, Any]
_COLOURS = {OURS: "tab:blue", "gloo": "tab:orange", "openmpi": "tab:green", "memcpy limit": "darkgrey"}


def draw(results: list[Result], folder: Path, suffix: str = ".png", theme: str = "") -> list[Path]:
    """Writes what can be drawn of the results into `folder`, in the suffix's format; returns the files.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """

    def save(name: str, fill: Callable[[Any], None]) -> Path:
        return write(folder / f"{name}{suffix}", (11, 4.5), fill, theme)

    peers = [r for r in results if r["benchmark"] == "beside peers" and not _is_variant(r["options"])]
    written = []
    for mode in ("throughput", "low-latency"):
        of_mode = [result for result in peers if result["options"]["mode"] == mode]
        if of_mode:
            written.append(save(f"peers-{mode}", partial(_peers, of_mode, mode)))
    rings = [result for result in results if result["benchmark"] == "ring"]
    if rings:
        written.append(save("ring", partial(_ring, rings[-1])))
    return written


def _is_variant(options: dict[str, Any]) -> bool:
    """Of what another file shows in the form that targets are for (summary.has_targets)."""
    return (options.get("outputs", "shared"), options.get("combine", "auto")) != ("shared", "auto")


def _label(result: Result) -> str:
    o = result["options"]
    nodes = -(-o["ranks"] // o["ranks_per_node"])
    return f"{o['ranks']} ranks" + ("" if nodes == 1 else f"\n{nodes} nodes")


def _peers(results: list[Result], mode: str, figure: Any) -> None:
    """Left: milliseconds by side. Right: how much faster we are, with quartiles and what is wanted."""
    results = sorted(results, key=lambda r: (r["options"]["ranks"], -r["options"]["ranks_per_node"]))
    times, ratios = figure.subplots(1, 2)
    sides = list(dict.fromkeys(side for result in results for side in result["sides"]))
    names = [*sides, "memcpy limit"]
    for place, name in enumerate(names):
        x = [i + (place - (len(names) - 1) / 2) * 0.8 / len(names) for i in range(len(results))]
        heights = [
            r["limit"]["limit_ms"]["both"]
            if name == "memcpy limit"
            else r["sides"].get(name, _NONE)["both"]["median_ms"]
            for r in results
        ]
        times.bar(x, heights, 0.8 / len(names), label=name, color=_COLOURS.get(name))
    times.set_yscale("log")
    times.set_ylabel("dispatch + combine of the slowest rank, ms")
    peers = [side for side in sides if side != OURS]
    for place, peer in enumerate(peers):
        found = [(i, r["pairs"][peer]["both"]) for i, r in enumerate(results) if peer in r["pairs"]]
        x = [i + (place - (len(peers) - 1) / 2) * 0.8 / len(peers) for i, _ in found]
        middle = [ratio["median"] for _, ratio in found]
        below = [max(0.0, ratio["median"] - ratio["q25"]) for _, ratio in found]
        above = [max(0.0, ratio["q75"] - ratio["median"]) for _, ratio in found]
        colour = _COLOURS.get(peer)
        ratios.bar(x, middle, 0.8 / len(peers), yerr=[below, above], label=peer, color=colour, capsize=3)
        ratios.axhline(WANTED[mode][peer], color=colour, linestyle="--", linewidth=1)
    ratios.set_ylabel("speed-up of uccl_ep over the other (dashed: target)")
    for axes in (times, ratios):
        axes.set_xticks(range(len(results)), [_label(result) for result in results])
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
    o = results[0]["options"]
    figure.suptitle(f"{mode}: {o['tokens']:,} tokens x {o['hidden']:,}, top-{o['topk']} of {o['experts']}")


_NONE = {"both": {"median_ms": 0.0}}  # a side that was not measured there


def _ring(result: Result, figure: Any) -> None:
    """Commands a second by producers, a line a push width, with the raw hand-off."""
    axes = figure.subplots()
    for width in sorted({r["width"] for r in result["rates"]}):
        of = [r for r in result["rates"] if r["width"] == width]
        x, y = [r["producers"] for r in of], [r["million_per_s"] for r in of]
        axes.plot(x, y, marker="o", label=f"{width} commands a push")
    raw = result["raw"]["million_per_s"]
    axes.axhline(raw, color="grey", linestyle="--", label=f"raw hand-off: {raw:.1f}")
    axes.set_xlabel("producers")
    axes.set_ylabel("million commands/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
