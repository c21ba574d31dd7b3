"""Calls interrupted between their kernels and their end: others get right rows, and memory is kept until then."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import case, layout_arguments, low_latency, same, throughput
from uccl_ep import Buffer, EventHandle, ThreadGroup, reference, run_ranks
from uccl_ep.device.kept_until_run import KeptUntilRun, locals_of
from uccl_ep.reference import ThroughputInput

CASE = case(11, "uniform", num_ranks=2, num_experts=8, num_topk=2, hidden=256, max_tokens=64)
_WAIT_S = 60.0


class Recorder:
    """A device that only notes what it is told to hold."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def break_off(self, held: Any) -> None:
        self.held.append(held)


def test_broken_off_hands_over_what_every_frame_held() -> None:
    device, outer, inner = Recorder(), object(), object()

    def fails(given: object) -> None:
        made = inner
        raise KeyboardInterrupt(made is given)

    def call(given: object) -> None:
        fails([given])

    with pytest.raises(KeyboardInterrupt), KeptUntilRun(device):  # type: ignore[arg-type]
        call(outer)
    (held,) = device.held
    assert any(value is inner for value in held) and any(value is outer for value in held)
    with KeptUntilRun(device):  # type: ignore[arg-type]
        pass
    assert len(device.held) == 1


def test_broken_off_locals_of_a_traceback() -> None:
    assert locals_of(None) == []
    mine = object()
    try:
        raise ValueError
    except ValueError as error:
        assert mine in locals_of(error.__traceback__)


def interrupt(buffer: Buffer, call: Callable[[], Any]) -> None:
    """Ctrl-C at the moment when everything has been queued."""

    def end(held: object = None, sent_on: int | None = None) -> None:
        raise KeyboardInterrupt

    device: Any = buffer._device
    device.end = end
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        del device.end
    gc.collect()


def spoil(num_bytes: int) -> list[torch.Tensor]:
    """Tensors that take memory which has been given back."""
    return [torch.full((num_bytes,), 255, dtype=torch.uint8) for _ in range(16)]


def interrupted_dispatch(group: ThreadGroup, interrupted: threading.Event, on_gpu: bool) -> Any:
    rank = group.rank()
    with throughput(group) as buffer:
        ids = CASE.topk_idx[rank]
        x = [CASE.x[rank].clone()]
        alive = weakref.ref(x[0])
        handle = buffer.dispatch(x[0], **layout_arguments(buffer, ids, CASE.shape.num_experts), topk_idx=ids,
                                 topk_weights=CASE.topk_weights[rank])[4]  # fmt: skip
        buffer.barrier()  # nothing is under way
        if rank == 0:
            interrupt(buffer, lambda: buffer.dispatch(x.pop(), handle=handle))
            spoiled = spoil(CASE.x[0].nbytes)
            if on_gpu:  # what this thread does next on its stream comes after the kernels, so memory may go
                assert not EventHandle().query()
            else:
                assert alive() is not None
            interrupted.set()
            got = None
            del spoiled
        else:
            assert interrupted.wait(_WAIT_S)
            got = buffer.dispatch(x[0], handle=handle)[0]
        buffer.barrier()  # on a GPU rows may be looked at from here on
        assert rank or on_gpu or alive() is None  # the fake GPU keeps what streams have used
        after = buffer.dispatch(CASE.x[rank], handle=handle)[0]
        buffer.barrier()
        return None if got is None else got.clone(), after.clone()


@pytest.mark.mostly_slow
@pytest.mark.parametrize("on_gpu", [False, True])
def test_broken_off_dispatch_sends_the_rows_it_was_given(
    variables: Any, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    variables()
    interrupted = threading.Event()

    def body(group: ThreadGroup) -> Any:
        return interrupted_dispatch(group, interrupted, on_gpu)

    results = run_gpu_ranks(install(monkeypatch, FakeDriver()), 2, body) if on_gpu else run_ranks(2, body)
    inputs = [
        ThroughputInput(CASE.x[r], reference.dispatch_layout(CASE.topk_idx[r], 8, 2, None).is_token_in_rank)
        for r in range(2)
    ]
    wanted = reference.throughput_dispatch(inputs, 8)
    assert same(results[1][0], wanted[1].recv_x)
    for rank in range(2):
        assert same(results[rank][1], wanted[rank].recv_x)


def test_broken_off_hook_keeps_what_it_receives_into(variables: Any) -> None:
    variables()
    interrupted = threading.Event()

    def body(group: ThreadGroup) -> Any:
        rank = group.rank()
        with low_latency(group, CASE.shape) as buffer:
            if rank == 1:
                assert interrupted.wait(_WAIT_S)
            ids, most = CASE.topk_idx[rank], CASE.shape.max_tokens
            got = buffer.low_latency_dispatch(CASE.x[rank], ids, most, 8, use_fp8=False, return_recv_hook=True)
            if rank == 0:
                alive = weakref.ref(got[0])
                hook = got[4]
                assert hook is not None
                interrupt(buffer, hook)
                del hook, got
                gc.collect()
                assert alive() is not None
                interrupted.set()
            else:
                assert got[4] is not None
                got[4]()
            buffer.barrier()
            if rank == 0:
                assert alive() is None
            again = buffer.low_latency_dispatch(CASE.x[rank], ids, most, 8, use_fp8=False)
            return again[0].clone(), again[1].clone()

    results = run_ranks(2, body)
    wanted = reference.low_latency_dispatch(CASE.x, CASE.topk_idx, CASE.shape.max_tokens, 8)
    for rank in range(2):
        rows, counts = results[rank]
        assert torch.equal(counts, wanted[rank].recv_count)
        for expert, n in enumerate(counts.tolist()):
            assert same(rows[expert, :n], wanted[rank].recv_x[expert, :n])
