"""Figures in files, without a display. The one place that loads matplotlib, which the extra [plots] brings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uccl_ep.errors import NotSupported
from uccl_ep.system.extras import install

_DOTS_PER_INCH = 130
_INK = {"light": "#202124", "dark": "#e3e3e3"}
THEMES = tuple(_INK)


def available() -> bool:
    """Whether `write` can draw here."""
    return find_spec("matplotlib") is not None


def missing() -> str:
    """What to install where it cannot."""
    return f"pictures need matplotlib: {install('plots')}"


def check(path: Path | None) -> Path | None:
    """For an option that names a picture: says before the work that it cannot be drawn here, not after it.

    Raises:
        NotSupported: a picture is asked for, and matplotlib is not installed.
    """
    if path is not None and not available():
        raise NotSupported(missing())
    return path


def write(path: Path, size: tuple[float, float], fill: Callable[[Any], None], theme: str = "") -> Path:
    """Draws one figure into a file, whose suffix chooses the format; its folder is made.

    Args:
        path: the file; returned.
        size: width and height in inches.
        fill: draws into the matplotlib Figure that it is given.
        theme: one of THEMES, for pages of that scheme, without a ground of its own; "": dark on white.

    Raises:
        NotSupported: matplotlib is not installed; says how to install it.
        OSError: the file cannot be written.
        ValueError: its suffix names no format.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupported(missing()) from error
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": path.name,
    }  # text stays text; the same file each time
    if theme:
        ink = _INK[theme]
        parts = "text.color axes.labelcolor axes.edgecolor xtick.color ytick.color axes.titlecolor".split()
        style |= dict.fromkeys(parts, ink) | {"savefig.transparent": True, "legend.framealpha": 0.0}
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        fill(figure)
        figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
