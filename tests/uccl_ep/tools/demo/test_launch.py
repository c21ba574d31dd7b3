"""The launcher: which rank is blamed; it kills the doomed one in mid-step, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.uccl_ep.tools.demo.worlds import small
from uccl_ep.tools.demo.job import error_file, log_file
from uccl_ep.tools.demo.launch import RankFailed, check_ends, first_failure, launch
from uccl_ep.tools.demo.run import run_demo


def tell(job: Path, rank: int, time: float, text: str) -> None:
    details = {"time": time, "kind": "PeerLost", "text": text, "trace": f"trace of {rank}"}
    error_file(job, rank).write_text(json.dumps(details))


def test_the_first_to_fail_is_named_not_the_lowest(tmp_path: Path) -> None:
    tell(tmp_path, 0, 20.0, "rank 2 lost in combine")
    tell(tmp_path, 2, 10.0, "disk full")
    error = first_failure(tmp_path, {0: 1, 2: 1})
    assert str(error) == "rank 2: PeerLost: disk full"
    assert error.trace == "trace of 2"


def test_a_rank_that_crashed_explains_the_others(tmp_path: Path) -> None:
    tell(tmp_path, 0, 10.0, "rank 1 lost in dispatch")
    log_file(tmp_path, 1).write_text("Fatal Python error: Segmentation fault")
    error = first_failure(tmp_path, {0: 1, 1: -signal.SIGSEGV})
    assert str(error) == "rank 1 was killed by SIGSEGV and left no message"
    assert "Segmentation fault" in error.trace


def test_a_rank_killed_for_memory_is_named_when_nobody_said_a_word(tmp_path: Path) -> None:
    error = first_failure(tmp_path, {2: -signal.SIGKILL})
    assert str(error) == "rank 2 was killed by SIGKILL and left no message"


def test_an_exit_status_is_told_and_a_torn_message_skipped(tmp_path: Path) -> None:
    error_file(tmp_path, 1).write_text('{"time": 1')
    assert "rank 0 ended with exit status 3" in str(first_failure(tmp_path, {0: 3, 1: 1}))


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "per_node"), [(2, 2), pytest.param(0, 2, marks=pytest.mark.slow)])
def test_demo_goes_on_without_a_killed_rank(tmp_path: Path, victim: int, per_node: int) -> None:
    options = small(steps=5, ranks_per_node=per_node, kill=f"{victim}@step3")
    screen = StringIO()
    out = tmp_path / "picture.png"
    assert run_demo(options, out, as_json=True, console=Console(file=screen, width=200)) == 0
    found = json.loads(screen.getvalue())
    assert found["problems"] == [] and found["training_difference"] <= found["tolerance"]
    (loss,) = found["interruptions"]
    assert (loss["step"], loss["lost"]) == (3, [victim])
    assert f"rank {victim} (host " in loss["error"] and 0 < loss["recover_s"] < loss["pause_s"] < 60
    assert [stats["rank"] for stats in found["stats"]] == [rank for rank in range(4) if rank != victim]
    assert found["bytes_sent"][victim] == [0] * 4 and len(found["expert_parallel"]["losses"]) == 5
    assert out.stat().st_size > 10_000


@pytest.mark.slow
def test_launch_says_it_when_nobody_could_be_killed(tmp_path: Path) -> None:
    """The victim fails by itself before its step."""
    os.environ["UCCL_EP_TIMEOUT_S"] = "nonsense"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        with pytest.raises(RankFailed, match="UCCL_EP_TIMEOUT_S"):
            launch(small(ranks=2, experts=8, kill="1@step2"), show=False)
    finally:
        del os.environ["UCCL_EP_TIMEOUT_S"]
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_launch_blames_only_whom_it_has_not_killed(tmp_path: Path) -> None:
    check_ends(tmp_path, {0: None, 1: -signal.SIGKILL, 2: 0}, 1)
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        check_ends(tmp_path, {0: None, 1: -signal.SIGKILL, 2: 0}, None)
    with pytest.raises(RankFailed, match="rank 2 ended with exit status 3"):
        check_ends(tmp_path, {0: 0, 1: -signal.SIGKILL, 2: 3}, 1)
