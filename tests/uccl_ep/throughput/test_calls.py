"""dispatch and combine as callers see them: rows equal to the reference on every path, refusals, events, handles."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.gate import Gate
from tests.uccl_ep.ranks import MIB, assert_refused, case, layout_arguments, same, throughput
from uccl_ep import Buffer, Config, PeerTimeout, SettingsMismatch, ThreadGroup, reference, run_ranks
from uccl_ep.device import output_pool
from uccl_ep.reference import RandomCase, ThroughputInput

WORLDS = [
    pytest.param(1, 0, "auto", id="one rank"),
    pytest.param(3, 0, "auto", id="one node of 3"),
    pytest.param(4, 2, "loopback", id="2 nodes of 2, loopback"),
    pytest.param(5, 2, "tcp", id="nodes of 2 2 1, tcp"),
    pytest.param(3, 1, "shared_memory", id="3 nodes, shared memory"),
]


def inputs_of(c: RandomCase, per_node: int, fp8: bool, with_topk: bool) -> list[ThroughputInput]:
    inputs = []
    for rank in range(c.shape.num_ranks):
        x, scales = reference.cast_fp8(c.x[rank]) if fp8 else (c.x[rank], None)
        layout = reference.dispatch_layout(c.topk_idx[rank], c.shape.num_experts, c.shape.num_ranks, per_node or None)
        ids, weights = (c.topk_idx[rank], c.topk_weights[rank]) if with_topk else (None, None)
        inputs.append(ThroughputInput(x, layout.is_token_in_rank, ids, weights, scales))
    return inputs


def biases_of(c: RandomCase, turn: int) -> list[Any]:
    generator = torch.Generator().manual_seed(turn)
    made = [[torch.randn(x.shape, generator=generator).bfloat16() for _ in range(2)] for x in c.x]
    return [None if turn % 3 == 0 else pair[0] if turn % 3 == 1 else tuple(pair) for pair in made]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
@pytest.mark.parametrize("rows_stay", [False, True])
def test_throughput_api_rows_are_the_references(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str, rows_stay: bool
) -> None:
    if rows_stay:
        monkeypatch.setattr(output_pool, "SMALLEST", 1)  # also these small results are in the arena
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=7)
    shape = {"num_ranks": ranks, "num_experts": 4 * ranks, "num_topk": 3, "hidden": 256, "max_tokens": 40}
    traffic = ["mixed", "uniform", "duplicates", "hot_expert", "no_tokens", "some_unused", "all_unused", "mixed"]
    cases = [case(40 + turn, kind, **shape) for turn, kind in enumerate(traffic)]
    options = [  # fp8 rows, with top-k, expert_alignment, num_worst_tokens
        (turn % 2 == 1, turn != 3, 1 + turn % 3 * 7, 40 * ranks if turn % 4 == 2 else 0) for turn in range(len(cases))
    ]
    rows = {(t, r): torch.randn(40 * ranks, 256, generator=torch.Generator().manual_seed(100 * t + r)).bfloat16()
            for t in range(len(cases)) for r in range(ranks)}  # fmt: skip

    def body(group: ThreadGroup) -> list[Any]:
        rank, out = group.rank(), []
        with throughput(group) as buffer:
            for turn, c in enumerate(cases):
                fp8, with_topk, alignment, worst = options[turn]
                layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
                x = reference.cast_fp8(c.x[rank]) if fp8 else c.x[rank]
                topk = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]} if with_topk else {}
                sent = buffer.dispatch(x, **layout, **topk, expert_alignment=alignment, num_worst_tokens=worst)
                again = buffer.dispatch(x, handle=sent[4])
                n = (sent[0][0] if fp8 else sent[0]).shape[0]
                given = rows[turn, rank][:n]
                if rows_stay and (rank + turn) % 3:  # others copy theirs in the same call
                    given = buffer.empty_rows(n, 256).copy_(given)
                    seen_by_node = buffer._device.arena_offset(given) is not None
                    assert seen_by_node == (n > 0 and buffer._session.regions.arena is not None)
                combined = buffer.combine(given, sent[4], topk_weights=sent[2], bias=biases_of(c, turn)[rank])
                if rows_stay and (rank + turn) % 3:
                    given.fill_(torch.nan)  # the caller's again
                out.append((layout, sent, again, combined))
        return out

    results = run_ranks(ranks, body)
    for turn, c in enumerate(cases):
        fp8, with_topk, alignment, worst = options[turn]
        inputs = inputs_of(c, per_node, fp8, with_topk)
        wanted = reference.throughput_dispatch(inputs, c.shape.num_experts, alignment, worst)
        for rank in range(ranks):
            layout, sent, again, _ = results[rank][turn]
            assert_layout(layout, reference.dispatch_layout(c.topk_idx[rank], 4 * ranks, ranks, per_node or None))
            assert_dispatched(sent, wanted[rank], fp8)
            assert again[1:5] == (None,) * 4
            for got, expected in zip(payload(again[0]), payload(sent[0]), strict=True):
                assert same(got[: wanted[rank].num_rows], expected[: wanted[rank].num_rows])
        given = [rows[turn, r][: wanted[r].recv_x.shape[0]] for r in range(ranks)]
        weights = [w.recv_topk_weights for w in wanted] if with_topk else None
        biases, nodes = biases_of(c, turn), per_node or None
        sums, sum_weights = reference.throughput_combine(given, wanted, weights, biases, nodes)  # type: ignore[arg-type]
        for rank in range(ranks):
            combined, combined_weights, _ = results[rank][turn][3]
            assert same(combined, sums[rank])
            assert (combined_weights is None) == (sum_weights is None)
            if combined_weights is not None and sum_weights is not None:
                assert same(combined_weights, sum_weights[rank])


def payload(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def assert_layout(layout: dict[str, Any], wanted: reference.Layout) -> None:
    names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")
    for name in names:
        got, expected = layout[name], getattr(wanted, name)
        assert (got is None) == (expected is None)
        assert got is None or same(got, expected)


def assert_dispatched(sent: tuple[Any, ...], wanted: reference.ThroughputReceived, fp8: bool) -> None:
    x, ids, weights, counts, _, event = sent
    n = wanted.num_rows
    assert payload(x)[0].shape == wanted.recv_x.shape
    assert same(payload(x)[0][:n], wanted.recv_x[:n])
    if fp8:
        assert wanted.recv_scales is not None and same(x[1][:n], wanted.recv_scales[:n])
    assert (ids is None) == (wanted.recv_topk_idx is None)
    if ids is not None and wanted.recv_topk_idx is not None and wanted.recv_topk_weights is not None:
        assert same(ids, wanted.recv_topk_idx)
        assert same(weights[:n], wanted.recv_topk_weights[:n])
        assert counts == wanted.num_recv_tokens_per_expert_list
    assert event.event is None


def test_throughput_api_refusals_name_argument_value_and_allowed(variables: Any) -> None:
    c = case(3, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group) as buffer:
            x, ids, weights = c.x[rank], c.topk_idx[rank], c.topk_weights[rank]
            t = x.shape[0]
            layout = layout_arguments(buffer, ids, 8)
            topk = {"topk_idx": ids, "topk_weights": weights}
            _, _, _, _, handle, _ = buffer.dispatch(x, **layout, **topk)
            n = sum(int(r[:, rank].sum()) for r in group.all_gather_object(layout["is_token_in_rank"]))
            rows = torch.zeros(n, 128, dtype=torch.bfloat16)

            def dispatch(**changes: Any) -> Callable[[], object]:
                return lambda: buffer.dispatch(**{"x": x, **layout, **topk, **changes})

            def combine(**changes: Any) -> Callable[[], object]:
                return lambda: buffer.combine(**{"x": rows, "handle": handle, **changes})

            fp8 = torch.zeros(t, 128, dtype=torch.float8_e4m3fn)
            stream = {"allocate_on_comm_stream": True}
            table: list[tuple[Callable[[], object], list[object]]] = [
                (lambda: buffer.get_dispatch_layout(ids, 7), ["num_experts=7", "a multiple of the 2 ranks"]),
                (lambda: buffer.get_dispatch_layout(ids, 4098), ["num_experts=4098", "a whole number, 1 to 4096"]),
                (lambda: buffer.get_dispatch_layout(ids, 0), ["num_experts=0", "1 to 4096"]),
                (lambda: buffer.get_dispatch_layout(ids.float(), 8), ["topk_idx=", "torch.float32", "torch.int64"]),
                (lambda: buffer.get_dispatch_layout(ids, 8, None, True, True), ["allocate_on_comm_stream=True"]),
                (dispatch(x=x.T), ["x=", f"(128, {t}), torch.bfloat16, strides (1, 128)", "contiguous 2-D"]),
                (dispatch(x=[1]), ["x=[1]", "contiguous 2-D"]),
                (dispatch(x=x[:, :12].contiguous()), ["x=", f"({t}, 12)", "to 262144", "are 8 channels of torch.b"]),
                (dispatch(x=(x, x.float())), ["x=torch.bfloat16 with scales", "one-byte dtype"]),
                (dispatch(x=(fp8, torch.zeros(t + 1, 1))), ["x[1]=", f"2-D float32 or int32 tensor with {t} rows"]),
                (dispatch(x=(fp8, torch.zeros(t, 1, dtype=torch.int64))), ["x[1]=", "float32 or int32"]),
                (dispatch(num_tokens_per_rank=None), ["num_tokens_per_rank", "got None.", "of get_dispatch_layout"]),
                (dispatch(num_tokens_per_expert=None), ["num_tokens_per_expert", "given without a handle"]),
                (dispatch(num_tokens_per_rank=torch.zeros(3, dtype=torch.int32)), ["num_tokens_per_rank=", "2 elem"]),
                (dispatch(is_token_in_rank=torch.zeros(t, 3, dtype=torch.bool)), ["is_token_in_rank=", "2 columns"]),
                (dispatch(is_token_in_rank=torch.zeros(t + 1, 2, dtype=torch.bool)), [f"{t} rows, as x has"]),
                (dispatch(num_tokens_per_expert=torch.zeros(7, dtype=torch.int32)), ["(7,)", "multiple of the 2"]),
                (dispatch(num_tokens_per_expert=torch.zeros(8)), ["num_tokens_per_expert=", "torch.float32"]),
                (dispatch(topk_weights=None), ["topk_idx and topk_weights=one of them", "both or neither"]),
                (dispatch(topk_idx=None), ["topk_idx and topk_weights=one of them"]),
                (dispatch(topk_idx=torch.zeros(t + 1, 2, dtype=torch.int64)), ["topk_idx=", f"{t} rows, as x has"]),
                (dispatch(topk_weights=weights[:, :1].contiguous()), ["topk_weights=", f"shape ({t}, 2)"]),
                (dispatch(topk_weights=weights.double()), ["topk_weights=", "torch.float64", "torch.float32"]),
                (dispatch(expert_alignment=0), ["expert_alignment=0", "1 to 65536"]),
                (dispatch(num_worst_tokens=-1), ["num_worst_tokens=-1", "0 to "]),
                (dispatch(num_worst_tokens=9, topk_idx=None, topk_weights=None), ["num_worst_tokens=9", "0 without"]),
                (dispatch(**stream), ["allocate_on_comm_stream=True", "without previous_event and async_finish=True"]),
                (dispatch(**stream, previous_event=buffer.capture()), ["allocate_on_comm_stream=True"]),
                (dispatch(previous_event="now"), ["previous_event='now'", "an event such as capture()"]),
                (combine(previous_event="now"), ["previous_event='now'"]),
                (lambda: buffer.get_dispatch_layout(ids, 8, previous_event="now"), ["previous_event='now'"]),
                (dispatch(handle=handle), ["topk_idx and topk_weights=one of them", "None with a handle"]),
                (lambda: buffer.dispatch(torch.zeros(t + 1, 128), handle), ["x=", f"{t} rows, as the handle's"]),
                (combine(x=rows.float()), ["x=", "torch.float32", "torch.bfloat16"]),
                (combine(x=torch.zeros(n + 1, 128).bfloat16()), [f"({n + 1}, 128)", f"{n} rows, as", "came by"]),
                (combine(x=torch.zeros(n, 12).bfloat16()), ["multiple of 8 channels"]),
                (combine(topk_weights=torch.zeros(n + 1, 2)), ["topk_weights=", f"{n} rows and 1 to 32 columns"]),
                (combine(topk_weights=torch.zeros(n, 33)), ["topk_weights=", "1 to 32"]),
                (combine(bias=torch.zeros(t, 64).bfloat16()), ["bias=", f"of shape ({t}, 64)", f"of shape ({t}, 128)"]),
                (combine(bias=torch.zeros(t, 128)), ["bias=", "torch.float32"]),
                (combine(bias=(None, torch.zeros(t + 1, 128).bfloat16())), ["bias=", f"({t + 1}, 128)"]),
                (combine(bias="x"), ["bias='x'", "a pair of them"]),
                (combine(**stream), ["allocate_on_comm_stream=True"]),
            ]  # fmt: skip
            for call, words in table:
                assert_refused(call, words)
            combined, _, _ = buffer.combine(rows, handle)  # nothing of all that was sent
            assert combined.shape == (t, 128)

    run_ranks(2, body)


def test_throughput_api_bias_forms() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    assert Buffer._unpack_bias(None) == (None, None)
    assert Buffer._unpack_bias(one) == (one, None)
    assert Buffer._unpack_bias((one, two)) == (one, two)
    assert_refused(lambda: Buffer._unpack_bias((one, one, two)), ["bias=", "a pair of them"])


def test_throughput_api_async_returns_before_the_work_is_done(variables: Any) -> None:
    c = case(9, "uniform", num_ranks=2, hidden=128, max_tokens=30)
    wanted = reference.throughput_dispatch(inputs_of(c, 0, False, True), 8, num_worst_tokens=60)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], 8)
            group.barrier()
            gate = Gate(buffer._device) if rank == 1 else None  # this rank's kernels come late
            x, ids, weights, counts, handle, event = buffer.dispatch(
                c.x[rank].clone(), topk_idx=c.topk_idx[rank].clone(), topk_weights=c.topk_weights[rank].clone(),
                num_worst_tokens=60, async_finish=True, **layout,
            )  # fmt: skip
            assert counts == [] and event.event is not None
            group.barrier()  # both have returned
            assert not event.event.query()
            time.sleep(0.05)
            assert not event.event.query()
            junk = [torch.full_like(c.x[rank], 7.0) for _ in range(20)]  # takes the place of inputs that were freed
            group.barrier()
            if gate:
                gate.open()
            event.current_stream_wait()
            assert event.event.query() and len(junk) == 20
            n = wanted[rank].num_rows
            assert same(x[:n], wanted[rank].recv_x[:n]) and same(ids, wanted[rank].recv_topk_idx)  # type: ignore[arg-type]
            again, *_, second = buffer.dispatch(c.x[rank], handle=handle, previous_event=event, async_finish=True)
            combined, _, third = buffer.combine(again, handle, async_finish=True, previous_event=second)
            with third:
                pass
            copies = layout["is_token_in_rank"].sum(1, keepdim=True)
            assert torch.equal(combined, (c.x[rank].float() * copies).bfloat16())

    run_ranks(2, body)


def test_throughput_api_waits_for_a_previous_event(variables: Any) -> None:
    from uccl_ep import EventOverlap
    from uccl_ep.device.cpu import CpuDevice
    from uccl_ep.settings import settings

    with throughput(ThreadGroup.create(1)[0]) as buffer:
        other = CpuDevice(settings(), lambda: None)  # a stream of the caller's
        with Gate(other) as gate:
            before = EventOverlap(other.record())
            *_, event = buffer.get_dispatch_layout(
                torch.zeros(4, 1, dtype=torch.int64), 4, previous_event=before, async_finish=True,
                allocate_on_comm_stream=True,
            )  # fmt: skip
            assert event.event is not None and not event.event.query()
            gate.open()
            event.current_stream_wait()
            assert event.event.query()


def test_throughput_api_a_rank_that_does_not_come(variables: Any) -> None:
    variables(TIMEOUT_S=0.4)
    c = case(10, "uniform", num_ranks=3, num_experts=6, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        buffer = Buffer(group, MIB)
        try:
            if rank != 1:
                layout = layout_arguments(buffer, c.topk_idx[rank], 6)
                with pytest.raises(PeerTimeout) as caught:
                    buffer.dispatch(c.x[rank], **layout)
                assert (caught.value.peer, caught.value.rank) == (1, rank)
                assert caught.value.phase == "the count exchange" and caught.value.host
                with pytest.raises(PeerTimeout):
                    buffer.get_dispatch_layout(c.topk_idx[rank], 6)  # unusable from here on
            group.barrier()
        finally:
            buffer.destroy()

    run_ranks(3, body)


Change = Callable[[dict[str, Any]], object]


def less_topk(a: dict[str, Any]) -> None:
    a.update(topk_idx=a["topk_idx"][:, :1].contiguous(), topk_weights=a["topk_weights"][:, :1].contiguous())


@pytest.mark.parametrize(
    "what, change",
    [
        pytest.param("dtype of x is bfloat16 here and float32 there", lambda a: a.update(x=a["x"].float()), id="dtype"),
        pytest.param("top-k is 2 here and 1 there", less_topk, id="top-k"),
        pytest.param("top-k is 2 here and 0 there", lambda a: (a.pop("topk_idx"), a.pop("topk_weights")), id="no ids"),
        pytest.param("number of channels", lambda a: a.update(config=Config(2)), id="channels"),
    ],
)
def test_throughput_api_ranks_that_disagree_are_told(variables: Any, what: str, change: Change) -> None:
    variables(TIMEOUT_S=5)
    c = case(11, "uniform", num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> str:
        rank = group.rank()
        buffer = Buffer(group, MIB)
        try:
            arguments = {"x": c.x[rank], "topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
            if rank == 1:
                change(arguments)
            arguments.update(layout_arguments(buffer, arguments.get("topk_idx", c.topk_idx[rank]), 8))
            try:
                buffer.dispatch(**arguments)
            except SettingsMismatch as error:
                return str(error)
            except PeerTimeout:
                return "waited"
            return "went through"
        finally:
            group.barrier()
            buffer.destroy()

    texts = run_ranks(2, body)
    assert "went through" not in texts
    told = [text for text in texts if "disagree in the count exchange" in text]
    assert told and any(what in text for text in told)


def test_throughput_api_too_few_worst_tokens(variables: Any) -> None:
    variables(TIMEOUT_S=5)
    c = case(12, "uniform", num_ranks=1, num_experts=4, max_tokens=12, hidden=128)
    with pytest.raises(SettingsMismatch, match="rows received against num_worst_tokens"):
        with throughput(ThreadGroup.create(1)[0]) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[0], 4)
            rows = c.x[0].shape[0]
            assert rows > 1
            buffer.dispatch(
                c.x[0], topk_idx=c.topk_idx[0], topk_weights=c.topk_weights[0], num_worst_tokens=rows - 1, **layout
            )


def test_throughput_api_internode_names(variables: Any) -> None:
    c = case(13, num_ranks=1, num_experts=4, hidden=128)
    with throughput(ThreadGroup.create(1)[0]) as buffer:
        layout = layout_arguments(buffer, c.topk_idx[0], 4)
        x, *_, handle, _ = buffer.internode_dispatch(c.x[0], **layout, config=Buffer.get_dispatch_config(1))
        combined, _, _ = buffer.internode_combine(x, handle, config=Buffer.get_combine_config(1))
        sent = layout["is_token_in_rank"][:, :1]
        assert torch.equal(combined, torch.where(sent, c.x[0], 0))
