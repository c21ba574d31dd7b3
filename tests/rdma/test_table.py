"""Reports of the guest and the table made of them: nothing that failed or was left out is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rdma import __main__ as command
from tests.rdma.guest.machine import NO_CODE, Outcome
from tests.rdma.guest.packages import Unavailable
from tests.rdma.inside.report import Report, Row, read_all
from tests.rdma.table import render


def report(step: str = "kernels") -> Report:
    made = Report(step, rows_compared=1200, seconds=2.5)
    made.add("low latency, 8 ranks", "1,200 rows right")
    return made


def test_rdma_table_reports_survive_the_share(tmp_path: Path) -> None:
    sent = report()
    sent.add("link down", "no event", False)
    sent.skipped.append("libfabric: not in this build")
    sent.write(tmp_path)
    (read,) = read_all(tmp_path, ["kernels"])
    assert read == sent and not read.good and (read.passed, len(read.rows)) == (1, 2)


def test_rdma_table_a_step_without_a_report_has_failed(tmp_path: Path) -> None:
    (tmp_path / "rate.json").write_text('{"step": "rate", "rows": [')
    for found in read_all(tmp_path, ["faults", "rate"]):
        assert not found.good and "left no report" in found.failure


def test_rdma_table_shows_everything() -> None:
    bad = Report(
        "faults", rows=[Row("stale key", "no event", False)], skipped=["pyverbs"], failure="TimeoutError: over"
    )
    text = render([report(), bad], Outcome(1, True, 61.0, 2, cpu_seconds=83.0), "emulated processor", 70.0)
    for part in ("FAILED stale key", "FAILED TimeoutError: over", "SKIPPED pyverbs", "1,200 rows right", "2 start(s)"):
        assert part in text
    assert "83 s of this host's processors" in text
    assert "checks passed 1, failed 2, SKIPPED 1" in text and "reference 1,200" in text


def test_rdma_table_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    bad = Report("rate", rows=[Row("7168 byte writes", "ratio 0.1", False)])
    assert command.judge([report()], Outcome(0, True, 1.0)) == 0
    assert command.judge([report(), bad], Outcome(1, True, 1.0)) == 1
    assert command.judge([report()], Outcome(1, True, 1.0)) == 1  # all good, and still it says it failed
    assert command.judge([report()], Outcome(NO_CODE, True, 1.0, why="panic")) == 1
    assert "rate" in capsys.readouterr().out


@pytest.mark.parametrize(("required", "code", "word"), [("1", 1, "FAILED"), ("", 77, "NOT RUN, SKIPPED")])
def test_rdma_table_a_skip_is_loud_or_a_failure(
    required: str, code: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(cache: Path) -> None:
        raise Unavailable("qemu-system-x86 is not installed")

    monkeypatch.setenv("UCCL_EP_REQUIRE_TOOLS", required)
    monkeypatch.setattr(command.image, "prepare", prepare)
    monkeypatch.setattr(command.sys, "argv", ["rdma", "--only", "devices,rate"])
    assert command.main() == code
    assert f"{word}: 2 steps" in capsys.readouterr().out


def test_rdma_table_unknown_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.sys, "argv", ["rdma", "--only", "devices,wishes"])
    with pytest.raises(SystemExit):
        command.main()
