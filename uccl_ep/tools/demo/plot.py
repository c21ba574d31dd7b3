"""The demo's picture: both loss curves, and who sent how many bytes to whom."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from uccl_ep.tools.demo.report import Report, human_bytes
from uccl_ep.tools.figures import write


def draw(report: Report, path: Path) -> None:
    """Writes the picture.

    Raises:
        NotSupported, OSError, ValueError: see figures.write.
    """
    write(path, (11, 4.5), partial(_fill, report))


def _fill(report: Report, figure: Any) -> None:
    options = report.options
    curves, matrix = figure.subplots(1, 2, width_ratios=[1.25, 1])

    steps = range(1, options.steps + 1)
    label = f"one process: {report.one_process.losses[-1]:.6f}"
    curves.plot(steps, report.one_process.losses, color="tab:orange", linewidth=5, alpha=0.45, label=label)
    label = f"{options.ranks} ranks on {options.nodes} nodes: {report.ranks[0].losses[-1]:.6f}"
    curves.plot(steps, report.ranks[0].losses, color="tab:blue", linewidth=1.2, label=label)
    for loss in report.interruptions():
        curves.axvline(loss["step"], color="tab:red", linewidth=1, linestyle="--")
        note = f"rank {', '.join(map(str, loss['lost']))} killed in step {loss['step']};\nthe step is done without it "
        note += f"{loss['pause_s']:.2f} s later"
        curves.annotate(
            note, (loss["step"], max(report.ranks[0].losses)), fontsize=8, ha="right", va="top", color="tab:red"
        )
    curves.set_xlabel("step")
    curves.set_ylabel("training loss, nats per byte")
    curves.set_title(f"loss (final difference {report.training_difference:.1e})")
    curves.grid(alpha=0.3)
    curves.legend()

    sent = report.matrix("bytes_sent")
    image = matrix.imshow([[count / 2**20 for count in row] for row in sent], cmap="Blues", vmin=0)
    largest = max(max(row) for row in sent) or 1
    for rank, row in enumerate(sent):
        for peer, count in enumerate(row):
            colour = "white" if count > 0.6 * largest else "black"
            matrix.text(peer, rank, human_bytes(count), ha="center", va="center", color=colour, fontsize=8)
    for border in range(options.ranks_per_node, options.ranks, options.ranks_per_node):
        matrix.axhline(border - 0.5, color="tab:red", linewidth=1.5)
        matrix.axvline(border - 0.5, color="tab:red", linewidth=1.5)
    matrix.set_xticks(range(options.ranks))
    matrix.set_yticks(range(options.ranks))
    matrix.set_xlabel("to rank")
    matrix.set_ylabel("from rank")
    matrix.set_title("bytes sent (red: border between nodes)")
    figure.colorbar(image, ax=matrix, shrink=0.85, label="MiB")
