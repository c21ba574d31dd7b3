"""How ranks are started: command lines, environment, and what is said when they end badly."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.bench import launch as module
from uccl_ep.tools.bench.launch import commands, environment, launch
from uccl_ep.tools.bench.options import BenchOptions

GLOO = BenchOptions(ranks=3, ranks_per_node=3, peers=("gloo",))


def test_bench_launch_starts_a_process_a_rank(tmp_path: Path) -> None:
    found = commands(GLOO, tmp_path)
    assert [c[-2:] for c in found] == [[str(tmp_path), str(rank)] for rank in range(3)] and found[0][
        0
    ] == sys.executable


def test_bench_launch_starts_one_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "mpirun", lambda: "mpirun")
    one_node = replace(GLOO, peers=("gloo", "openmpi"))
    found = commands(one_node, tmp_path)
    assert len(found) == 1 and found[0][:3] == ["mpirun", "-n", "3"] and "self,tcp" not in found[0]
    assert "self,tcp" in commands(replace(one_node, ranks_per_node=2), tmp_path)[0]
    monkeypatch.setattr(module, "mpirun", lambda: None)
    with pytest.raises(UcclEpError, match="mpirun"):
        commands(one_node, tmp_path)


def test_bench_launch_gives_ranks_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # whatever the caller has
    found = environment()
    assert found["OMP_NUM_THREADS"] == "1" and ("OMPI_ALLOW_RUN_AS_ROOT" in found) == (os.geteuid() == 0)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            "import sys, pathlib; pathlib.Path(sys.argv[1], 'error-1.txt').write_text('ValueError: odd')",
            "rank 1: .*odd",
        ),
        ("import sys; print('came to nothing'); sys.exit(7)", "status 7 .*came to nothing"),
        ("pass", "status 0"),
    ],
)
def test_bench_launch_says_how_it_ended(monkeypatch: pytest.MonkeyPatch, program: str, says: str) -> None:
    monkeypatch.setattr(module, "commands", lambda options, folder: [[sys.executable, "-c", program, str(folder)]])
    with pytest.raises(UcclEpError, match=says):
        launch(GLOO)


def test_bench_launch_ends_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.2)
    monkeypatch.setattr(module, "END_S", 0.2)
    hang = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(module, "commands", lambda options, folder: [hang, hang])
    begin = time.monotonic()
    with pytest.raises(UcclEpError, match="had not ended"):
        launch(replace(GLOO, budget_s=0.1))
    assert time.monotonic() - begin < 50.0  # and not the 600 s that they would have taken
