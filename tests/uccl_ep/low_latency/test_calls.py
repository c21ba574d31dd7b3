"""Low-latency calls as callers see them: refusals, hooks, events, statistics, zero copy and logfmt."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.gate import Gate
from tests.uccl_ep.ranks import assert_low_latency, assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, InvalidArgument, NotSupported, ThreadGroup, _native, reference, run_ranks
from uccl_ep.reference import RandomCase

Tensor = torch.Tensor


def dispatch(buffer: Buffer, c: RandomCase, **options: Any) -> tuple[Any, ...]:
    """This rank's bf16 dispatch of a case."""
    rank, options = buffer.rank, {"use_fp8": False, **options}
    return buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, **options)


def combine(buffer: Buffer, c: RandomCase, handle: Any, scale: float = 1.0, **options: Any) -> tuple[Any, ...]:
    """This rank's combine of expert_rows."""
    rows = expert_rows(buffer.rank, c.shape, scale)
    return buffer.low_latency_combine(rows, c.topk_idx[buffer.rank], c.topk_weights[buffer.rank], handle, **options)


def sums_of(c: RandomCase, scale: float = 1.0, **options: Any) -> list[Tensor]:
    rows = [expert_rows(r, c.shape, scale) for r in range(c.shape.num_ranks)]
    return reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, reference_of(c), **options)


def test_low_latency_api_refusals_name_argument_value_and_allowed(variables: Any) -> None:
    c = case(51, "uniform", num_ranks=2, hidden=256, max_tokens=16)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            x, ids, weights = c.x[rank], c.topk_idx[rank], c.topk_weights[rank]
            t, rows = x.shape[0], expert_rows(rank, c.shape)
            _, _, handle, _, _ = dispatch(buffer, c)

            def send(**changes: Any) -> Callable[[], object]:
                base = {"x": x, "topk_idx": ids, "num_max_dispatch_tokens_per_rank": 16, "num_experts": 8}
                return lambda: buffer.low_latency_dispatch(**{**base, **changes})

            def give_back(**changes: Any) -> Callable[[], object]:
                base = {"x": rows, "topk_idx": ids, "topk_weights": weights, "handle": handle}
                return lambda: buffer.low_latency_combine(**{**base, **changes})

            both = {"async_finish": True, "return_recv_hook": True}
            clone = (handle[0].clone(), *handle[1:])
            table: list[tuple[Callable[[], object], list[object]]] = [
                (send(x=x.float()), ["x=", "torch.float32", "torch.bfloat16"]),
                (send(x=x.T), ["x=", "contiguous 2-D"]),
                (send(x=torch.zeros(t, 200).bfloat16()), ["x=200", "of a multiple of 128 channels with use_fp8=True"]),
                (send(topk_idx=ids + 8), ["topk_idx=", "ids from", "-1 (not routed) or 0 to 7"]),
                (send(topk_idx=torch.zeros(t + 1, 2, dtype=torch.int64)), ["topk_idx=", f"{t} rows, as x has"]),
                (send(num_max_dispatch_tokens_per_rank=t - 1), [f"x={t}", f"dispatch_tokens_per_rank={t - 1} rows"]),
                (send(num_experts=9), ["num_experts=9", "multiple of the 2 ranks"]),
                (send(use_ue8m0=True), ["use_ue8m0=True", "False without use_fp8=True and round_scale=True"]),
                (send(use_ue8m0=True, round_scale=True, use_fp8=False), ["use_ue8m0=True", "use_fp8=True"]),
                (send(**both), ["async_finish and return_recv_hook=both True", "True one at a time"]),
                (send(cumulative_local_expert_recv_stats=torch.zeros(3, dtype=torch.int32)), ["(3,)", "4 elements"]),
                (send(cumulative_local_expert_recv_stats=torch.zeros(4)), ["float32", "torch.int32"]),
                (send(dispatch_wait_recv_cost_stats=torch.zeros(2, 2, dtype=torch.int64)), ["(2, 2)", "2 elements"]),
                (give_back(x=rows[:, :-1].contiguous()), ["x=", "(4, 31, 256)", "(4, 32, 256)"]),
                (give_back(x=rows.float()), ["x=", "torch.float32", "a contiguous bf16 tensor"]),
                (give_back(x=rows.transpose(0, 1).contiguous().transpose(0, 1)), ["x=", "contiguous"]),
                (give_back(x=None), ["x=None"]),
                (give_back(topk_idx=torch.full_like(ids, -2)), ["topk_idx=", "ids from -2 to -2"]),
                (give_back(topk_weights=weights.double()), ["topk_weights=", "float64"]),
                (give_back(topk_weights=weights[:, :1].contiguous()), ["topk_weights=", f"shape ({t}, 2)"]),
                (give_back(topk_idx=ids.repeat(20, 1), topk_weights=weights.repeat(20, 1)), ["up to 16 rows"]),
                (give_back(out=torch.zeros(t, 128).bfloat16()), ["out=", f"shape ({t}, 128)", f"shape ({t}, 256)"]),
                (give_back(out=torch.zeros(t, 256)), ["out=", "float32"]),
                (give_back(combine_wait_recv_cost_stats=torch.zeros(2)), ["combine_wait_recv", "torch.int64"]),
                (give_back(zero_copy=True, use_logfmt=True), ["zero_copy=True", "False with use_logfmt=True"]),
                (give_back(use_logfmt=True), ["use_logfmt=True", "False with hidden=256, which is no multiple of 512"]),
                (give_back(use_fp8=1.5), ["use_fp8=1.5", "True or False"]),
                (give_back(handle=clone), ["handle: its src_info is not the tensor", "as it came"]),
                (give_back(handle=handle[:4]), ["handle=", "low_latency_dispatch of this Buffer"]),
                (give_back(**both), ["async_finish and return_recv_hook"]),
                (lambda: buffer.get_next_low_latency_combine_buffer(None), ["handle=None"]),
                (lambda: buffer.clean_low_latency_buffer(0, 256, 8), ["num_max_dispatch_tokens_per_rank=0"]),
            ]  # fmt: skip
            for call, words in table:
                assert_refused(call, words)
            for fork in ("use_ue8m0_for_sf", "align_fp8_quantization"):
                with pytest.raises(NotSupported, match=fork):
                    send(**{fork: True})()
            combined, _, _ = give_back(use_logfmt=False)()  # type: ignore[misc]
            assert same(combined, sums_of(c)[rank])  # type: ignore[has-type]  # nothing of all that was sent or counted

    run_ranks(2, body)


