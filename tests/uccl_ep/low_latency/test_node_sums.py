"""Combines that are reduced in the node, as callers see them: rows equal the oracle's to the bit in every shape of
nodes, beside direct calls, with hooks in any order, signals and zero copy; and what is refused or named."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_low_latency, assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, InvalidArgument, PeerLost, PeerTimeout, ThreadGroup, UcclEpError, reference, run_ranks
from uccl_ep.layout.plan import low_latency_size_hint, memory_bill
from uccl_ep.reference import RandomCase, low_latency_combine_by_node

Tensor = torch.Tensor
NODE = {"LOW_LATENCY_COMBINE": "node"}
WORLDS = [
    pytest.param(4, 2, "loopback", 2, id="2 x 2, loopback, 2 workers"),
    pytest.param(3, 1, "loopback", 1, id="3 x 1, loopback"),
    pytest.param(3, 2, "tcp", 1, id="2 + 1, tcp"),
    pytest.param(6, 3, "loopback", 1, id="2 x 3, loopback"),
    pytest.param(5, 2, "auto", 1, id="2 + 2 + 1, shared memory"),
    pytest.param(3, 0, "auto", 1, id="one node of 3"),
]
TRAFFIC = ["uniform", "some_unused", "duplicates", "hot_expert", "no_tokens", "all_unused", "mixed"]


def rows_of(c: RandomCase) -> list[Tensor]:
    return [expert_rows(rank, c.shape) for rank in range(c.shape.num_ranks)]


def sums_of(c: RandomCase, per_node: int, **use: bool) -> list[Tensor]:
    nodes = per_node or None
    return low_latency_combine_by_node(rows_of(c), c.topk_idx, c.topk_weights, reference_of(c), nodes, **use)


def dispatch(buffer: Buffer, c: RandomCase, **options: Any) -> tuple[Any, ...]:
    rank, shape = buffer.rank, c.shape
    options = {"use_fp8": False, **options}
    return buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], shape.max_tokens, shape.num_experts, **options)


def combine(buffer: Buffer, c: RandomCase, handle: Any, **options: Any) -> tuple[Any, ...]:
    rank = buffer.rank
    rows = expert_rows(rank, c.shape)
    if options.get("zero_copy"):
        buffer.get_next_low_latency_combine_buffer(handle).copy_(rows)
        rows = torch.full_like(rows, torch.nan)
    return buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle, **options)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("ranks, per_node, transport, workers", WORLDS)
def test_low_latency_sums_are_the_references(
    variables: Any, ranks: int, per_node: int, transport: str, workers: int
) -> None:
    """Rounds follow each other without anything between; some with zero copy."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, PROXY_THREADS=workers, SHUFFLE_SEED=5, **NODE)
    shape = {"num_ranks": ranks, "num_experts": 3 * ranks, "num_topk": 5, "hidden": 136, "max_tokens": 12}
    cases = [case(200 + turn, kind, **shape) for turn, kind in enumerate(TRAFFIC * 2)]

    def body(group: ThreadGroup) -> list[Tensor]:
        with low_latency(group, cases[0].shape) as buffer:
            return [
                combine(buffer, c, dispatch(buffer, c)[2], zero_copy=turn % 3 == 1)[0] for turn, c in enumerate(cases)
            ]

    results = run_ranks(ranks, body)
    for turn, c in enumerate(cases):
        due = sums_of(c, per_node)
        assert all(same(results[rank][turn], due[rank]) for rank in range(ranks)), (turn, c.traffic)


