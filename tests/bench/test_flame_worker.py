"""Rounds for a profiler: they run to their end, and a rank that fails is counted."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.flame import run_with_all_below
from bench.programs import ROOT

SMALL = {"mode": "throughput", "ranks": 2, "ranks_per_node": 2, "tokens": 16, "hidden": 256, "topk": 2, "experts": 4}


def run(options: dict[str, Any], *package: str) -> tuple[int, str]:
    worker = str(ROOT / "bench" / "flame_worker.py")
    command = [sys.executable, worker, json.dumps(options), "3", *package]
    return run_with_all_below(command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, 120.0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_flame_worker_plays_rounds(mode: str) -> None:
    status, said = run({**SMALL, "mode": mode, "unknown_to_older_trees": 1})
    assert status == 0, said


@pytest.mark.slow
def test_flame_worker_has_perf_sample_the_rounds_between(tmp_path: Path) -> None:
    pipes = [str(tmp_path / name) for name in ("control", "ack")]
    for pipe in pipes:
        os.mkfifo(pipe)
    heard: list[str] = []
    control, ack = (os.open(pipe, os.O_RDWR) for pipe in pipes)  # perf holds both open

    def answer() -> None:
        for _ in range(2):
            heard.append(os.read(control, 100).decode())
            os.write(ack, b"ack\n")

    perf = threading.Thread(target=answer, daemon=True)
    perf.start()
    status, said = run(SMALL, "", *pipes)
    perf.join(30.0)
    os.close(control), os.close(ack)
    assert status == 0, said
    assert heard == ["enable\n", "disable\n"]


def test_flame_worker_refuses_another_package_than_it_was_given(tmp_path: Path) -> None:
    status, said = run(SMALL, str(tmp_path))
    assert status != 0
    assert f"not the one in {tmp_path}" in said or "No module named 'uccl_ep'" in said


@pytest.mark.slow
def test_flame_worker_counts_ranks_that_fail() -> None:
    status, said = run({**SMALL, "experts": 3})  # no multiple of the ranks
    assert status == 2
    assert "Traceback" in said
