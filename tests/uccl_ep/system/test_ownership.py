"""A Buffer belongs to one process, is not copied, and makes one call at a time."""

from __future__ import annotations

import copy
import gc
import inspect
import linecache
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, LOCAL, MAX_TOKENS
from tests.uccl_ep.forks import in_child
from tests.uccl_ep.gate import Gate
from tests.uccl_ep.proxies import eventually
from tests.uccl_ep.ranks import MIB, assert_refused, layout_arguments
from uccl_ep import Buffer, ElasticBuffer, EPBuffer, HybridEPBuffer, InvalidArgument, NotSupported, ThreadGroup
from uccl_ep.system.ownership import Owner, in_turn

IDS = torch.arange(8, dtype=torch.int64).reshape(4, 2)
WEIGHTS = torch.ones(4, 2)
X = torch.arange(4 * 256).reshape(4, 256).bfloat16()
LL = (8, 8)  # tokens per rank, experts


@contextmanager
def alone(**arguments: Any) -> Iterator[Buffer]:
    """The Buffer of a group of one, for both modes."""
    hint = Buffer.get_low_latency_rdma_size_hint(8, 256, 1, 8)
    buffer = Buffer(ThreadGroup.create(1)[0], MIB, hint, low_latency_mode=True, enable_shrink=True, **arguments)
    try:
        yield buffer
    finally:
        buffer.destroy()


def assert_works(buffer: Buffer) -> None:
    """One exact step of each mode. Rows come back from the one rank: once in throughput, summed over two experts in
    low latency."""
    rows, *_, handle, _ = buffer.dispatch(X, **layout_arguments(buffer, IDS, 8))
    assert torch.equal(buffer.combine(rows, handle)[0], X)
    packed, _, ll, _, _ = buffer.low_latency_dispatch(X, IDS, *LL, use_fp8=False)
    assert torch.equal(buffer.low_latency_combine(packed, IDS, WEIGHTS, ll)[0], (2 * X.float()).bfloat16())


def calls_of(buffer: Buffer) -> dict[str, Callable[[], object]]:
    """Every public method of a Buffer that is no static helper, as a good call."""
    layout = layout_arguments(buffer, IDS, 8)
    rows, *_, handle, _ = buffer.dispatch(X, **layout)
    packed, _, ll, _, _ = buffer.low_latency_dispatch(X, IDS, *LL, use_fp8=False)
    return {
        "barrier": buffer.barrier,
        "get_dispatch_layout": lambda: buffer.get_dispatch_layout(IDS, 8),
        "dispatch": lambda: buffer.dispatch(X, **layout),
        "combine": lambda: buffer.combine(rows, handle),
        "internode_dispatch": lambda: buffer.internode_dispatch(X, **layout),
        "internode_combine": lambda: buffer.internode_combine(rows, handle),
        "low_latency_dispatch": lambda: buffer.low_latency_dispatch(X, IDS, *LL),
        "low_latency_combine": lambda: buffer.low_latency_combine(packed, IDS, WEIGHTS, ll),
        "get_next_low_latency_combine_buffer": lambda: buffer.get_next_low_latency_combine_buffer(ll),
        "clean_low_latency_buffer": lambda: buffer.clean_low_latency_buffer(8, 256, 8),
        "low_latency_update_mask_buffer": lambda: buffer.low_latency_update_mask_buffer(0, False),
        "low_latency_query_mask_buffer": lambda: buffer.low_latency_query_mask_buffer(torch.zeros(1).int()),
        "low_latency_clean_mask_buffer": buffer.low_latency_clean_mask_buffer,
        "agree_on_masks": buffer.agree_on_masks,
        "recover": buffer.recover,
        "prepare_members": lambda: buffer.prepare_members(None),
        "switch_members": buffer.switch_members,
        "pause": buffer.pause,
        "resume": buffer.resume,
        "set_call_tag": lambda: buffer.set_call_tag(1),
        **looks_of(buffer),
    }


