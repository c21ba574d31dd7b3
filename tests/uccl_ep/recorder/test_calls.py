"""Calls: what is kept of them, numbers, hooks, errors, and ranges that torch's profiler sees."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from uccl_ep import Buffer
from uccl_ep.recorder.calls import DEPTH, CallLog, log_of, recorded


class Thing:
    """Has a recorder as a Buffer has one."""

    def __init__(self, log: CallLog | None) -> None:
        self.runtime = None if log is None else SimpleNamespace(recorder=SimpleNamespace(calls=log))

    @recorded("work")
    def work(self, x: torch.Tensor, *, y: torch.Tensor | None = None, fail: bool = False) -> int:
        """Documented."""
        if fail:
            raise KeyError("no")
        return x.numel()


def test_recorder_calls_are_kept_with_shapes_times_and_errors() -> None:
    log = CallLog()
    thing = Thing(log)
    assert thing.work(torch.zeros(2, 3), y=torch.zeros(4)) == 6
    with pytest.raises(KeyError):
        thing.work(torch.zeros(0, 8), fail=True)
    first, second = log.calls
    assert (first.name, first.number, first.shapes, first.error) == ("work", 1, [[2, 3], [4]], "")
    assert (second.number, second.shapes, second.error) == (2, [[0, 8]], "KeyError")
    assert 0 < first.begin_ns <= first.end_ns <= second.begin_ns <= second.end_ns


def test_recorder_calls_under_way_have_no_end() -> None:
    log = CallLog()
    with log.call("dispatch"):
        log.note("throughput_dispatch")
        (call,) = log.calls
        assert call.end_ns == 0 and [name for _, name in call.kernels] == ["throughput_dispatch"]
        for _ in range(100):
            log.note("rank_barrier")
    assert call.end_ns and len(call.kernels) == 16  # a call that never ends does not grow


def test_recorder_calls_keep_the_last() -> None:
    log = CallLog()
    for _ in range(DEPTH + 10):
        with log.call("barrier"):
            pass
    assert len(log.calls) == DEPTH and log.calls[-1].number == DEPTH + 10 and log.calls[0].number == 11


def test_recorder_calls_hooks_have_their_calls_number() -> None:
    log, ran = CallLog(), []
    hooks = []
    for _ in range(2):
        with log.call("low_latency_dispatch"):
            hooks.append(log.hook(lambda: ran.append(True)))
    for hook in hooks:
        hook()
    assert [(c.name, c.number) for c in log.calls][2:] == [
        ("low_latency_dispatch (receive)", 1),
        ("low_latency_dispatch (receive)", 2),
    ]
    assert len(ran) == 2
    bare = hooks[0]
    assert CallLog().hook(bare) is bare  # outside of any call


def test_recorder_calls_without_a_recorder_only_run() -> None:
    assert Thing(None).work(torch.zeros(5)) == 5
    assert log_of(None) is None and log_of(object()) is None


def test_recorder_calls_decorated_methods_look_as_before() -> None:
    assert Thing.work.__doc__ == "Documented." and list(inspect.signature(Thing.work).parameters)[1:] == [
        "x",
        "y",
        "fail",
    ]
    assert "num_worst_tokens" in inspect.signature(Buffer.dispatch).parameters


def test_recorder_calls_are_ranges_of_the_profiler() -> None:
    log = CallLog()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with log.call("combine"):
            pass
    with log.call("combine"):  # nobody looks: no range
        pass
    names = [event.name for event in profile.events()]
    assert names.count("uccl_ep.combine 1") == 1 and "uccl_ep.combine 2" not in names


def test_recorder_marks_nothing_where_torch_has_no_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    for name in ("mark", "range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, missing)
    with CallLog(nvtx=True).call("dispatch"):
        pass


def test_recorder_calls_are_nvtx_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(torch.cuda.nvtx, "mark", lambda text: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda text, *a, **k: said.append(text))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("end"))
    with CallLog(nvtx=True).call("dispatch"):
        said.append("inside")
    assert said == ["uccl_ep.dispatch 1", "inside", "end"]
