"""Draws profiles of bench/flame.py under each other, on one scale of CPU milliseconds a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from uccl_ep.tools.figures import write

_MOST_LEVELS = 10
_LEAST_SHARE = 0.004  # of the widest profile; narrower frames are not drawn
_COLOURS = {"kernel": "tab:blue", "system": "tab:red", "copy": "tab:orange", "wait": "lightgrey", "other": "tab:cyan"}
_COPIES = ("memmove", "memcpy", "copy", "store")
_SUMS = ("reduce", "sum")
_WAITS = ("pause", "yield", "nanosleep", "futex", "schedule", "backoff", "wait")
_SYSTEM = ("page fault", "system call", "interrupt")


@dataclass
class Frame:
    """A function in its place below its callers."""

    name: str
    ms: float = 0.0
    callees: dict[str, Frame] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Frames from here to the deepest."""
        return 1 + max((callee.depth for callee in self.callees.values()), default=0)


def tree_of(profile: dict[str, Any]) -> Frame:
    """The calls of a profile, as flame.py wrote it."""
    root = Frame(profile["name"])
    for stack, ms in profile["stacks"].items():
        root.ms += ms
        at = root
        for name in stack.split(";"):
            at = at.callees.setdefault(name, Frame(name))
            at.ms += ms
    return root


def kind_of(name: str) -> str:
    """What a frame's colour says."""
    lowered = name.lower()
    for kind, words in (("wait", _WAITS), ("copy", _COPIES), ("kernel", _SUMS), ("system", _SYSTEM)):
        if any(word in lowered for word in words):
            return kind
    return "kernel" if lowered.startswith(("throughput_", "low_latency_")) else "other"


def draw(result: dict[str, Any], path: Path, theme: str = "") -> None:
    """Writes the picture of a result of flame.py.

    Raises:
        NotSupported, OSError, ValueError: see uccl_ep.tools.figures.write.
    """
    roots = [tree_of(profile) for profile in result["profiles"]]
    height = 1.2 + sum(0.9 + 0.22 * min(root.depth, _MOST_LEVELS) for root in roots)
    write(path, (12, height), partial(_fill, result, roots), theme)


def _fill(result: dict[str, Any], roots: list[Frame], figure: Any) -> None:
    widest = max(root.ms for root in roots)
    heights = [min(root.depth, _MOST_LEVELS) + 2 for root in roots]
    panels = figure.subplots(len(roots), 1, sharex=True, squeeze=False, height_ratios=heights)
    for (panel,), root in zip(panels, roots, strict=True):
        _draw_frame(panel, root, 0.0, 0, widest)
        panel.set_ylim(0, min(root.depth, _MOST_LEVELS))
        panel.set_yticks([])
        panel.set_title(f"{root.name}: {root.ms:.1f} ms", loc="left", fontsize=10)
    o = result["options"]
    panels[-1][0].set_xlim(0, widest)
    panels[-1][0].set_xlabel("CPU ms of all ranks in a round, dispatch and combine, inside of our module")
    figure.suptitle(
        f"{o['mode']}, {o['ranks']} ranks, {o['tokens']} tokens x {o['hidden']}, top-{o['topk']}", fontsize=11
    )


def _draw_frame(panel: Any, frame: Frame, left: float, level: int, widest: float) -> None:
    if level >= _MOST_LEVELS or frame.ms < _LEAST_SHARE * widest:
        return
    panel.barh(
        level + 0.5, frame.ms, left=left, height=0.94, color=_COLOURS[kind_of(frame.name)], alpha=0.75, edgecolor="w"
    )
    room = int(frame.ms / widest * 165)
    if room > 3:
        panel.text(
            left + frame.ms / 2, level + 0.5, frame.name[:room], ha="center", va="center", fontsize=6.5, clip_on=True
        )
    for callee in sorted(frame.callees.values(), key=lambda one: -one.ms):
        _draw_frame(panel, callee, left, level + 1, widest)
        left += callee.ms
