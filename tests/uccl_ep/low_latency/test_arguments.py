"""Arguments that calls copy: each kernel counts in words of its own, and what a call sets stays in its copy."""

from __future__ import annotations

from typing import Any

from tests.uccl_ep.ranks import case, low_latency
from uccl_ep import ThreadGroup, _native, run_ranks

CASE = case(5, num_ranks=1, num_experts=8, num_topk=2, hidden=256, max_tokens=16)
KERNELS = ("dispatch_send", "dispatch_receive", "combine_send", "combine_receive", "combine_reduce")


def prototypes_of_a_buffer(check: Any) -> None:
    """Runs `check(prototypes)` once a call has laid memory out."""

    def body(group: ThreadGroup) -> None:
        with low_latency(group, CASE.shape) as buffer:
            buffer.low_latency_dispatch(CASE.x[0], CASE.topk_idx[0], 16, 8, use_fp8=False)
            check(buffer._life.low_latency._low_latency.prototypes)

    run_ranks(1, body)


def test_low_latency_prototypes_share_no_words(variables: Any) -> None:
    variables()

    def check(prototypes: Any) -> None:
        calls = [getattr(prototypes, name).call for name in KERNELS]
        assert len({call.ticket for call in calls}) == len(calls)
        barriers = sorted(call.grid_barrier for call in calls)
        assert all(b - a >= 4 * _native.GRID_BARRIER_WORDS for a, b in zip(barriers, barriers[1:], strict=False))
        assert {call.num_experts for call in calls} == {8} and {call.num_local_experts for call in calls} == {8}
        assert prototypes.dispatch_send.num_writes != prototypes.combine_reduce.num_writes

    prototypes_of_a_buffer(check)


def test_low_latency_prototypes_do_not_see_what_calls_set(variables: Any) -> None:
    variables()

    def check(prototypes: Any) -> None:
        for name in KERNELS:
            prototype = getattr(prototypes, name)
            before = prototype.bytes
            copy = type(prototype)(prototype)
            assert copy.bytes == before
            copy.epoch, copy.reduces = 0x1234, 1
            assert prototype.bytes == before and copy.call.epoch == 0x1234 and copy.call.reduces == 1
            copy.epoch, copy.reduces = prototype.call.epoch, prototype.call.reduces
            assert copy.bytes == before  # nothing else was changed

    prototypes_of_a_buffer(check)