def looks_of(buffer: Buffer) -> dict[str, Callable[[], object]]:
    """Those that only look, which a second thread may do at any time."""
    return {
        "members": buffer.members,
        "get_comm_stream": buffer.get_comm_stream,
        "get_local_buffer_tensor": lambda: buffer.get_local_buffer_tensor(torch.uint8),
        "empty_rows": lambda: buffer.empty_rows(4, 256),
        "memory_bill": buffer.memory_bill,
        "stats": buffer.stats,
        "dump_flight_record": buffer.dump_flight_record,
    }


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        call()
    return str(refusal.value)


# ---- the process ---------------------------------------------------------------------------------------------------


def test_ownership_every_call_in_a_forked_child_is_refused(variables: Any) -> None:
    variables(FLIGHT_RECORDER="off")
    with alone() as buffer:
        calls = calls_of(buffer)
        members = inspect.getmembers(buffer, inspect.ismethod)
        methods = {n for n, m in members if not n.startswith("_") and not hasattr(m, "refused")}
        assert methods - {"destroy"} == set(calls)
        *_, hook = buffer.low_latency_dispatch(X, IDS, *LL, return_recv_hook=True)
        *_, event = buffer.get_dispatch_layout(IDS, 8, async_finish=True)
        assert hook is not None and event.event is not None
        calls |= {"hook": hook, "wait": event.current_stream_wait, "query": event.event.query}
        told = in_child(lambda: (os.getpid(), {name: refusal_of(call) for name, call in calls.items()}))
        child, words = told
        for said in words.values():
            assert f"belongs to process {os.getpid()}, and this is process {child}, a child of its fork()" in said
        hook()
        event.current_stream_wait()
        assert_works(buffer)


def test_ownership_all_front_doors_in_a_forked_child(variables: Any) -> None:
    group = ThreadGroup.create(1)[0]
    v2, v25 = ElasticBuffer(group, 2 << 20, explicitly_destroy=True), EPBuffer(group, 2 << 20, explicitly_destroy=True)
    hybrid = HybridEPBuffer(group, HIDDEN, MAX_TOKENS, LOCAL)
    ids, x = IDS % LOCAL, torch.ones(4, HIDDEN).bfloat16()
    options: dict[str, Any] = {"num_experts": LOCAL, "num_max_tokens_per_rank": MAX_TOKENS}
    rows, _, _, handle, _ = v2.dispatch(x, ids, **options)
    v25_rows, _, _, v25_handle, v25_event = v25.dispatch(x, ids, async_with_compute_stream=True, **options)
    permuted = hybrid.dispatch_with_permute(hidden=x, topk_idx=ids, topk_weights=WEIGHTS)
    calls: dict[str, Callable[[], object]] = {
        "v2 dispatch": lambda: v2.dispatch(x, ids, **options),
        "v2 combine": lambda: v2.combine(rows, handle),
        "v2 barrier": v2.barrier,
        "v2 stream": v2.get_comm_stream,
        "v25 dispatch": lambda: v25.dispatch(x, ids, **options),
        "v25 combine": lambda: v25.combine(v25_rows, v25_handle),
        "v25 barrier": v25.barrier,
        "v25 memory": v25.print_memory_usage,
        "v25 event": v25_event.current_stream_wait,
        "hybrid dispatch": lambda: hybrid.dispatch_with_permute(hidden=x, topk_idx=ids, topk_weights=WEIGHTS),
        "hybrid combine": lambda: hybrid.combine_with_unpermute(hidden=permuted[0], handle=permuted[4]),
    }

    def child() -> list[str]:
        said = [refusal_of(call) for call in calls.values()]
        v2.destroy()  # these have no effect
        v25.destroy()
        hybrid._elastic.__del__()
        return said

    assert all("a child of its fork()" in said for said in in_child(child))
    assert v2.runtime is not None and hybrid._elastic.runtime is not None
    for call in calls.values():
        call()
    v2.destroy()
    v25.destroy()


