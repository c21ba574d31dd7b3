"""A rank that fails hands its error to the parent instead of dying with a trace."""

from __future__ import annotations

import queue

import pytest

from uccl_ep.bench import worker
from uccl_ep.bench.options import BenchOptions


def test_bench_worker_reports_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCCL_EP_RANKS_PER_NODE", "UCCL_EP_TRANSPORT"):
        monkeypatch.setenv(name, "")  # the worker sets them for its process; this puts them back

    def broken(rank: int, options: BenchOptions, port: int) -> dict[str, object]:
        raise OSError("no route")

    monkeypatch.setattr(worker, "_measure", broken)
    results: queue.Queue[tuple[int, object, str]] = queue.Queue()
    worker.run_rank(3, BenchOptions(), 1, results)
    assert results.get_nowait() == (3, None, "OSError: no route")
