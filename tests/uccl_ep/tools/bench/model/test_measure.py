"""Measured runs: one small job in a child process, and failures that are told."""

from __future__ import annotations

import os
from typing import Any

import pytest

from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.tools.bench.model import measure as module
from uccl_ep.tools.bench.model.growth import GrowthShape
from uccl_ep.tools.bench.model.measure import BASE, SWEEPS, measure, measured_growth, measured_shape

TINY = GrowthShape(tokens=4, hidden=128, topk=2, ranks=2, nodes=2, experts=4)
NAMES = {f"{mode}: {part} time" for mode in ("low latency", "throughput") for part in ("dispatch", "combine")}


@pytest.mark.slow
@pytest.mark.timeout(120)  # a process that loads torch
def test_measure_times_jobs_and_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCCL_EP_TRANSPORT", "tcp")
    times = measure([TINY, TINY], 1)
    assert len(times) == 2
    for found in times:
        assert set(found) == NAMES and all(0 < seconds < 60 for seconds in found.values())
    assert os.environ["UCCL_EP_TRANSPORT"] == "tcp"


@pytest.mark.slow
@pytest.mark.timeout(120)  # likewise
def test_measure_tells_why_a_job_failed() -> None:
    with pytest.raises(UcclEpError, match="measured runs failed: InvalidArgument.*hidden"):
        measure([GrowthShape(tokens=4, hidden=100, topk=2, ranks=2, nodes=2, experts=4)], 1)


def test_measure_sweeps_change_one_size_of_a_job_that_can_run() -> None:
    for axis, sizes in SWEEPS.items():
        assert getattr(BASE, axis) in sizes
        for size in sizes:
            shape = measured_shape(axis, size)
            assert shape.ranks % shape.nodes == 0 and shape.topk <= shape.num_experts
            assert getattr(shape, axis) == size


def test_measure_growth_puts_times_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(shapes: list[GrowthShape], rounds: int) -> list[dict[str, float]]:
        assert rounds == 3
        return [{"x": float(shape.tokens * shape.topk**2)} for shape in shapes]

    monkeypatch.setattr(module, "measure", fake)
    tokens, topk = measured_growth(("tokens", "topk"), 3)
    assert tokens["fits"]["x"]["exponent"] == pytest.approx(1.0) and tokens["sizes"] == list(SWEEPS["tokens"])
    assert topk["fits"]["x"]["exponent"] == pytest.approx(2.0)
    assert topk["fits"]["x"]["growth"] == "worse than linear"


def test_measure_refuses_no_rounds() -> None:
    with pytest.raises(InvalidArgument, match="--rounds"):
        measured_growth(("tokens",), 0)


def test_measure_notices_a_child_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        exitcode = -9

        def __init__(self, **_: Any) -> None: ...
        def start(self) -> None: ...
        def join(self, _: float) -> None: ...
        def is_alive(self) -> bool:
            return False

    class Context:
        Process = Dead

        def Queue(self) -> Any:  # noqa: N802 - multiprocessing's name
            import queue

            class Empty:
                def get(self, timeout: float) -> None:
                    raise queue.Empty

            return Empty()

    monkeypatch.setattr(module.multiprocessing, "get_context", lambda _: Context())
    with pytest.raises(UcclEpError, match="status -9"):
        measure([TINY], 1)
