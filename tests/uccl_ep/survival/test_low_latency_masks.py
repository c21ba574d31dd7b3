"""Masks: a masked rank is neither sent to nor waited for, and a silent one is masked when enable_shrink says so."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_low_latency, assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, InvalidArgument, PeerTimeout, ThreadGroup, reference, run_ranks
from uccl_ep.reference import RandomCase

RANKS, LEFT_OUT = 4, 2
WORLDS = [
    pytest.param("auto", 0, id="one node"),
    pytest.param("loopback", 1, id="a node each, loopback"),
    pytest.param("tcp", 1, id="a node each, tcp"),
]


def mask_of(buffer: Buffer) -> list[int]:
    status = torch.full((buffer.group_size,), 9, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    return status.tolist()


def call_both(buffer: Buffer, c: RandomCase, wanted: Any, sums: list[torch.Tensor]) -> None:
    """A dispatch and a combine give what the reference says, bf16."""
    rank = buffer.rank
    sent = buffer.low_latency_dispatch(
        c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, use_fp8=False
    )
    assert_low_latency(sent[:3], wanted[rank])
    rows = expert_rows(rank, c.shape)
    combined, _, _ = buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], sent[2])
    assert same(combined, sums[rank])


def results_of(c: RandomCase, masked: list[set[int]] | None = None) -> tuple[Any, list[torch.Tensor]]:
    wanted = reference_of(c, masked=masked)
    rows = [expert_rows(r, c.shape) for r in range(c.shape.num_ranks)]
    return wanted, reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, wanted, masked)


def test_low_latency_masks_need_enable_shrink(variables: Any) -> None:
    with low_latency(ThreadGroup.create(1)[0], case(1, num_ranks=1).shape) as buffer:
        status = torch.zeros(1, dtype=torch.int32)
        for call in (
            lambda: buffer.low_latency_update_mask_buffer(0, True),
            lambda: buffer.low_latency_query_mask_buffer(status),
            buffer.low_latency_clean_mask_buffer,
        ):
            with pytest.raises(InvalidArgument, match="mask methods need a Buffer made with enable_shrink=True"):
                call()


def test_low_latency_masks_are_set_asked_and_cleaned(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        with low_latency(group, case(1, num_ranks=3, num_experts=6).shape, enable_shrink=True) as buffer:
            assert mask_of(buffer) == [0, 0, 0]
            buffer.low_latency_update_mask_buffer(1, True)
            buffer.low_latency_update_mask_buffer(2, mask=True)
            assert mask_of(buffer) == [0, 1, 1]
            buffer.low_latency_update_mask_buffer(1)  # the default takes the mask away
            assert mask_of(buffer) == [0, 0, 1]
            buffer.low_latency_clean_mask_buffer()
            assert mask_of(buffer) == [0, 0, 0]
            for rank in (-1, 3):
                assert_refused(
                    lambda r=rank: buffer.low_latency_update_mask_buffer(r, True), [f"rank_to_mask={rank}", "0 to 2"]
                )
            for status in (None, torch.zeros(2, dtype=torch.int32), torch.zeros(3)):
                assert_refused(lambda s=status: buffer.low_latency_query_mask_buffer(s), ["mask_status=", "3 elements"])

    run_ranks(3, body)


@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_low_latency_masks_that_no_call_has_met_go_away_again(variables: Any, transport: str, per_node: int) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node)
    c = case(70, "uniform", num_ranks=RANKS, hidden=128)
    whole = results_of(c)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            for _ in range(3):
                call_both(buffer, c, *whole)
                for rank in range(RANKS):
                    buffer.low_latency_update_mask_buffer(rank, True)
                buffer.low_latency_update_mask_buffer(LEFT_OUT)
                buffer.low_latency_clean_mask_buffer()

    run_ranks(RANKS, body)


@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_low_latency_masks_leave_a_rank_out_and_take_it_back(variables: Any, transport: str, per_node: int) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node)
    c = case(71, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    others = set(range(RANKS)) - {LEFT_OUT}
    masked = [others if r == LEFT_OUT else {LEFT_OUT} for r in range(RANKS)]
    whole, parted = results_of(c), results_of(c, masked)
    assert not all(same(a, b) for a, b in zip(whole[1], parted[1], strict=True))

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            call_both(buffer, c, *whole)
            for rank in masked[group.rank()]:
                buffer.low_latency_update_mask_buffer(rank, True)
            if group.rank() == LEFT_OUT:
                time.sleep(0.3)  # nobody waits for it
            begin = time.monotonic()
            for _ in range(4):
                call_both(buffer, c, *parted)
            assert time.monotonic() - begin < 10
            group.barrier()
            buffer.low_latency_clean_mask_buffer()
            for _ in range(3):
                call_both(buffer, c, *whole)
            assert mask_of(buffer) == [0] * RANKS

    run_ranks(RANKS, body)


@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_low_latency_masks_a_rank_that_never_comes(variables: Any, transport: str, per_node: int) -> None:
    timeout_s = 1.0  # longer than ranks that share busy cores are apart
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=timeout_s)
    c = case(72, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    masked = [set() if r == LEFT_OUT else {LEFT_OUT} for r in range(RANKS)]
    parted = results_of(c, masked)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if group.rank() == LEFT_OUT:
                return
            begin = time.monotonic()
            call_both(buffer, c, *parted)
            assert time.monotonic() - begin >= timeout_s
            assert mask_of(buffer) == [int(r == LEFT_OUT) for r in range(RANKS)]
            waited = buffer.stats()["peers"][LEFT_OUT]["wait_ns"]
            assert waited >= timeout_s * 1e9
            for _ in range(5):
                call_both(buffer, c, *parted)
            again = buffer.stats()["peers"][LEFT_OUT]["wait_ns"] - waited
            assert again < timeout_s * 1e9  # it is not waited for again

    run_ranks(RANKS, body)


@pytest.mark.parametrize("transport, per_node", WORLDS[:2])
def test_low_latency_masks_a_rank_that_stops_coming(variables: Any, transport: str, per_node: int) -> None:
    """Its earlier rows arrived; what it has not read keeps a set from being used again until it is masked."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=0.6)
    c = case(73, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    whole = results_of(c)
    parted = results_of(c, [set() if r == LEFT_OUT else {LEFT_OUT} for r in range(RANKS)])

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            for _ in range(3):
                call_both(buffer, c, *whole)
            if group.rank() != LEFT_OUT:
                for _ in range(4):
                    call_both(buffer, c, *parted)
                assert mask_of(buffer)[LEFT_OUT] == 1

    run_ranks(RANKS, body)


def test_low_latency_without_shrink_a_silent_rank_fails_the_call(variables: Any) -> None:
    variables(TIMEOUT_S=0.4)
    c = case(74, "uniform", num_ranks=RANKS, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            if rank == LEFT_OUT:
                return
            with pytest.raises(PeerTimeout) as caught:
                buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 8)
            assert (caught.value.peer, caught.value.phase) == (LEFT_OUT, "dispatch (receive)")
            for call in (lambda: buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 8), buffer.barrier):
                with pytest.raises(PeerTimeout):  # unusable from here on
                    call()

    run_ranks(RANKS, body)
