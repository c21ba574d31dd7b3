# What the demo has to show: the two losses side by side and whether they agree, speed, rows and bytes by path, and the
# wait per peer; as tables for people and as JSON for programs. Sees results only, no torch.
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from uccl_ep.tools.demo.options import LOSS_TOLERANCE, DemoOptions
from uccl_ep.tools.demo.result import RunResult

OWN_RANK = "same rank"
INSIDE_NODE = "inside the node"
BETWEEN_NODES = "between nodes"


@dataclass(frozen=True)
class PathTotal:
    """Rows and bytes that all ranks together sent one way."""

    path: str
    via: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Report:
    options: DemoOptions
    ranks: Sequence[RunResult]
    """One result per rank of the expert-parallel run, in rank order."""
    one_process: RunResult

    @property
    def training_difference(self) -> float:
        return abs(self.ranks[0].losses[-1] - self.one_process.losses[-1])

    @property
    def validation_difference(self) -> float:
        return abs(self.ranks[0].validation_loss - self.one_process.validation_loss)

    def interruptions(self) -> list[dict[str, Any]]:
        """Ranks that were killed (--kill): what the first survivor says, with the longest pause of all survivors."""
        found = []
        for i, first in enumerate(self.ranks[0].interruptions):
            found.append({**first, "pause_s": max(result.interruptions[i]["pause_s"] for result in self.ranks)})
        return found

    def paths(self) -> list[PathTotal]:
        """Totals by path, nearest first."""
        totals: dict[tuple[str, str], list[int]] = {}
        for result in self.ranks:
            for peer in result.stats["peers"]:
                if peer["via"] == "absent":
                    continue
                path = INSIDE_NODE if peer["node_local"] else BETWEEN_NODES
                if peer["rank"] == result.stats["rank"]:
                    path = OWN_RANK
                total = totals.setdefault((path, str(peer["via"])), [0, 0])
                total[0] += peer["rows_sent"]
                total[1] += peer["bytes_sent"]
        order = (OWN_RANK, INSIDE_NODE, BETWEEN_NODES)
        return [PathTotal(*key, *totals[key]) for key in sorted(totals, key=lambda key: (order.index(key[0]), key[1]))]

    def matrix(self, name: str) -> list[list[int]]:
        """A peer counter (such as bytes_sent, wait_ns) as rows of ranks and columns of peers."""
        table = [[0] * self.options.ranks for _ in range(self.options.ranks)]
        for result in self.ranks:
            for peer in result.stats["peers"]:
                table[result.stats["rank"]][peer["rank"]] = int(peer[name])
        return table

    def proxy(self, name: str) -> int:
        """A proxy counter (such as commands, write_bytes) over all ranks."""
        return sum(int(result.stats["proxy"].get(name, 0)) for result in self.ranks)

    def problems(self) -> list[str]:
        """Why the run proves less than it should; empty when all is well."""
        found = []
        for what, difference in (
            ("training", self.training_difference),
            ("validation", self.validation_difference),
        ):
            if not difference <= LOSS_TOLERANCE:  # written so that a NaN is a problem too
                found.append(
                    f"the final {what} losses differ by {difference:.2e}, more than {LOSS_TOLERANCE:.0e}: both runs "
                    f"start from the same weights, read the same bytes and round at the same places, so rows were "
                    f"lost, mixed up or rounded elsewhere on their way between ranks{self.first_difference()}"
                )
        if self.options.kill and not self.interruptions():
            found.append(f"nobody noticed that a rank was killed (--kill {self.options.kill})")
        if self.options.nodes > 1 and self.proxy("write_bytes") == 0:
            found.append(
                f"no byte went through the proxies although the {self.options.ranks} ranks are spread over "
                f"{self.options.nodes} nodes: the counters in Buffer.stats() are wrong or the nodes are not apart"
            )
        return found

    def interruption_text(self) -> list[str]:
        """A sentence for each rank that was killed."""
        return [
            f"Rank {', '.join(map(str, loss['lost']))} was killed in the middle of step {loss['step']} "
            f"({loss['error']}). The others agreed on who is left and had a new life of the buffer "
            f"{loss['recover_s']:.2f} s after they noticed; the step was done without the dead {loss['pause_s']:.2f} s "
            f"after the kill. The one process drops the same experts and batches from step {loss['step']} on. "
            "Rows, bytes and waits below are of the new life."
            for loss in self.interruptions()
        ]

    def first_difference(self) -> str:
        """Where a search should start."""
        for step, (ours, theirs) in enumerate(zip(self.ranks[0].losses, self.one_process.losses, strict=True)):
            if ours != theirs:
                return f" (first unequal at step {step + 1}: {ours!r} and {theirs!r})"
        return " (all training steps are equal)"

    def speed(self, result: RunResult) -> float:
        """Tokens (bytes of text) per second of training."""
        return self.options.steps * self.options.tokens_per_step / result.seconds

    def as_json(self) -> dict[str, Any]:
        ours = self.ranks[0]
        return {
            "options": dataclasses.asdict(self.options),
            "expert_parallel": self.run_json(ours),
            "one_process": self.run_json(self.one_process),
            "training_difference": self.training_difference,
            "validation_difference": self.validation_difference,
            "tolerance": LOSS_TOLERANCE,
            "paths": [dataclasses.asdict(path) for path in self.paths()],
            "bytes_sent": self.matrix("bytes_sent"),
            "wait_ns": self.matrix("wait_ns"),
            "stats": [result.stats for result in self.ranks],
            "interruptions": self.interruptions(),
            "problems": self.problems(),
        }

    def run_json(self, result: RunResult) -> dict[str, Any]:
        return {
            "loss": result.losses[-1],
            "validation_loss": result.validation_loss,
            "losses": result.losses,
            "seconds": result.seconds,
            "tokens_per_second": self.speed(result),
        }


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def loss_table(report: Report) -> Table:
    options, ours, theirs = report.options, report.ranks[0], report.one_process
    table = Table(title=f"{options.steps} steps, {options.experts} experts, top-{options.topk}", title_justify="left")
    table.add_column("")
    for heading in (f"EP, {options.ranks} ranks", "one process", "difference"):
        table.add_column(heading, justify="right")

    def losses_row(name: str, left: float, right: float, difference: float) -> None:
        colour = "green" if difference <= LOSS_TOLERANCE else "red"
        table.add_row(name, f"{left:.6f}", f"{right:.6f}", f"[{colour}]{difference:.1e}[/{colour}]")

    losses_row("final loss", ours.losses[-1], theirs.losses[-1], report.training_difference)
    losses_row("validation loss", ours.validation_loss, theirs.validation_loss, report.validation_difference)
    table.add_row("tokens/s", f"{report.speed(ours):,.0f}", f"{report.speed(theirs):,.0f}", "")
    table.add_row("parameters in a process", f"{ours.parameters:,}", f"{theirs.parameters:,}", "")
    return table


