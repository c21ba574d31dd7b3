# What one training run leaves behind, and its way through a file from a rank's process to the one that reports.
from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uccl_ep.tools.demo.progress import TrainingProgress


@dataclass
class RunResult:
    """Losses in nats per byte, one per step; `stats` is uccl_ep.Buffer.stats() of one rank, empty without a buffer."""

    losses: list[float]
    validation_loss: float
    seconds: float
    """Time of all training steps, without start-up and validation."""
    parameters: int
    """Numbers that this process trains."""
    stats: dict[str, Any] = field(default_factory=dict)
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    """One for each loss of ranks: step (from 1), lost, error, recover_s (Buffer.recover alone), resumed_at (when the
    step was done after all, time.monotonic) and, from the launcher, pause_s (from the kill to then)."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> RunResult:
        return RunResult(**json.loads(path.read_text(encoding="utf-8")))


def train(
    trainer: Any, steps: int, progress: TrainingProgress, before_step: Callable[[int], None] = lambda step: None
) -> RunResult:
    """Runs all steps and the validation of a uccl_ep.tools.demo.trainer.Trainer."""
    found: list[float] = []
    with progress:
        began = time.perf_counter()
        for step in range(steps):
            before_step(step)
            found.append(trainer.step(step))
            progress.update(step, found[-1], time.perf_counter() - began)
        seconds = time.perf_counter() - began
    parameters = sum(p.numel() for p in (*trainer.dense.parameters(), *trainer.expert_parameters))
    return RunResult(found, trainer.validate(), seconds, parameters)
