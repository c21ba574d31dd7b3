"""Graphs of low-latency calls that were captured before a change of members go on after it: the same graph object, in
the next life, with the next members, on the fake GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_graphs import LowLatencyInputs, full_case
from tests.uccl_ep.gpu.test_memory import NOTHING
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, reference_of, same
from uccl_ep import Buffer, PeerLost, reference, run_ranks
from uccl_ep.group.store_group import StoreGroup
from uccl_ep.survival.members import MemberChanges

SIZE, TOKENS, HIDDEN = 3, 8, 128
MOST = 400
WORLDS = [pytest.param(0, "auto", id="shared memory"), pytest.param(1, "loopback", id="loopback")]


class Cluster:
    """Numbers 0 to SIZE - 1, each with a GPU of its own, that meet in a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processes: int = SIZE) -> None:
        self.drivers = [FakeDriver(num_sms=6, identity=f"0000:00:{n:02x}.0") for n in range(processes)]
        install(monkeypatch, *self.drivers)
        self.store = HashStore()

    def group(self, rank: int, *members: int) -> StoreGroup:
        return StoreGroup(self.store, rank, SIZE, members, 30.0)

    def run(self, *bodies: Callable[[int, FakeDriver], None]) -> None:
        """Each body on a process of its own, which has its number and its GPU."""

        def on_gpu(group: Any) -> None:
            number = group.rank()
            with self.drivers[number].rank():
                bodies[number](number, self.drivers[number])

        run_ranks(len(bodies), on_gpu)
        for driver in self.drivers:
            assert driver.held() == NOTHING


class Rank:
    """One rank with its Buffer, and a graph of a dispatch and a combine."""

    def __init__(self, group: StoreGroup, gpu: int, driver: FakeDriver, shrink: bool = True) -> None:
        self.rank, self.driver = group.rank(), driver
        hint = Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, SIZE, 2 * SIZE)
        self.buffer = Buffer(
            group, 0, hint, low_latency_mode=True, enable_shrink=shrink, explicitly_destroy=True, device=f"cuda:{gpu}"
        )
        self.inputs = LowLatencyInputs(full_case(0, SIZE, max_tokens=TOKENS).shape, 2)
        self.graph: Any = None
        self.got: Any = None

    def calls(self) -> Any:
        got = self.buffer.low_latency_dispatch(self.inputs.x, self.inputs.ids, TOKENS, 2 * SIZE, use_fp8=False)
        summed, _, _ = self.buffer.low_latency_combine(self.inputs.rows, self.inputs.ids, self.inputs.weights, got[2])
        return got, summed

    def capture(self) -> None:
        with self.driver.capture() as self.graph:
            self.got = self.calls()

    def step(self, number: int, *members: int) -> None:
        """A replay, or without a graph an eager call, of what step `number` routes to anybody; only the `members` take
        part."""
        c = full_case(800 + number, SIZE, max_tokens=TOKENS)
        self.inputs.take(c, self.rank, 1.0 + number)
        if self.graph is None:
            got, summed = self.calls()
        else:
            self.driver.replay(self.graph)
            got, summed = self.got
        self.driver.settle()
        absent = set(range(SIZE)) - set(members)
        for rank in absent:
            c.x[rank], c.topk_idx[rank] = c.x[rank][:0], c.topk_idx[rank][:0]
            c.topk_weights[rank] = c.topk_weights[rank][:0]
        for ids in c.topk_idx:
            for rank in absent:
                ids[(ids >= 2 * rank) & (ids < 2 * rank + 2)] = -1
        wanted = reference_of(c)
        assert_low_latency(got[:3], wanted[self.rank])
        rows = [expert_rows(r, c.shape, 1.0 + number) for r in range(SIZE)]
        sums = reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, wanted)
        assert same(summed[: c.x[self.rank].shape[0]], sums[self.rank])

    def change(self, group: StoreGroup | None, *members: int, **budgets: int) -> None:
        """Steps of the present members, until they have changed."""
        self.buffer.prepare_members(group, **budgets)
        for step in range(MOST):
            self.step(step, *members)
            if self.buffer.switch_members():
                return
        raise AssertionError("no switch")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("per_node, transport", WORLDS)
