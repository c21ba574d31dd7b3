"""Captured calls, replayed with changing inputs and between eager calls: the same bytes, other epochs, right rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import MIB, case, expert_rows, layout_arguments, low_latency, reference_of, same, throughput
from uccl_ep import Buffer, NotSupported, PeerLost, ThreadGroup, UcclEpError, reference
from uccl_ep.reference import RandomCase, ThroughputInput

REPLAYS = 50
WORLDS = [
    pytest.param(2, 0, "auto", id="one node of 2"),
    pytest.param(3, 2, "loopback", id="nodes of 2 and 1, loopback"),
    pytest.param(2, 1, "tcp", id="2 nodes, tcp"),
]


def full_case(seed: int, ranks: int, **shape: int) -> RandomCase:
    """Every rank has the same number of tokens in every case, as graphs need."""
    return case(seed, "uniform", num_ranks=ranks, num_experts=2 * ranks, num_topk=2, hidden=128, **shape)


def fill(into: torch.Tensor, source: torch.Tensor) -> int:
    """Puts a case's rows where a graph reads them; rows beyond keep their former contents. Returns how many."""
    into[: source.shape[0]] = source
    return source.shape[0]


class LowLatencyInputs:
    """What a graph of dispatch and combine reads: M tokens; unused ones are routed nowhere."""

    def __init__(self, shape: Any, topk: int) -> None:
        m = shape.max_tokens
        self.x = torch.zeros(m, shape.hidden, dtype=torch.bfloat16)
        self.ids = torch.full((m, topk), -1, dtype=torch.int64)
        self.weights = torch.zeros(m, topk)
        local, rows = shape.num_experts // shape.num_ranks, shape.num_ranks * m
        self.rows = torch.zeros(local, rows, shape.hidden, dtype=torch.bfloat16)

    def take(self, c: RandomCase, rank: int, scale: float) -> None:
        self.ids.fill_(-1)
        fill(self.x, c.x[rank])
        fill(self.ids, c.topk_idx[rank])
        fill(self.weights, c.topk_weights[rank])
        self.rows.copy_(expert_rows(rank, c.shape, scale))


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.timeout(120)  # 150 calls on every rank, on two cores
@pytest.mark.parametrize("hooks", [False, True], ids=["plain", "hooks"])
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_graphs_low_latency(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str, hooks: bool
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=3)
    driver = install(monkeypatch, FakeDriver(num_sms=4 * ranks))
    cases = [full_case(300 + turn, ranks, max_tokens=8) for turn in range(7)]
    others = full_case(399, ranks, max_tokens=5)  # eager calls of another shape in between
    wanted = [reference_of(c) for c in cases]
    sums = [
        reference.low_latency_combine(
            [expert_rows(r, c.shape, 1.0 + turn) for r in range(ranks)], c.topk_idx, c.topk_weights, wanted[turn]
        )
        for turn, c in enumerate(cases)
    ]
    others_wanted = reference_of(others)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        inputs = LowLatencyInputs(cases[0].shape, 2)

        with low_latency(group, cases[0].shape) as buffer:

            def calls() -> tuple[Any, torch.Tensor]:
                got = buffer.low_latency_dispatch(
                    inputs.x, inputs.ids, 8, 2 * ranks, use_fp8=False, return_recv_hook=hooks
                )
                if got[4] is not None:
                    got[4]()
                out, _, hook = buffer.low_latency_combine(
                    inputs.rows, inputs.ids, inputs.weights, got[2], return_recv_hook=hooks
                )
                if hook is not None:
                    hook()
                return got, out

            calls()  # the sizes, outside the capture
            with driver.capture() as graph:
                got, out = calls()
            assert graph.num_launches == 4
            for turn in range(REPLAYS):
                driver.settle()
                number = turn % len(cases)
                c = cases[number]
                inputs.take(c, rank, 1.0 + number)
                driver.replay(graph)
                driver.settle()
                n = c.x[rank].shape[0]
                counts = wanted[number][rank].recv_count
                assert torch.equal(got[1], counts) and torch.equal(got[2][1], wanted[number][rank].layout_range)
                for expert, count in enumerate(counts.tolist()):
                    assert same(got[0][expert, :count], wanted[number][rank].recv_x[expert, :count])
                assert same(out[:n], sums[number][rank])
                if turn % 8 == 3:  # eager calls of the same sizes, and of others
                    calls()
                if turn % 8 == 5:
                    eager = buffer.low_latency_dispatch(
                        others.x[rank], others.topk_idx[rank], 5, 2 * ranks, use_fp8=False, return_recv_hook=True
                    )
                    assert eager[4] is not None
                    eager[4]()
                    driver.settle()
                    assert torch.equal(eager[1], others_wanted[rank].recv_count)

    run_gpu_ranks(driver, ranks, body)


