# The whole demo in order: the expert-parallel run, the one-process run, the comparison, the picture.
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.progress import TrainingProgress
from uccl_ep.tools.demo.report import Report, show
from uccl_ep.tools.demo.result import RunResult, train

STATUS_DIFFERENT = 1
"""Exit status when the two runs disagree or nothing went through the proxies."""


def run_one_process(options: DemoOptions, console: Console | None) -> RunResult:
    """The same training with all experts in this process and no communication."""
    import torch

    from uccl_ep.tools.demo.corpus import load_corpus
    from uccl_ep.tools.demo.one_process import OneProcess
    from uccl_ep.tools.demo.trainer import Trainer

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in each rank, so that sums are added in the same order
    try:
        exchange = OneProcess(options)
        trainer = Trainer(options, load_corpus(), range(options.ranks), exchange, lambda values: None)
        progress = TrainingProgress("one process", options.steps, options.tokens_per_step, console)
        return train(trainer, options.steps, progress, lambda step: drop_the_dead(options, step, trainer, exchange))
    finally:
        torch.set_num_threads(before)


def drop_the_dead(options: DemoOptions, step: int, trainer: Any, exchange: Any) -> None:
    """From the step of --kill on, the one process leaves out what the others have lost: its batches and its experts."""
    if options.doom is not None and options.doom[1] == step:
        trainer.go_on_with(options.survivors)
        exchange.alive = options.survivors


def check_out(out: Path) -> None:
    """Finds out before two minutes of training, not after, that the picture cannot be written."""
    if not out.parent.is_dir():
        raise InvalidArgument(f"--out is {str(out)!r}; its folder {str(out.parent)!r} does not exist")
    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InvalidArgument(f"--out is {str(out)!r}; its suffix must be .png, .pdf or .svg")


def run_demo(options: DemoOptions, out: Path, as_json: bool, console: Console, quiet: bool = False) -> int:
    """Runs everything and returns the exit status. Raises UcclEpError (bad option, failed rank) and Stopped.

    Args:
        as_json: print one JSON object and nothing else. quiet: show no progress, only the comparison.
    """
    options.check()
    check_out(out)
    from uccl_ep.tools import figures
    from uccl_ep.tools.demo.launch import launch
    from uccl_ep.tools.demo.plot import draw

    following = None if as_json or quiet else console
    if following:
        rows = "FP8 rows with scales" if options.fp8 else "bf16 rows"
        following.print(
            f"Training a byte-level MoE on Python's standard library: {options.experts} experts over {options.ranks} "
            f"ranks, {options.ranks_per_node} to a node; {rows}, transport {options.transport}, proxy {options.proxy}.",
            highlight=False,
            soft_wrap=True,
        )
    ranks = launch(options, show=following is not None)
    report = Report(options, ranks, run_one_process(options, following))
    picture = f"Picture: {out}" if figures.available() else f"No picture: {figures.missing()}"
    if figures.available():
        draw(report, out)
    if not as_json:
        show(report, console)
        console.print(picture, highlight=False, markup=False, soft_wrap=True)
    else:
        console.file.write(json.dumps(report.as_json(), indent=2) + "\n")
    return STATUS_DIFFERENT if report.problems() else 0