def test_low_latency_api_a_handle_can_be_put_together_again(variables: Any) -> None:
    """vLLM and SGLang keep the handle's parts; a pickled one carries what lies behind src_info with it."""
    c = case(52, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            _, _, handle, _, _ = dispatch(buffer, c)
            for made in ((*handle,), list(handle), pickle.loads(pickle.dumps(handle))):
                assert same(combine(buffer, c, made)[0], sums_of(c)[buffer.rank])

    run_ranks(2, body)


def test_low_latency_api_hook_receives(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    c = case(53, num_ranks=2, hidden=128)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            x = c.x[rank].clone()
            sent = buffer.low_latency_dispatch(x, c.topk_idx[rank], 16, 8, use_fp8=False, return_recv_hook=True)
            x.zero_()  # the rows have been read
            recv_x, count, handle, event, hook = sent
            assert event.event is None and callable(hook)
            group.barrier()
            hook()
            assert_low_latency((recv_x, count, handle), wanted[rank])
            before = [t.clone() for t in (recv_x, count, *handle[:2])]
            hook()  # a second call has nothing to do
            assert all(same(a, b) for a, b in zip(before, (recv_x, count, *handle[:2]), strict=True))
            rows = expert_rows(rank, c.shape)
            combined, event, hook = buffer.low_latency_combine(
                rows, c.topk_idx[rank], c.topk_weights[rank], handle, return_recv_hook=True
            )
            rows.zero_()
            assert event.event is None and hook is not None
            hook()
            assert same(combined, sums_of(c)[rank])

    run_ranks(2, body)


def test_low_latency_api_two_results_may_be_outstanding_and_no_third(variables: Any) -> None:
    cases = [case(60 + i, num_ranks=2, hidden=128) for i in range(3)]
    wanted = [reference_of(c) for c in cases]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, cases[0].shape) as buffer:
            first, second = (dispatch(buffer, c, return_recv_hook=True) for c in cases[:2])
            with pytest.raises(InvalidArgument, match="a third low_latency_dispatch before the receive hook.*number 1"):
                dispatch(buffer, cases[2])
            for sent, received in ((first, wanted[0]), (second, wanted[1])):
                sent[4]()
                assert_low_latency(sent[:3], received[buffer.rank])
            assert_low_latency(dispatch(buffer, cases[2])[:3], wanted[2][buffer.rank])
            first[4]()  # a second time: the rows are others by now, so it must not receive again
            assert_low_latency(first[:3], wanted[0][buffer.rank])
            hooks = [
                combine(buffer, cases[i], sent[2], return_recv_hook=True) for i, sent in enumerate((first, second))
            ]
            with pytest.raises(InvalidArgument, match="a third low_latency_combine"):
                combine(buffer, cases[0], first[2])
            for i in (1, 0):  # hooks in the other order
                hooks[i][2]()
                assert same(hooks[i][0], sums_of(cases[i])[buffer.rank])

    run_ranks(2, body)


def test_low_latency_api_a_hook_after_destroy_is_refused(variables: Any) -> None:
    c = case(54, num_ranks=1, num_experts=4, hidden=128)
    with low_latency(ThreadGroup.create(1)[0], c.shape) as buffer:
        *_, hook = dispatch(buffer, c, return_recv_hook=True)
    with pytest.raises(InvalidArgument, match="destroyed"):
        hook()


@pytest.mark.parametrize("per_node", [0, 1])
def test_low_latency_api_async_returns_before_the_work_is_done(variables: Any, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")
    c = case(55, "uniform", num_ranks=2, hidden=128)
    wanted, sums = reference_of(c), sums_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            gate = Gate(buffer._device) if rank == 1 else None  # this rank's kernels come late
            # Inputs that nobody but the call holds: they must live until they have been read.
            recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
                c.x[rank].clone(), c.topk_idx[rank].int(), 16, 8, use_fp8=False, async_finish=True
            )
            assert hook is None and event.event is not None
            junk = [torch.full_like(c.x[rank], 7.0) for _ in range(20)]
            group.barrier()  # both have returned
            time.sleep(0.02)
            assert not event.event.query() and len(junk) == 20
            group.barrier()
            if gate:
                gate.open()
            event.current_stream_wait()
            assert event.event.query()
            assert_low_latency((recv_x, count, handle), wanted[rank])
            combined, event, _ = combine(buffer, c, handle, async_finish=True)
            with event:
                pass
            assert same(combined, sums[rank])

    run_ranks(2, body)


def test_low_latency_api_statistics(variables: Any) -> None:
    c = case(56, "uniform", num_ranks=3, num_experts=6, hidden=128)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            rows = torch.tensor([100, 200], dtype=torch.int32)
            waits, combine_waits = torch.full((3,), 5), torch.full((3,), 7)
            for turn in range(1, 4):
                group.barrier()
                if rank == 2:
                    time.sleep(0.1)
                *_, handle, _, _ = dispatch(
                    buffer, c, cumulative_local_expert_recv_stats=rows, dispatch_wait_recv_cost_stats=waits
                )
                assert rows.tolist() == [
                    base + turn * int(n) for base, n in zip((100, 200), wanted[rank].recv_count, strict=True)
                ]
                group.barrier()
                if rank == 2:
                    time.sleep(0.1)
                combine(buffer, c, handle, combine_wait_recv_cost_stats=combine_waits)
            for base, seen in ((5, waits), (7, combine_waits)):
                assert seen[rank] == base  # nobody waits for itself
                if rank != 2:
                    assert seen[2] - base > 3 * 70_000_000  # nanoseconds, added up
                    assert seen[2] > 2 * seen[1 - rank]

    run_ranks(3, body)


def test_low_latency_api_out_is_written_and_returned(variables: Any) -> None:
    c = case(57, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            _, _, handle, _, _ = dispatch(buffer, c)
            tokens = c.x[rank].shape[0]
            memory = torch.full((tokens * 128 + 11,), 3.0, dtype=torch.bfloat16)
            for first in (0, 3):  # the second view begins in the middle of a 16-byte word
                out = memory[first : first + tokens * 128].view(tokens, 128)
                combined, _, _ = combine(buffer, c, handle, out=out)
                assert combined is out and same(out, sums_of(c)[rank])
            assert (memory[3 + tokens * 128 :] == 3.0).all()

    run_ranks(2, body)


def test_low_latency_api_inputs_that_begin_inside_a_word(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    c = case(58, num_ranks=2, hidden=128)

    def shifted(t: Tensor) -> Tensor:
        moved = torch.empty(t.numel() + 3, dtype=t.dtype)[3:].view(t.shape)
        return moved.copy_(t)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            x, ids, weights = (shifted(t[rank]) for t in (c.x, c.topk_idx, c.topk_weights))
            sent = buffer.low_latency_dispatch(x, ids, 16, 8, use_fp8=False)
            assert_low_latency(sent[:3], reference_of(c)[rank])
            rows = shifted(expert_rows(rank, c.shape))
            assert same(buffer.low_latency_combine(rows, ids, weights, sent[2])[0], sums_of(c)[rank])

    run_ranks(2, body)


@pytest.mark.parametrize("transport, per_node", [("auto", 0), ("loopback", 1), ("tcp", 2)])
@pytest.mark.parametrize("hidden", [512, 320])
def test_low_latency_api_zero_copy(variables: Any, transport: str, per_node: int, hidden: int) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node)
    c = case(59, "uniform", num_ranks=3, num_experts=6, hidden=hidden)
    sums = sums_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        garbage = torch.full(expert_rows(rank, c.shape).shape, torch.nan, dtype=torch.bfloat16)
        with low_latency(group, c.shape) as buffer:
            workspace = buffer._life.low_latency._low_latency.counters
            staging = workspace[: _native.LowLatencyCalls.MAX_STAGING_ROWS]  # their tickets
            seen = set()
            for _ in range(5):
                _, _, handle, _, _ = dispatch(buffer, c)
                rows = buffer.get_next_low_latency_combine_buffer(handle)
                assert rows.shape == garbage.shape and rows.dtype == torch.bfloat16
                assert rows.stride(1) == -(-(hidden + hidden // 64) // 8) * 8 and not rows.is_contiguous()
                seen.add(rows.data_ptr())
                rows.copy_(expert_rows(rank, c.shape))
                combined, _, _ = buffer.low_latency_combine(
                    garbage, c.topk_idx[rank], c.topk_weights[rank], handle, zero_copy=True
                )
                assert same(combined, sums[rank])
            # Three sets in turn where the node's other ranks read rows in place: ranks 0 and 1 of two.
            alone = per_node == 1 or (per_node == 2 and rank == 2)
            assert len(seen) == (2 if alone else 3)
            assert not staging.any()  # no row went through the staging area
            _, _, handle, _, _ = dispatch(buffer, c)
            assert same(combine(buffer, c, handle)[0], sums[rank])
            assert bool(staging.any()) == (transport != "auto")  # the copying form does use it

    run_ranks(3, body)


def test_low_latency_api_zero_copy_rows_that_do_not_fit_count_nothing(variables: Any) -> None:
    c = case(61, num_ranks=1, num_experts=4, hidden=128)
    with low_latency(ThreadGroup.create(1)[0], c.shape) as buffer:
        _, _, handle, _, _ = dispatch(buffer, c)
        hundred = torch.zeros(100, dtype=torch.uint8)
        real, buffer._session.zero_copy = buffer._session.zero_copy, lambda num_bytes: (hundred, 0)  # type: ignore[method-assign]
        for _ in range(3):  # were one of them counted as sent, the third would be refused for that
            assert_refused(lambda: combine(buffer, c, handle, zero_copy=True), ["zero_copy=True", "is room for 100;"])
        buffer._session.zero_copy = real  # type: ignore[method-assign]
        assert same(combine(buffer, c, handle)[0], sums_of(c)[0])


def write_bytes(buffer: Buffer) -> int:
    """Bytes that this rank's proxy has sent so far, once all of it is complete."""
    buffer.barrier()
    return int(buffer.stats()["proxy"]["write_bytes"])


@pytest.mark.parametrize("hidden", [512, 1024, 1536])
def test_low_latency_api_logfmt_is_close_and_sends_less(variables: Any, hidden: int) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    c = case(62, "uniform", num_ranks=2, num_topk=2, hidden=hidden)
    small = 1e-2  # magnitudes below 1, which logfmt can hold
    exact, coded = sums_of(c, small), sums_of(c, small, use_logfmt=True)

    def body(group: ThreadGroup) -> tuple[int, int]:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            sent = []
            for logfmt in (False, True):
                _, _, handle, _, _ = dispatch(buffer, c)
                before = write_bytes(buffer)
                combined, _, _ = combine(buffer, c, handle, small, use_logfmt=logfmt)
                sent.append(write_bytes(buffer) - before)
                if not logfmt:
                    assert same(combined, exact[rank])
            # One code of difference is a factor of 2 ** (octaves / 510); the sum of K rows then differs by no more than
            # that part of its largest term, and by its own rounding to bf16.
            largest = expert_rows(0, c.shape, small).float().abs().max() * 2
            assert (combined.float() - coded[rank].float()).abs().max() <= largest * (
                2 ** (32 / 510) - 1
            ) + 2**-8 * largest
            assert reference.calc_diff(combined, coded[rank]) < 1e-6
            assert not same(combined, exact[rank])
            return sent[0], sent[1]

    for plain, encoded in run_ranks(2, body):
        assert encoded < 0.75 * plain


def test_low_latency_api_logfmt_sends_plain_what_it_cannot_hold(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    c = case(63, "uniform", num_ranks=2, hidden=512)
    sums = sums_of(c, 100.0)  # magnitudes above 1

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            _, _, handle, _, _ = dispatch(buffer, c)
            assert same(combine(buffer, c, handle, 100.0, use_logfmt=True)[0], sums[buffer.rank])

    run_ranks(2, body)


def test_low_latency_api_calls_of_other_threads_go_on_meanwhile(variables: Any) -> None:
    """A wait for a peer does not hold the interpreter: the peer may be a thread of the same process."""
    c = case(64, num_ranks=2, hidden=128)
    entered = threading.Event()

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            if group.rank() == 0:
                entered.set()
                dispatch(buffer, c)
            else:
                assert entered.wait(20)
                time.sleep(0.05)
                dispatch(buffer, c)

    run_ranks(2, body)