def test_captured_calls_go_on_when_a_number_joins_and_leaves(
    variables: Any, monkeypatch: pytest.MonkeyPatch, per_node: int, transport: str
) -> None:
    """Also where the life before ends before the switch returns."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport)
    monkeypatch.setattr(MemberChanges, "_later", lambda buffer, what: what())
    cluster = Cluster(monkeypatch)

    def stays(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, 0, 2), number, driver)
        one.step(0, 0, 2)
        one.capture()
        for step in range(4):
            one.step(step, 0, 2)
        one.change(cluster.group(number, 0, 1, 2), 0, 2)
        assert one.buffer.keeps_graphs and one.buffer.members() == [0, 1, 2]
        for step in range(4):
            one.step(step, 0, 1, 2)
        one.change(cluster.group(number, 0, 2), 0, 1, 2)
        assert one.buffer.keeps_graphs and one.buffer.members() == [0, 2]
        for step in range(4):
            one.step(step, 0, 2)
        one.buffer.destroy()

    def joins(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, 0, 1, 2), number, driver)
        for step in range(4):
            one.step(step, 0, 1, 2)
        one.change(None, 0, 1, 2)
        one.buffer.destroy()

    cluster.run(stays, joins, stays)


@pytest.mark.mostly_slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("shrink", [False, True], ids=["", "enable_shrink"])
@pytest.mark.parametrize("per_node, transport", WORLDS)
def test_captured_calls_go_on_when_a_rank_is_replaced(
    variables: Any, monkeypatch: pytest.MonkeyPatch, per_node: int, transport: str, shrink: bool
) -> None:
    """A new process has the number of one that leaves, and a tag does not keep graphs from it."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport)
    cluster = Cluster(monkeypatch, processes=4)
    all_, begun = (0, 1, 2), threading.Event()

    def stays(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, *all_), number, driver, shrink)
        begun.set()
        one.step(0, *all_)
        one.capture()
        one.buffer.set_call_tag(5)
        one.change(cluster.group(number, *all_) if number != 1 else None, *all_)
        if number != 1:
            assert one.buffer.keeps_graphs
            for step in range(4):
                one.step(step, *all_)
        one.buffer.destroy()

    def joins(number: int, driver: FakeDriver) -> None:
        assert begun.wait(30)
        one = Rank(cluster.group(1, *all_), number, driver, shrink)
        one.step(0, *all_)
        one.capture()
        for step in range(1, 4):
            one.step(step, *all_)
        one.buffer.destroy()

    cluster.run(stays, stays, stays, joins)


@pytest.mark.timeout(120)
def test_captured_calls_go_on_in_recover_with_a_replaced_rank(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    cluster = Cluster(monkeypatch, processes=4)
    all_, begun = (0, 1, 2), threading.Event()

    def stays(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, *all_), number, driver, False)
        begun.set()
        one.step(0, *all_)
        one.capture()
        one.step(1, *all_)
        if number == 1:
            one.buffer.destroy()
            return
        with pytest.raises(PeerLost):
            driver.replay(one.graph)
            driver.settle()
            one.buffer.barrier()
        one.buffer.recover(cluster.group(number, *all_))
        assert one.buffer.keeps_graphs
        for step in range(4):
            one.step(step, *all_)
        one.buffer.destroy()

    def joins(number: int, driver: FakeDriver) -> None:
        assert begun.wait(30)
        one = Rank(cluster.group(1, *all_), number, driver, False)
        for step in range(4):
            one.step(step, *all_)
        one.buffer.destroy()

    cluster.run(stays, stays, stays, joins)


@pytest.mark.timeout(120)
def test_captured_calls_end_where_the_next_life_tells_kernels_something_else(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without enable_shrink no place is kept for a number that is absent. Nor do calls go on that may name zero-copy
    rows, whichever rank has asked for them. New ones are captured, of any sizes."""
    variables(RANKS_PER_NODE=0)
    cluster = Cluster(monkeypatch)

    def stays(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, 0, 2), number, driver, False)
        one.step(0, 0, 2)
        one.capture()
        one.change(cluster.group(number, 0, 1, 2), 0, 2)
        assert not one.buffer.keeps_graphs and one.buffer._life.session.graphs is None
        goes_on(one)

    def joins(number: int, driver: FakeDriver) -> None:
        goes_on(Rank(cluster.group(number, 0, 1, 2), number, driver, False))

    def goes_on(one: Rank) -> None:
        one.graph = None
        one.step(0, 0, 1, 2)
        one.capture()
        one.step(1, 0, 1, 2)
        one.buffer.get_next_low_latency_combine_buffer(one.got[0][2])
        one.change(cluster.group(one.rank, 0, 1, 2), 0, 1, 2)
        assert not one.buffer.keeps_graphs
        one.buffer.destroy()

    cluster.run(stays, joins, stays)


@pytest.mark.timeout(120)
def test_captured_calls_and_calls_of_other_sizes_in_the_next_life(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that joins has barriers around them too, though it has captured nothing."""
    variables(RANKS_PER_NODE=0)
    cluster = Cluster(monkeypatch)

    def stays(number: int, driver: FakeDriver) -> None:
        one = Rank(cluster.group(number, 0, 2), number, driver)
        one.step(0, 0, 2)
        one.capture()
        one.change(cluster.group(number, 0, 1, 2), 0, 2)
        goes_on(one)

    def joins(number: int, driver: FakeDriver) -> None:
        goes_on(Rank(cluster.group(number, 0, 1, 2), number, driver))

    def goes_on(one: Rank) -> None:
        for step in range(2):
            one.step(step, 0, 1, 2)
            c = case(830 + step, num_ranks=SIZE, num_experts=SIZE, num_topk=1, hidden=64, max_tokens=5)
            ids = c.topk_idx[one.rank]
            got = one.buffer.low_latency_dispatch(c.x[one.rank], ids, 5, SIZE, use_fp8=False)
            one.driver.settle()
            assert_low_latency(got[:3], reference_of(c)[one.rank])
        one.step(2, 0, 1, 2)
        one.buffer.destroy()

    cluster.run(stays, joins, stays)