def test_ownership_what_a_child_writes_stays_its_own(variables: Any) -> None:
    """Rows, views and rings are shared with other ranks; a child has them as it was forked."""
    variables()
    with alone() as buffer:
        view = buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)
        _, _, handle, *_ = buffer.low_latency_dispatch(X, IDS, *LL, use_fp8=False)
        combine_rows = buffer.get_next_low_latency_combine_buffer(handle)
        view.fill_(7)
        combine_rows.fill_(3.0)

        def child() -> tuple[int, int]:
            seen = int(view[0]), int(combine_rows[0, 0, 0])
            view.fill_(9)
            combine_rows.fill_(5.0)
            return seen

        assert in_child(child) == (7, 3)
        assert int(view.min()) == int(view.max()) == 7 and float(combine_rows.float().max()) == 3.0
        assert_works(buffer)


def test_ownership_a_childs_end_leaves_results_of_the_parent(variables: Any) -> None:
    """A result that is dropped gives its pages back to the arena, which the parent still reads."""
    from uccl_ep import _native
    from uccl_ep.device.output_pool import OutputPool

    arena = _native.Segment.create("test-arena", 64 * MIB)
    pool = OutputPool(arena)
    result = [pool.empty((16 * MIB,), torch.uint8)]
    assert pool.arena_offset(result[0]) is not None
    result[0].fill_(7)

    def child() -> None:
        result.clear()
        gc.collect()
        pool.close()

    in_child(child)
    assert int(result[0].min()) == 7


def test_ownership_a_child_makes_a_buffer_of_its_own(variables: Any) -> None:
    def child() -> bool:
        with alone() as own:
            assert_works(own)
            assert "process" in str(in_child(lambda: refusal_of(own.barrier)))  # and so on
            assert_works(own)
        return True

    with alone() as buffer:
        assert in_child(child)
        assert_works(buffer)


# ---- copies --------------------------------------------------------------------------------------------------------


def test_ownership_copies_are_refused_and_the_original_lives_on(variables: Any) -> None:
    group = ThreadGroup.create(1)[0]
    doors: list[Any] = [
        ElasticBuffer(group, 2 << 20), EPBuffer(group, 2 << 20), HybridEPBuffer(group, HIDDEN, MAX_TOKENS, LOCAL),
    ]  # fmt: skip
    with alone() as buffer:
        *_, hook = buffer.low_latency_dispatch(X, IDS, *LL, return_recv_hook=True)
        *_, event = buffer.get_dispatch_layout(IDS, 8, async_finish=True)
        *_, handle, _ = buffer.dispatch(X, **layout_arguments(buffer, IDS, 8))
        assert hook is not None
        for held in (buffer, *doors, buffer.runtime, event.event):
            for copier in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(NotSupported, match=f"a {type(held).__name__} cannot be copied or pickled: .* Pass"):
                    copier(held)  # type: ignore[operator]
        for held in (event, hook, [buffer]):
            with pytest.raises(NotSupported, match="cannot be copied or pickled"):
                pickle.dumps(held)
        for copier in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotSupported, match="cannot be pickled or copied"):
                copier(handle)  # type: ignore[operator]
        gc.collect()
        hook()
        assert_works(buffer)
    for door in doors:
        getattr(door, "_elastic", door).barrier()


# ---- one call at a time --------------------------------------------------------------------------------------------


def test_ownership_a_second_thread_in_a_call_is_refused(variables: Any) -> None:
    variables(FLIGHT_RECORDER="off")
    with alone() as buffer:
        calls = calls_of(buffer)
        *_, hook = buffer.low_latency_dispatch(X, IDS, *LL, return_recv_hook=True)
        assert hook is not None
        calls |= {"a receive hook": hook, "destroy": buffer.destroy}
        looks = looks_of(buffer)
        with Gate(buffer._device):
            first = threading.Thread(target=buffer.barrier, name="the-first")
            first.start()
            assert eventually(lambda: buffer._owner.running)
            for name, call in calls.items():
                if name in looks:
                    call()
                    continue
                name = name.replace("internode_", "")
                assert_refused(call, [f"{name} is refused while thread the-first is in barrier of the same Buffer"])
            assert "a child of its fork()" in in_child(lambda: refusal_of(buffer.barrier))
        first.join()
        hook()
        assert_works(buffer)
        threads = [threading.Thread(target=assert_works, args=(buffer,)) for _ in range(3)]
        for thread in threads:  # one after the other is as good as one
            thread.start()
            thread.join()
        assert_works(buffer)


