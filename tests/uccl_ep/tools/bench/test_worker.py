"""A rank: its spec, the order of sides, a round, wrong rows, and an error that becomes a file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from uccl_ep.tools.bench import worker
from uccl_ep.tools.bench.inputs import Inputs, expected_factor
from uccl_ep.tools.bench.options import BenchOptions

OPTIONS = BenchOptions(ranks=2, tokens=6, hidden=128, topk=2, experts=4, peers=("gloo",))


class Right:
    """A side that knows the answer."""

    name = "right"

    def dispatch(self, inputs: Inputs) -> torch.Tensor:
        return inputs.x.clone()

    def experts(self, state: torch.Tensor) -> None:
        self.seen = state

    def combine(self, inputs: Inputs, state: torch.Tensor) -> torch.Tensor:
        assert state is self.seen
        return (state.float() * expected_factor(OPTIONS, inputs)).bfloat16()


class Stale(Right):
    """A side that returns the rows of its first round for ever."""

    name = "stale"

    def combine(self, inputs: Inputs, state: torch.Tensor) -> torch.Tensor:
        self.kept = getattr(self, "kept", None) if hasattr(self, "kept") else super().combine(inputs, state)
        assert self.kept is not None
        return self.kept


def test_bench_worker_plays_and_checks_a_round() -> None:
    rounds = worker.Rounds(OPTIONS, 1)
    barriers: list[int] = []
    for number in range(3):
        dispatch, combine, cpu = rounds.play(Right(), number, lambda: barriers.append(1))
        assert dispatch > 0 and combine > 0 and cpu >= 0
    assert len(barriers) == 12  # before and after each phase


def test_bench_worker_begins_what_is_not_timed_when_all_have_ended() -> None:
    steps: list[str] = []

    class Told(Right):
        def dispatch(self, inputs: Inputs) -> torch.Tensor:
            steps.append("dispatch")
            return super().dispatch(inputs)

        def experts(self, state: torch.Tensor) -> None:
            steps.append("experts")
            super().experts(state)

        def combine(self, inputs: Inputs, state: torch.Tensor) -> torch.Tensor:
            steps.append("combine")
            return super().combine(inputs, state)

    worker.Rounds(OPTIONS, 0).play(Told(), 0, lambda: steps.append("all"))
    assert steps == ["all", "dispatch", "all", "experts", "all", "combine", "all"]


def test_bench_worker_sees_stale_rows() -> None:
    rounds, side = worker.Rounds(OPTIONS, 0), Stale()
    rounds.play(side, 0, lambda: None)
    with pytest.raises(ValueError, match="stale returned wrong rows in round 1"):
        rounds.play(side, 1, lambda: None)


@pytest.mark.parametrize("count", [2, 3])
def test_bench_worker_every_side_is_first_equally_often(count: int) -> None:
    sides = [f"side {i}" for i in range(count)]
    firsts = [worker.order(sides, number)[0] for number in range(2 * count)]
    assert all(firsts.count(side) == 2 for side in sides)
    assert all(sorted(worker.order(sides, number)) == sides for number in range(2 * count))


def test_bench_worker_reads_what_launch_wrote(tmp_path: Path) -> None:
    (tmp_path / worker.SPEC).write_text(json.dumps({"options": asdict(OPTIONS), "port": 77}))
    assert worker.load_spec(tmp_path) == (OPTIONS, 77)


def test_bench_worker_reports_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in worker.variables(OPTIONS):
        monkeypatch.setenv(name, "")  # the worker sets them for its process; this puts them back
    (tmp_path / worker.SPEC).write_text(json.dumps({"options": asdict(OPTIONS), "port": 77}))

    def broken(rank: int, options: BenchOptions, port: int) -> dict[str, Any]:
        raise OSError("no route")

    monkeypatch.setattr(worker, "measure", broken)
    assert worker.main([str(tmp_path), "3"]) == 1
    assert os.environ["UCCL_EP_LOW_LATENCY_COMBINE"] == "auto" and os.environ["UCCL_EP_RANKS_PER_NODE"] == "2"
    assert (tmp_path / "error-3.txt").read_text() == "OSError: no route"
    monkeypatch.setattr(worker, "measure", lambda rank, options, port: {"rank": rank, "port": port})
    assert worker.main([str(tmp_path), "0"]) == 0
    assert json.loads((tmp_path / "rank-0.json").read_text()) == {"rank": 0, "port": 77}


def test_bench_worker_tries_forms_until_they_are_warm() -> None:
    took = {"once per rank": [9.0, 1.0], "once per expert": [3.0, 2.0], "ours": [1.0, 1.0]}
    forms = {"gloo": [SimpleNamespace(name="gloo", form=form) for form in ("once per rank", "once per expert")]}
    ours = SimpleNamespace(name="ours", form="ours")
    tried = worker.try_forms(ours, forms, lambda side, number: took[side.form][number], 2)
    assert tried == {"gloo": {"once per rank": 1.0, "once per expert": 2.0}}
