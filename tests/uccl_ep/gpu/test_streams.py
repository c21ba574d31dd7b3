"""Ordering rules: who waits for whom, between calls on several streams, in and around captures; claims; queues."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver, FakeStream
from uccl_ep import EventHandle, InvalidArgument, UcclEpError, _native
from uccl_ep.device.protocol import current_point
from uccl_ep.gpu.streams import CallOrder, StreamClaims, StreamPoint, check_queues, claims, enter_process, tensors_in


class Spy(FakeDriver):
    """Notes what is queued instead of queueing it: ("record", stream key), ("wait", stream key, key of the event's)."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = []

    def record(self, stream: FakeStream) -> Any:
        event = super().record(stream)
        event.of = stream.key  # type: ignore[attr-defined]
        self.log.append(("record", stream.key))
        return event

    def wait(self, stream: FakeStream, event: Any) -> None:
        super().wait(stream, event)
        self.log.append(("wait", stream.key, event.of))

    def waits(self) -> list[tuple[int, int]]:
        """(who, for whom) since the last question."""
        seen = [(entry[1], entry[2]) for entry in self.log if entry[0] == "wait"]
        self.log.clear()
        return seen


@pytest.fixture
def driver() -> Iterator[Spy]:
    spy = Spy()
    with spy.on(spy.new_stream()):
        yield spy
    assert not claims._claims  # whatever the test made has gone with it


@pytest.fixture
def order(driver: Spy) -> Iterator[CallOrder]:
    made = CallOrder(driver, (1, 0))  # type: ignore[arg-type]
    yield made
    made.close()


def call(order: CallOrder, on_caller: bool = False, held: object = None) -> None:
    order.begin(on_caller)
    order.launch_stream()
    order.end(held)


def test_gpu_streams_a_call_is_behind_its_caller_and_the_caller_behind_the_call(driver: Spy, order: CallOrder) -> None:
    mine, comm = driver.current_stream().key, order.comm_stream.key
    order.begin(False)
    assert order.launch_stream() is order.comm_stream and order.launch_stream() is order.comm_stream
    assert driver.waits() == [(comm, mine)]  # once
    order.touched()  # a tensor was filled on the caller's stream
    order.launch_stream()
    assert driver.waits() == [(comm, mine)]
    order.end(None)
    assert driver.waits() == [(mine, comm)]


def test_gpu_streams_halves_of_a_hook_wait_for_nobody_on_their_own_stream(driver: Spy, order: CallOrder) -> None:
    for _ in range(3):
        order.begin(True)
        assert order.launch_stream() is driver.current_stream()
        order.end(None)
    assert driver.waits() == []


def test_gpu_streams_calls_on_other_streams_wait_for_the_last_one(driver: Spy, order: CallOrder) -> None:
    mine, comm, other = driver.current_stream().key, order.comm_stream.key, driver.new_stream()
    call(order, on_caller=True)
    with driver.on(other):
        call(order, on_caller=True)
    assert driver.waits() == [(other.key, mine)]
    call(order)
    assert driver.waits() == [(comm, mine), (comm, other.key), (mine, comm)]
    call(order, on_caller=True)
    assert driver.waits() == [(mine, comm)]


def test_gpu_streams_previous_event_stands_for_the_callers_stream(driver: Spy, order: CallOrder) -> None:
    mine, comm, side = driver.current_stream().key, order.comm_stream.key, driver.new_stream()
    with driver.on(side):
        event = EventHandle(StreamPoint(driver, side))  # type: ignore[arg-type]
    tensor = torch.zeros(4)
    with order.behind(event):
        assert driver.current_stream() is order.comm_stream  # what the call allocates is ordered like its kernels
        order.touched()
        order.launch_stream()
        point = order.record((tensor, [None, tensor]))
    assert driver.current_stream().key == mine
    assert driver.waits() == [(comm, side.key)]  # nobody waits for the caller, nor the caller for the call
    assert {key for pointer, key in driver.used if pointer == tensor.data_ptr()} == {comm, mine}
    point.wait()
    assert driver.waits() == [(mine, comm)]


@pytest.mark.parametrize("previous", [None, lambda: EventHandle(_native.Event()), EventHandle])
def test_gpu_streams_without_an_event_of_a_gpu_the_caller_is_waited_for(
    driver: Spy, order: CallOrder, previous: Any
) -> None:
    with order.behind(previous() if callable(previous) else previous):
        order.launch_stream()
        order.end(None)
    assert driver.waits()[0] == (order.comm_stream.key, driver.current_stream().key)


def test_gpu_streams_a_call_that_failed_half_way_still_orders_the_next(driver: Spy, order: CallOrder) -> None:
    mine, other = driver.current_stream().key, driver.new_stream()
    order.begin(True)
    order.launch_stream()  # ... and then an exception
    with driver.on(other):
        call(order, on_caller=True)
    assert driver.waits() == [(other.key, mine)]
    with pytest.raises(ZeroDivisionError), order.behind(EventHandle(StreamPoint(driver, other))):  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert driver.current_stream().key == mine


def test_gpu_streams_a_capture_waits_for_nothing_of_before_and_nobody_for_what_is_inside(
    driver: Spy, order: CallOrder
) -> None:
    call(order)
    before = EventHandle(StreamPoint(driver, driver.current_stream()))  # type: ignore[arg-type]
    driver.waits()
    comm = order.comm_stream.key
    with driver.capture() as graph:
        mine = driver.current_stream().key
        before.current_stream_wait()
        with order.behind(before):  # would leave the comm stream outside
            order.launch_stream()
            inside = EventHandle(order.record(None))
        assert inside.query()  # asked without asking the device
        with order.behind(inside):
            order.launch_stream()
            order.end(None)
        order.begin(True)
        order.launch_stream()
        order.end(None)
        order.catch_up()
        graph.add_launch(driver.current_stream(), "rank_barrier", b"", 1, 1)
    assert driver.waits() == [(comm, mine), (comm, comm), (mine, comm), (mine, comm), (mine, mine)]
    mine = driver.current_stream().key
    inside.current_stream_wait()
    order.catch_up()
    call(order)
    assert driver.waits() == [(comm, mine), (mine, comm)]


def test_gpu_streams_work_that_nothing_waits_for_is_found_by_the_capture(driver: Spy, order: CallOrder) -> None:
    with pytest.raises(UcclEpError, match="before its first stream waited"), driver.capture() as graph:
        order.begin(False)
        graph.add_launch(order.launch_stream(), "rank_barrier", b"", 1, 1)
        order.record(None)  # nobody waits for it


def test_gpu_streams_finish_waits_on_the_host_and_orders_the_caller(driver: Spy, order: CallOrder) -> None:
    order.begin(False)
    order.launch_stream()
    driver.waits()
    order.finish()
    assert driver.waits() == [(driver.current_stream().key, order.comm_stream.key)]
    with driver.capture(), pytest.raises(UcclEpError, match="not permitted while this thread captures"):
        StreamPoint(driver, order.comm_stream).synchronize()  # type: ignore[arg-type]


def test_gpu_streams_claims() -> None:
    table = StreamClaims()
    table.claim(7, 100, (1, 0))
    table.claim(7, 101, (1, 0))  # another Buffer of the rank, or the same again
    table.claim(7, 102, (2, 5))  # of another group
    with pytest.raises(InvalidArgument, match="rank 1 calls on a stream that rank 0 of the same process"):
        table.claim(7, 103, (1, 1))
    table.release(100)
    with pytest.raises(InvalidArgument):
        table.claim(7, 103, (1, 1))
    table.release(101)
    table.claim(7, 103, (1, 1))
    table.claim(0, 103, (1, 1))
    with pytest.raises(InvalidArgument, match=r"\(the default stream\)"):
        table.claim(0, 104, (1, 2))


def test_gpu_streams_comm_streams_are_used_by_nobody_else() -> None:
    """torch's own streams come from a pool and repeat."""

    class Pool(FakeDriver):
        def new_stream(self) -> FakeStream:
            stream = super().new_stream()
            stream.key = stream.key % 4
            return stream

    pool, table = Pool(), StreamClaims()
    table.claim(2, 1, (1, 0))
    keys = [table.unused_stream(pool, 10 + n, (1, n)).key for n in range(3)]  # type: ignore[arg-type]
    assert sorted(keys) == [0, 1, 3]
    with pytest.raises(InvalidArgument, match="every stream that torch gives is in use"):
        table.unused_stream(pool, 20, (1, 9))  # type: ignore[arg-type]


def test_gpu_streams_claims_go_with_the_buffer(driver: Spy) -> None:
    order = CallOrder(driver, (3, 0))  # type: ignore[arg-type]
    call(order)
    assert len(claims._claims) == 2
    del order
    gc.collect()
    assert not claims._claims


@pytest.mark.parametrize(
    "kind, ranks, environment, wanted",
    [
        ("cuda", 1, {}, None), ("cuda", 4, {}, None), ("cuda", 5, {}, "CUDA_DEVICE_MAX_CONNECTIONS=10"),
        ("cuda", 16, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, None),
        ("cuda", 17, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, "at most 32: 16 ranks"),
        ("cuda", 5, {"CUDA_DEVICE_MAX_CONNECTIONS": "x"}, "allows 8"),
        ("hip", 2, {}, None), ("hip", 3, {}, "GPU_MAX_HW_QUEUES=6"),
    ],
)  # fmt: skip
def test_gpu_streams_queues(kind: str, ranks: int, environment: dict[str, str], wanted: str | None) -> None:
    if wanted is None:
        check_queues(kind, ranks, environment)
        return
    with pytest.raises(InvalidArgument, match=wanted):
        check_queues(kind, ranks, environment)


def test_gpu_streams_the_current_point_is_of_the_threads_gpu(driver: Spy) -> None:
    assert isinstance(EventHandle().native, _native.Event)
    other = Spy()
    leave = [enter_process(other), enter_process(driver)]  # type: ignore[arg-type]
    assert EventHandle().native.driver is driver  # type: ignore[attr-defined]
    leave[1]()
    leave[1]()
    assert EventHandle().native.driver is other  # type: ignore[attr-defined]
    leave[0]()
    assert isinstance(EventHandle().native, _native.Event) and current_point == [_native.Event]


def test_gpu_streams_tensors_in() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    assert [id(t) for t in tensors_in((a, None, [b, 3], "x"))] == [id(a), id(b)]
    assert list(tensors_in(a)) == [a] and not list(tensors_in(None))
