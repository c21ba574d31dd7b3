# What is shown while a run trains: a bar on a terminal, a plain line now and then elsewhere, nothing for --json.
from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_LINES = 8
"""Lines of a whole run where there is no terminal."""


class TrainingProgress:
    """A context manager; `update` after every step."""

    def __init__(self, title: str, steps: int, tokens_per_step: int, console: Console | None) -> None:
        """console None shows nothing."""
        self.title, self.steps, self.tokens_per_step = title, steps, tokens_per_step
        self.console = console
        self.every = max(1, steps // PLAIN_LINES)
        self.bar: Progress | None = None
        if console is not None and console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),  # as wide as there is room for
                TextColumn("{task.completed}/{task.total} loss {task.fields[loss]} {task.fields[speed]} tok/s"),
                TimeRemainingColumn(),
                console=console,
                expand=True,
            )
            self.task = self.bar.add_task(title, total=steps, loss="-", speed="-")

    def __enter__(self) -> TrainingProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, step: int, loss: float, seconds: float) -> None:
        """`step` counts from 0; `seconds` since the first step began."""
        speed = f"{(step + 1) * self.tokens_per_step / max(seconds, 1e-9):,.0f}"
        if self.bar:
            self.bar.update(self.task, completed=step + 1, loss=f"{loss:.4f}", speed=speed)
        elif self.console and ((step + 1) % self.every == 0 or step + 1 == self.steps):
            line = f"{self.title}: step {step + 1}/{self.steps}  loss {loss:.4f}  {speed} tokens/s"
            self.console.print(line, highlight=False, soft_wrap=True)