def test_low_latency_sums_differ_from_direct_ones_where_a_node_has_several_rows(variables: Any) -> None:
    """So that the tests above could fail: the setting changes what comes out."""
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")
    c = case(231, "uniform", num_ranks=4, num_experts=8, num_topk=6, hidden=512, max_tokens=16)
    direct = reference.low_latency_combine(rows_of(c), c.topk_idx, c.topk_weights, reference_of(c))
    assert any(not same(a, b) for a, b in zip(direct, sums_of(c, 2), strict=True))

    def body(group: ThreadGroup) -> Tensor:
        with low_latency(group, c.shape) as buffer:
            return combine(buffer, c, dispatch(buffer, c)[2])[0]

    assert all(same(got, due) for got, due in zip(run_ranks(4, body), direct, strict=True))


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("ranks, per_node, transport, workers", WORLDS)
def test_low_latency_sums_travel_in_the_calls_format(
    variables: Any, ranks: int, per_node: int, transport: str, workers: int
) -> None:
    """Each format in turn; the first and the last columns of top-k are few and many."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, PROXY_THREADS=workers, SHUFFLE_SEED=7, **NODE)
    shape = {"num_ranks": ranks, "num_experts": 3 * ranks, "hidden": 512, "max_tokens": 7}
    ways = ["use_fp8", "use_mxfp8", "use_nvfp4", "use_logfmt", "zero_copy"]
    cases = [case(270 + turn, kind, num_topk=1 + turn % 5, **shape) for turn, kind in enumerate(TRAFFIC * 2)]

    def body(group: ThreadGroup) -> list[Tensor]:
        with low_latency(group, cases[0].shape) as buffer:
            return [
                combine(buffer, c, dispatch(buffer, c)[2], **{ways[turn % 4 + turn % 3 // 2]: True})[0]
                for turn, c in enumerate(cases)
            ]

    results = run_ranks(ranks, body)
    for turn, c in enumerate(cases):
        way = ways[turn % 4 + turn % 3 // 2]
        due = sums_of(c, per_node, **({} if way == "zero_copy" else {way: True}))
        assert all(same(results[rank][turn], due[rank]) for rank in range(ranks)), (turn, c.traffic, way)


def test_low_latency_sums_of_encoded_rows_go_directly_where_tokens_have_one_expert(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", LOW_LATENCY_TOPK=1, **NODE)
    c = case(232, "mixed", num_ranks=4, num_topk=1, hidden=128)
    due = reference.low_latency_combine(rows_of(c), c.topk_idx, c.topk_weights, reference_of(c), use_fp8=True)

    def body(group: ThreadGroup) -> Tensor:
        with low_latency(group, c.shape) as buffer:
            return combine(buffer, c, dispatch(buffer, c)[2], use_fp8=True)[0]

    assert all(same(got, wanted) for got, wanted in zip(run_ranks(4, body), due, strict=True))


@pytest.mark.parametrize("per_node", [1, 2])
def test_low_latency_sums_in_any_sequence_of_calls(variables: Any, per_node: int) -> None:
    """Dispatches, combines and calls whose sums are encoded, in turns of random length."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback", TIMEOUT_S=20, **NODE)
    c = case(233, "uniform", num_ranks=4, num_experts=8, num_topk=4, hidden=512, max_tokens=8)
    wanted, by_node, encoded = reference_of(c), sums_of(c, per_node), sums_of(c, per_node, use_logfmt=True)
    pattern = random.Random(9)
    steps = [pattern.choice(["dispatch", "node", "node", "logfmt"]) for _ in range(60)]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            sent = dispatch(buffer, c)
            for step in steps:
                if step == "dispatch":
                    sent = dispatch(buffer, c)
                    assert_low_latency(sent[:3], wanted[buffer.rank])
                else:
                    out = combine(buffer, c, sent[2], use_logfmt=step == "logfmt")[0]
                    assert same(out, (encoded if step == "logfmt" else by_node)[buffer.rank]), step

    run_ranks(4, body)


def test_low_latency_sums_before_and_after_a_sleep(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="tcp", **NODE)
    cases = [case(260 + n, "uniform", num_ranks=4, num_experts=8, num_topk=4, hidden=256, max_tokens=8) for n in (0, 1)]
    due = [sums_of(c, 2) for c in cases]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, cases[0].shape) as buffer:
            for turn in range(6):
                c = cases[turn % 2]
                sent = dispatch(buffer, c)
                buffer.pause()
                buffer.resume()
                out = combine(buffer, c, sent[2], zero_copy=turn % 3 == 1)[0]
                assert same(out, due[turn % 2][buffer.rank])
                buffer.pause()
                buffer.resume()

    run_ranks(4, body)


