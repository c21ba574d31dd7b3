"""Rounds for a profiler: they run to their end, and a rank that fails is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bench.programs import ROOT

SMALL = {"mode": "throughput", "ranks": 2, "ranks_per_node": 2, "tokens": 16, "hidden": 256, "topk": 2, "experts": 4}


def run(options: dict[str, Any], *package: str) -> subprocess.CompletedProcess[str]:
    worker = str(ROOT / "bench" / "flame_worker.py")
    return subprocess.run(
        [sys.executable, worker, json.dumps(options), "3", *package],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_flame_worker_plays_rounds(mode: str) -> None:
    done = run({**SMALL, "mode": mode, "unknown_to_older_trees": 1})
    assert done.returncode == 0, done.stderr


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
    done = run(SMALL, "", *pipes)
    perf.join(30.0)
    os.close(control), os.close(ack)
    assert done.returncode == 0, done.stderr
    assert heard == ["enable\n", "disable\n"]


def test_flame_worker_refuses_another_package_than_it_was_given(tmp_path: Path) -> None:
    done = run(SMALL, str(tmp_path))
    assert done.returncode != 0
    assert f"not the one in {tmp_path}" in done.stderr or "No module named 'uccl_ep'" in done.stderr


def test_flame_worker_counts_ranks_that_fail() -> None:
    done = run({**SMALL, "experts": 3})  # no multiple of the ranks
    assert done.returncode == 2
    assert "Traceback" in done.stderr