def test_ownership_a_whole_elastic_call_is_one(variables: Any) -> None:
    """It makes several of the Buffer's, between which no other call may come."""
    variables()
    buffer = ElasticBuffer(ThreadGroup.create(1)[0], 2 << 20)
    whole: dict[str, Any] = {"num_experts": 8, "num_max_tokens_per_rank": 8}
    inner, seen = buffer._buffer.dispatch, []

    def between(*args: Any, **kwargs: Any) -> Any:
        thread = threading.Thread(target=lambda: seen.append(refusal_of(buffer.barrier)))
        thread.start()
        thread.join()
        return inner(*args, **kwargs)

    buffer._buffer.dispatch = between  # type: ignore[method-assign]
    buffer.dispatch(X, IDS, **whole)
    assert len(seen) == 1 and "barrier is refused while thread MainThread is in dispatch of the same Buffer" in seen[0]
    buffer.barrier()


def test_ownership_a_signal_handler_in_the_middle_of_a_call_is_refused(variables: Any) -> None:
    variables()
    with alone() as buffer:
        said: list[str] = []
        note = buffer._session.note

        def interrupted(kernel: str) -> None:
            signal.raise_signal(signal.SIGUSR1)
            note(kernel)

        before = signal.signal(signal.SIGUSR1, lambda *_: said.append(refusal_of(buffer.destroy)))
        try:
            buffer._device._note = interrupted  # type: ignore[attr-defined]
            buffer.get_dispatch_layout(IDS, 8)
            buffer._device._note = note  # type: ignore[attr-defined]
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(said) == 1 and "destroy in the middle of get_dispatch_layout of the same Buffer, on one" in said[0]
        assert_works(buffer)


class Door:
    """Makes calls."""

    def __init__(self) -> None:
        self._owner = Owner()

    @in_turn("knock")
    def knock(self, body: Callable[[], object] = int, *, loud: bool = False) -> tuple[object, bool]:
        """Knocks."""
        return body(), loud

    @in_turn("open")
    def open(self) -> None:
        pass


def test_ownership_in_turn_keeps_the_methods_face() -> None:
    assert Door().knock(list, loud=True) == ([], True)
    assert Door.knock.__doc__ == "Knocks."
    assert list(inspect.signature(Door.knock).parameters) == ["self", "body", "loud"]


def test_ownership_a_call_that_fails_is_over() -> None:
    door = Door()
    for error in (ValueError, KeyboardInterrupt):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        with pytest.raises(error):
            door.knock(fail)
    door.open()
    with pytest.raises(InvalidArgument, match="open in the middle of knock"):
        door.knock(door.open)
    door.open()


@pytest.mark.parametrize("line", ["owner =", "if owner.pid", "mine, running", "other =", "if other", "return method"])
def test_ownership_an_interrupt_before_any_line_leaves_it_free(line: str) -> None:
    door, hits = Door(), []

    def tracer(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is Door.knock.__code__ and event == "line":
            if linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(line):
                hits.append(line)
                raise KeyboardInterrupt
        return tracer

    gc.disable()  # the end of an earlier test's Buffer is a call too, and would be interrupted instead
    sys.settrace(tracer)
    try:
        with pytest.raises(KeyboardInterrupt):
            door.knock()
    finally:
        sys.settrace(None)
        gc.enable()
    assert hits == [line]
    assert door.knock() == (0, False)
