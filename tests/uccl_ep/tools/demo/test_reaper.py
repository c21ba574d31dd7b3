"""The launcher of --kill: it kills the doomed rank in mid-step, the others end well, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.uccl_ep.tools.demo.worlds import small
from uccl_ep.tools.demo.launch import RankFailed, Stopped
from uccl_ep.tools.demo.reaper import check_ends, launch_and_kill, signals_stop
from uccl_ep.tools.demo.run import run_demo


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


def test_reaper_says_it_when_nobody_could_be_killed(tmp_path: Path) -> None:
    """The victim fails by itself before its step."""
    os.environ["UCCL_EP_TIMEOUT_S"] = "nonsense"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        with pytest.raises(RankFailed, match="UCCL_EP_TIMEOUT_S"):
            launch_and_kill(small(ranks=2, experts=8, kill="1@step2"), show=False)
    finally:
        del os.environ["UCCL_EP_TIMEOUT_S"]
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


class Ended:
    def __init__(self, code: int | None) -> None:
        self._code = code

    def poll(self) -> int | None:
        return self._code


def test_reaper_blames_only_whom_it_has_not_killed(tmp_path: Path) -> None:
    check_ends(tmp_path, [Ended(None), Ended(-signal.SIGKILL), Ended(0)], 1)  # type: ignore[list-item]
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL"):
        check_ends(tmp_path, [Ended(None), Ended(-signal.SIGKILL), Ended(0)], None)  # type: ignore[list-item]
    with pytest.raises(RankFailed, match="rank 2 ended with exit status 3"):
        check_ends(tmp_path, [Ended(0), Ended(-signal.SIGKILL), Ended(3)], 1)  # type: ignore[list-item]


def test_reaper_turns_signals_into_an_end_and_gives_them_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, signals_stop():
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(5)
    assert stopped.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