def layouts_of(c: RandomCase, per_node: int) -> list[ThroughputInput]:
    made = []
    for r in range(c.shape.num_ranks):
        layout = reference.dispatch_layout(c.topk_idx[r], c.shape.num_experts, c.shape.num_ranks, per_node or None)
        made.append(ThroughputInput(c.x[r], layout.is_token_in_rank, c.topk_idx[r], c.topk_weights[r], None))
    return made


@pytest.mark.mostly_slow
@pytest.mark.timeout(120)  # as above
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_graphs_throughput_with_a_handle(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str
) -> None:
    """Same routing, other rows; eager calls cut the streams in another way in between."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=4)
    driver = install(monkeypatch, FakeDriver(num_sms=6 * ranks))
    c = full_case(410, ranks, max_tokens=12)
    wanted = reference.throughput_dispatch(layouts_of(c, per_node), 2 * ranks)
    generator = torch.Generator().manual_seed(1)
    rounds = [[torch.randn(x.shape, generator=generator).bfloat16() for x in c.x] for _ in range(5)]
    inputs_by_round = [
        [ThroughputInput(x, i.is_token_in_rank, i.topk_idx, i.topk_weights, None)
         for x, i in zip(xs, layouts_of(c, per_node), strict=True)] for xs in rounds
    ]  # fmt: skip
    wanted_rounds = [reference.throughput_dispatch(made, 2 * ranks) for made in inputs_by_round]
    sums = [reference.throughput_combine([w.recv_x for w in want], want, None, None, per_node or None)[0]
            for want in wanted_rounds]  # fmt: skip

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        x, wide = torch.zeros_like(c.x[rank]), torch.zeros(c.x[rank].shape[0], 512, dtype=torch.bfloat16)
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], 2 * ranks)
            first = buffer.dispatch(c.x[rank], **layout, topk_idx=c.topk_idx[rank], topk_weights=c.topk_weights[rank])
            handle = first[4]
            with driver.capture() as graph:
                event = buffer.capture()
                rows, *_, done = buffer.dispatch(x, handle=handle, previous_event=event, async_finish=True)
                done.current_stream_wait()
                out, _, _ = buffer.combine(rows, handle)
            for turn in range(REPLAYS):
                driver.settle()
                number = turn % len(rounds)
                x.copy_(rounds[number][rank])
                driver.replay(graph)
                driver.settle()
                assert same(rows[: wanted[rank].num_rows], wanted_rounds[number][rank].recv_x[: wanted[rank].num_rows])
                assert same(out, sums[number][rank])
                if turn % 7 == 2:
                    buffer.dispatch(wide, handle=handle)  # other rows: other streams
                if turn % 7 == 4:
                    again = buffer.dispatch(c.x[rank], **layout)
                    driver.settle()
                    assert same(again[0], wanted[rank].recv_x)

    run_gpu_ranks(driver, ranks, body)


@pytest.mark.mostly_slow
@pytest.mark.timeout(120)  # as above
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_graphs_throughput_with_worst_tokens(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str
) -> None:
    """The routing itself changes from replay to replay."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=8)
    driver = install(monkeypatch, FakeDriver(num_sms=6 * ranks))
    tokens, worst = 10, 10 * ranks
    generator = torch.Generator().manual_seed(2)
    cases = [full_case(430 + turn, ranks, max_tokens=tokens) for turn in range(5)]
    for c in cases:  # as many tokens everywhere
        for r in range(ranks):
            c.x[r] = torch.randn(tokens, 128, generator=generator).bfloat16()
            c.topk_idx[r] = torch.randint(-1, 2 * ranks, (tokens, 2), generator=generator)
            c.topk_weights[r] = torch.rand(tokens, 2, generator=generator)
    wanted = [reference.throughput_dispatch(layouts_of(c, per_node), 2 * ranks, 1, worst) for c in cases]
    sums = [reference.throughput_combine([w.recv_x for w in want], want, None, None, per_node or None)[0]
            for want in wanted]  # fmt: skip

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        x, ids, weights = (torch.zeros_like(t[rank]) for t in (cases[0].x, cases[0].topk_idx, cases[0].topk_weights))
        with throughput(group) as buffer:
            with driver.capture() as graph:  # nothing was called before: all of it is in the graph
                layout = layout_arguments(buffer, ids, 2 * ranks)
                rows, got_ids, _, counts, handle, _ = buffer.dispatch(
                    x, **layout, topk_idx=ids, topk_weights=weights, num_worst_tokens=worst
                )
                out, _, _ = buffer.combine(rows, handle)
            assert counts == []
            for turn in range(REPLAYS):
                driver.settle()
                number = turn % len(cases)
                c = cases[number]
                for into, of in ((x, c.x), (ids, c.topk_idx), (weights, c.topk_weights)):
                    into.copy_(of[rank])
                driver.replay(graph)
                driver.settle()
                want = wanted[number][rank]
                assert same(rows[: want.num_rows], want.recv_x[: want.num_rows]) and same(got_ids, want.recv_topk_idx)
                assert same(out, sums[number][rank])
                if turn % 6 == 1:
                    eager = layout_arguments(buffer, ids, 2 * ranks)
                    again = buffer.dispatch(x, **eager, topk_idx=ids, topk_weights=weights)
                    driver.settle()
                    assert same(again[1], want.recv_topk_idx[: want.num_rows])

    run_gpu_ranks(driver, ranks, body)


