"""What a run leaves behind: every step's loss, a time, exact numbers after the way through a file."""

from __future__ import annotations

from pathlib import Path

from tests.uccl_ep.tools.demo.worlds import result_of, small, text
from uccl_ep.tools.demo.one_process import OneProcess
from uccl_ep.tools.demo.progress import TrainingProgress
from uccl_ep.tools.demo.result import RunResult, train
from uccl_ep.tools.demo.trainer import Trainer


def test_a_result_survives_its_file_to_the_last_bit(tmp_path: Path) -> None:
    options = small()
    result = result_of(options, 3, [1 / 3, 2.0**-40, 5.1])
    result.save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json") == result


def test_train_reports_each_step_and_counts_all_parameters() -> None:
    options = small(ranks=2, ranks_per_node=1, steps=3)
    trainer = Trainer(options, text(), range(2), OneProcess(options), lambda values: None)
    again = Trainer(options, text(), range(2), OneProcess(options), lambda values: None)
    result = train(trainer, 3, TrainingProgress("x", 3, 1, None))
    assert result.losses == [again.step(step) for step in range(3)]
    assert result.validation_loss == again.validate()
    assert result.seconds > 0
    experts = options.layers * options.experts * (128 * 128 + 64 * 128)
    block = 2 * 128 + 128 * 384 + 128 * 128 + 128 * 8 + 128 * 256 + 128 * 128
    assert result.parameters == experts + options.layers * block + 2 * 256 * 128 + 128
    assert result.stats == {}
