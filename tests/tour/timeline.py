"""A trace in the Chrome format as a PNG: a row for each row of the trace, its slices, and arrows from rank to rank.

Perfetto draws the same file and lets one walk in it; this is what can be shown without a network and a browser.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uccl_ep.tools import figures

ARROWS = 14  # of a picture: the closest together, else none could be told from the next
_HUES = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")
_LEAST = 0.004  # of the picture's width: what is shorter is drawn so wide
Row = dict[str, Any]


def draw(trace: dict[str, Any], path: Path) -> list[tuple[int, int]]:
    """Draws the moment in which messages are densest; its arrows, as (from rank, to rank).

    Raises:
        ValueError: the trace has no arrow between two ranks.
    """
    events: list[Row] = trace["traceEvents"]
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    arrows = [(event, ends[event["id"]]) for event in events if event["ph"] == "s" and event["id"] in ends]
    arrows = sorted((pair for pair in arrows if pair[0]["pid"] != pair[1]["pid"]), key=lambda pair: pair[0]["ts"])
    if not arrows:
        raise ValueError("no message of one rank arrives at another one in this trace")
    shown = min(
        (arrows[first : first + ARROWS] for first in range(max(1, len(arrows) - ARROWS + 1))),
        key=lambda some: max(end["ts"] for _, end in some) - some[0][0]["ts"],
    )
    begin, end = shown[0][0]["ts"], max(target["ts"] for _, target in shown)
    margin = 0.08 * (end - begin)
    least = _LEAST * (end - begin)
    slices = [e for e in events if e["ph"] == "X" and e["ts"] < end + margin and e["ts"] + e["dur"] > begin - margin]
    places = sorted({(e["pid"], e["tid"]) for e in [*slices, *(e for pair in shown for e in pair)]})
    heights = {place: -at for at, place in enumerate(places)}
    names = {(e["pid"], e.get("tid"), e["name"]): e["args"].get("name", "") for e in events if e["ph"] == "M"}

    def fill(figure: Any) -> None:
        axes = figure.add_subplot()
        for e in slices:
            left = max(e["ts"], begin - margin)
            width = max(min(e["ts"] + e["dur"], end + margin) - left, least)
            hue = _HUES[e["pid"] % len(_HUES)]
            axes.barh(heights[e["pid"], e["tid"]], width, 0.7, left - begin, color=hue, alpha=0.75, linewidth=0)
            if width > 0.25 * (end - begin):
                axes.text(left - begin + width / 2, heights[e["pid"], e["tid"]], e["name"], ha="center", va="center")
        for source, target in shown:
            tip, tail = [(e["ts"] - begin, heights[e["pid"], e["tid"]]) for e in (target, source)]
            axes.annotate("", tip, tail, arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 0.9})
        labels = [f"{names.get((p, None, 'process_name'))}: {names.get((p, t, 'thread_name'))}" for p, t in places]
        axes.set_yticks([heights[place] for place in places], labels)
        axes.set_xlim(-margin, end - begin + margin)
        axes.set_xlabel("microseconds")
        axes.set_title(f"{len(shown)} of {len(arrows)} messages, from the sender's ring to their arrival")

    figures.write(path, (13.0, 1.2 + 0.32 * len(places)), fill)
    return [(source["pid"], target["pid"]) for source, target in shown]