def test_gpu_graphs_a_peer_that_ends_during_replays_is_told_at_the_next_call(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(TIMEOUT_S=5)
    driver = install(monkeypatch, FakeDriver())
    c = full_case(450, 2, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        inputs = LowLatencyInputs(c.shape, 2)
        inputs.take(c, rank, 1.0)
        buffer = Buffer(group, 0, Buffer.get_low_latency_rdma_size_hint(8, 128, 2, 4), low_latency_mode=True)

        def dispatch() -> None:
            buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 4, use_fp8=False)

        dispatch()
        with driver.capture() as graph:
            dispatch()
        for _ in range(3):
            driver.replay(graph)
        driver.settle()
        group.barrier()
        if rank == 1:
            buffer.destroy()
        group.barrier()
        if rank == 0:
            driver.replay(graph)
            driver.settle()  # a replay cannot raise
            with pytest.raises(PeerLost, match="rank 1 .*lost in dispatch"):
                dispatch()
            buffer.destroy()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def test_gpu_graphs_what_must_wait_on_the_host_is_refused_before_anything_is_recorded(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = full_case(460, 1, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        x, ids, weights = c.x[0], c.topk_idx[0], c.topk_weights[0]
        hint = Buffer.get_low_latency_rdma_size_hint(9, 128, 1, 2)
        with contextlib.ExitStack() as stack:
            buffer = Buffer(group, MIB, hint, low_latency_mode=True)
            stack.callback(buffer.destroy)
            layout = layout_arguments(buffer, ids, 2)
            buffer.low_latency_dispatch(x, ids, 8, 2)
            calls: list[Callable[[], object]] = [
                lambda: buffer.dispatch(x, **layout, topk_idx=ids, topk_weights=weights),
                buffer.barrier,
                lambda: buffer.low_latency_dispatch(x, ids, 9, 2),  # other sizes than the call before
                lambda: buffer.clean_low_latency_buffer(8, 128, 2),
            ]
            with driver.capture() as graph:
                for call in calls:
                    with pytest.raises(NotSupported, match="graph capture"):
                        call()
                assert graph.num_launches == 0
                buffer.low_latency_dispatch(x, ids, 8, 2)
            buffer.low_latency_dispatch(x, ids, 9, 2)  # outside, other sizes are fine
            with driver.capture(), pytest.raises(NotSupported, match="calls of a Buffer's graphs must share these"):
                buffer.low_latency_dispatch(x, ids, 9, 2)
            driver.settle()

    run_gpu_ranks(driver, 1, body)


def test_gpu_graphs_eager_calls_of_other_sizes_stand_between_barriers(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race that hardly ever shows: so the launches are looked at."""
    driver = install(monkeypatch, FakeDriver())
    c = full_case(470, 2, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        x, ids = c.x[group.rank()], c.topk_idx[group.rank()]
        with low_latency(group, c.shape) as buffer:
            comm = buffer.get_comm_stream()

            def launches(m: int, hook: bool = False) -> list[str]:
                comm.launched.clear()
                got = buffer.low_latency_dispatch(x, ids, m, 4, return_recv_hook=hook)
                if got[4] is not None:
                    got[4]()
                driver.settle()
                return [name.removeprefix("low_latency_dispatch_") for name in comm.launched]

            assert launches(8) == ["send", "recv"]
            with driver.capture():
                buffer.low_latency_dispatch(x, ids, 8, 4)
            assert launches(8) == ["send", "recv"]
            for _ in range(2):  # a replay may have run since the last call
                assert launches(7) == ["rank_barrier", "send", "recv", "rank_barrier"]
            assert launches(7, hook=True) == ["rank_barrier", "rank_barrier"]
            assert launches(8) == ["send", "recv"]  # as a replay, which another rank may make of it
            group.barrier()

    run_gpu_ranks(driver, 2, body)


def test_gpu_graphs_eager_calls_after_a_capture_always_settle(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise: how streams are cut may have been changed by a replay."""
    driver = install(monkeypatch, FakeDriver())
    c = full_case(480, 2, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        x = c.x[group.rank()]
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[group.rank()], 4)
            handle = buffer.dispatch(x, **layout)[4]
            comm = buffer.get_comm_stream()
            for expected in (["throughput_dispatch"], ["throughput_settle", "throughput_dispatch"]):
                comm.launched.clear()
                buffer.dispatch(x, handle=handle)
                assert comm.launched == expected
                with driver.capture() as graph:
                    buffer.dispatch(x, handle=handle)
                assert graph.num_launches == 2
            driver.settle()

    run_gpu_ranks(driver, 2, body)


def test_gpu_graphs_the_fake_gpu_is_strict() -> None:
    """What these tests rely on: a capture that CUDA would refuse fails."""
    driver = FakeDriver()
    with driver.rank():
        before = driver.record(driver.current_stream())
        with driver.capture() as graph:
            side = driver.new_stream()
            for forbidden in (
                lambda: driver.synchronize(before), lambda: driver.query(before), lambda: driver.allocate(4096),
                lambda: driver.wait(driver.current_stream(), before), lambda: torch.ones(1).item(),
            ):  # fmt: skip
                with pytest.raises(UcclEpError):
                    forbidden()
            inside = driver.record(driver.current_stream())
            doubled = torch.ones(3) * 2
        with pytest.raises(UcclEpError, match="a capture that has ended"):
            driver.wait(side, inside)
        doubled.zero_()
        driver.replay(graph)
        assert doubled.tolist() == [2, 2, 2]
        with pytest.raises(UcclEpError, match="before its first stream waited"), driver.capture():
            driver.wait(side, driver.record(driver.current_stream()))
            side.graph.add_launch(side, "rank_barrier", b"", 1, 1)