@pytest.mark.parametrize("between", ["nothing", "a dispatch"])
def test_low_latency_sums_hooks_in_different_orders_on_different_ranks(variables: Any, between: str) -> None:
    """A rank's sums are what another rank's hook waits for: they are sent whichever half this rank queues next."""
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", TIMEOUT_S=15, **NODE)
    cases = [case(240 + i, "uniform", num_ranks=4, num_topk=4, hidden=128) for i in range(2)]
    due = [sums_of(c, 2) for c in cases]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, cases[0].shape) as buffer:
            for turn in range(4):
                handles = [dispatch(buffer, c)[2] for c in cases]
                given = [combine(buffer, c, h, return_recv_hook=True) for c, h in zip(cases, handles, strict=True)]
                first = (turn + buffer.rank // 2) % 2  # ranks that sum for each other differ
                if between == "a dispatch" and first:  # half of the ranks dispatch before their hooks, half after
                    dispatch(buffer, cases[0], return_recv_hook=True)[4]()
                for i in (first, 1 - first):
                    given[i][2]()
                    assert same(given[i][0], due[i][buffer.rank])
                if between == "a dispatch" and not first:
                    dispatch(buffer, cases[0], return_recv_hook=True)[4]()

    run_ranks(4, body)


def test_low_latency_sums_of_rows_that_are_still_computed(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", **NODE)
    c = case(250, "uniform", num_ranks=4, num_topk=4, hidden=128)
    due = sums_of(c, 2)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            for _ in range(3):
                handle = dispatch(buffer, c)[2]
                wanted = expert_rows(rank, c.shape)
                rows, signals = torch.full_like(wanted, torch.nan), torch.zeros(wanted.shape[0], dtype=torch.int32)
                out, _, hook = buffer.low_latency_combine(
                    rows, c.topk_idx[rank], c.topk_weights[rank], handle, overlap=True, src_signals=signals,
                    src_signal_expect_value=1, return_recv_hook=True,
                )  # fmt: skip
                for expert in range(wanted.shape[0]):
                    rows[expert] = wanted[expert]
                    signals[expert] = 1
                assert hook is not None
                hook()
                assert same(out, due[rank])

    run_ranks(4, body)


def test_low_latency_sums_wait_stats_have_what_was_waited_in_them(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", **NODE)
    c = case(251, "uniform", num_ranks=4, num_topk=4, hidden=128)
    late = threading.Event()

    def body(group: ThreadGroup) -> Tensor:
        stats = torch.zeros(4, dtype=torch.int64)
        with low_latency(group, c.shape) as buffer:
            handle = dispatch(buffer, c)[2]
            if buffer.rank == 1:
                late.wait(0.3)  # the others are in their combines by then
            combine(buffer, c, handle, combine_wait_recv_cost_stats=stats)
        return stats

    stats = run_ranks(4, body)
    assert int(stats[0][1]) > 50_000_000  # rank 0 sums what rank 1 gives
    assert int(stats[3][1]) > 50_000_000  # rank 1 sums for rank 3, and sends it its weights


def test_low_latency_sums_more_experts_than_memory_is_for_are_refused(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback", LOW_LATENCY_TOPK=3, **NODE)
    c, more = (case(252, "uniform", num_ranks=2, num_topk=k, hidden=128) for k in (3, 4))

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            words = ["topk_idx=4", "of up to 3 columns", "UCCL_EP_LOW_LATENCY_TOPK"]
            assert_refused(lambda: dispatch(buffer, more), words)
            handle = dispatch(buffer, c)[2]
            assert_refused(lambda: combine(buffer, more, handle), words)
            assert same(combine(buffer, c, handle)[0], sums_of(c, 1)[buffer.rank])

    run_ranks(2, body)


def test_low_latency_sums_take_memory_by_the_topk_that_is_allowed(variables: Any) -> None:
    def hint(form: str, topk: int) -> int:
        variables(RANKS_PER_NODE=8, LOW_LATENCY_COMBINE=form, LOW_LATENCY_TOPK=topk)
        return low_latency_size_hint(128, 7168, 32, 256)

    direct, node = hint("direct", 8), hint("node", 8)
    rows = 2 * 4 * 128 * 8 * 7168 * 2  # two sets, hosted slots, tokens, top-k
    assert rows <= node - direct <= rows * 1.01
    assert hint("node", 32) - hint("direct", 32) >= 4 * rows
    assert hint("auto", 8) == node and hint("direct", 32) > direct
    bill = {item.name: item.num_bytes for item in memory_bill(128, 7168, 32, 256, ranks_per_node=8).items}
    assert "rows to sum" not in bill
    hint("node", 8)
    bill = {item.name: item.num_bytes for item in memory_bill(128, 7168, 32, 256, ranks_per_node=8).items}
    assert rows <= bill["rows to sum"] <= rows * 1.01 and 0 <= node - sum(bill.values()) < 128


def test_low_latency_sums_need_their_memory(variables: Any) -> None:
    """A Buffer made with the direct form's hint says what the other form takes; auto goes on with the direct one."""
    c = case(253, "uniform", num_ranks=4, num_topk=4, hidden=128)
    shape = (c.shape.max_tokens, c.shape.hidden, 4, c.shape.num_experts)

    def start(combine_form: str) -> list[Tensor]:
        variables(RANKS_PER_NODE=2, TRANSPORT="loopback", LOW_LATENCY_COMBINE="direct")
        hint = Buffer.get_low_latency_rdma_size_hint(*shape)
        variables(LOW_LATENCY_COMBINE=combine_form)

        def body(group: ThreadGroup) -> Tensor:
            buffer = Buffer(group, 0, hint, low_latency_mode=True)
            try:
                return combine(buffer, c, dispatch(buffer, c)[2])[0]
            finally:
                buffer.destroy()

        return run_ranks(4, body)

    with pytest.raises(InvalidArgument, match="num_rdma_bytes must be at least"):
        start("node")
    direct = reference.low_latency_combine(rows_of(c), c.topk_idx, c.topk_weights, reference_of(c))
    assert all(same(got, due) for got, due in zip(start("auto"), direct, strict=True))


def test_low_latency_sums_a_rank_that_never_combines_is_named(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", TIMEOUT_S=2, **NODE)
    c = case(254, "uniform", num_ranks=4, num_topk=4, hidden=128)
    over = threading.Barrier(4)

    def body(group: ThreadGroup) -> UcclEpError | None:
        hint = Buffer.get_low_latency_rdma_size_hint(c.shape.max_tokens, c.shape.hidden, 4, c.shape.num_experts)
        buffer = Buffer(group, 0, hint, low_latency_mode=True)
        error = None
        try:
            handle = dispatch(buffer, c)[2]
            if buffer.rank != 1:
                combine(buffer, c, handle)
        except UcclEpError as raised:
            error = raised
        finally:
            over.wait(60)
            buffer.destroy()
        return error

    errors = run_ranks(4, body)
    for rank, phases in ((0, ["sums in the node"]), (3, ["weights", "sums"]), (2, ["sums"])):
        error = errors[rank]
        assert isinstance(error, PeerTimeout), error
        assert error.peer == 1, error
        assert any(phase in str(error.phase) for phase in phases), error


def test_low_latency_sums_go_on_without_a_lost_rank(variables: Any) -> None:
    """Buffer.recover: hosts that are gone are stood for by others, and numbers of calls begin anew."""
    variables(RANKS_PER_NODE=2, TRANSPORT="tcp", TIMEOUT_S=5, **NODE)
    shape = {"num_ranks": 4, "num_experts": 8, "num_topk": 4, "hidden": 128, "max_tokens": 8}
    before = case(255, "uniform", **shape)
    after = [case(256 + turn, "uniform", **shape) for turn in range(4)]
    for c in after:
        c.topk_idx[:] = [torch.where(ids // 2 == 1, -1, ids) for ids in c.topk_idx]  # nobody has rank 1's experts
        c.topk_idx[1].fill_(-1)
    due = [sums_of(c, 2) for c in after]
    direct = reference.low_latency_combine(rows_of(c), c.topk_idx, c.topk_weights, reference_of(c))
    assert any(not same(a, b) for a, b in zip(direct, due[-1], strict=True))  # it is seen which form goes on

    def body(group: ThreadGroup) -> None:
        hint = Buffer.get_low_latency_rdma_size_hint(before.shape.max_tokens, before.shape.hidden, 4, 8)
        buffer = Buffer(group, 0, hint, low_latency_mode=True, explicitly_destroy=True)
        try:
            assert same(combine(buffer, before, dispatch(buffer, before)[2])[0], sums_of(before, 2)[buffer.rank])
            if buffer.rank == 1:
                return
            with pytest.raises((PeerLost, PeerTimeout)):
                for _ in range(50):
                    combine(buffer, before, dispatch(buffer, before)[2])
            assert buffer.recover() == [0, 2, 3]
            for c, wanted in zip(after, due, strict=True):
                assert same(combine(buffer, c, dispatch(buffer, c)[2])[0], wanted[buffer.rank])
            buffer.barrier()
        finally:
            buffer.destroy()

    run_ranks(4, body)