def path_table(report: Report) -> Table:
    table = Table(title="rows sent, by path", title_justify="left")
    for heading in ("path", "via"):
        table.add_column(heading)
    for heading in ("rows", "bytes"):
        table.add_column(heading, justify="right")
    for path in report.paths():
        table.add_row(path.path, path.via, f"{path.rows:,}", human_bytes(path.bytes))
    table.add_section()
    commands, writes = report.proxy("commands"), report.proxy("writes")
    table.add_row(
        "through the proxies", f"{commands:,} commands", f"{writes:,} writes", human_bytes(report.proxy("write_bytes"))
    )
    return table


def wait_table(report: Report) -> Table:
    table = Table(title="wait per peer, ms a step", title_justify="left")
    table.add_column("")
    for peer in range(report.options.ranks):
        table.add_column(f"for rank {peer}", justify="right")
    for rank, waits in enumerate(report.matrix("wait_ns")):
        table.add_row(f"rank {rank}", *(f"{wait / 1e6 / report.options.steps:.2f}" for wait in waits))
    return table


def show(report: Report, console: Console) -> None:
    for sentence in report.interruption_text():
        console.print(sentence, highlight=False, soft_wrap=True)
    for table in (loss_table(report), path_table(report), wait_table(report)):
        console.print(table)
    for problem in report.problems():
        console.print(f"problem: {problem}", style="bold red", markup=False, highlight=False)
    if not report.problems():
        console.print(
            f"The losses agree within {LOSS_TOLERANCE:.0e} "
            f"({report.ranks[0].losses[-1]:.6f} and {report.one_process.losses[-1]:.6f}).",
            style="green",
            highlight=False,
        )
