"""The handle: DeepEP's tuple, worked out when it is looked at, on the device that the tables are on."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, layout_arguments, same, throughput
from uccl_ep import Buffer, NotSupported, ThreadGroup, run_ranks
from uccl_ep.device.protocol import HostWords
from uccl_ep.throughput.handle import Routing, ThroughputHandle


def routing(num_nodes: int, words: bool) -> Routing:
    """Two ranks, one channel; rank 0 has sent 2 rows, rank 1 one; this rank sends its 3 tokens as the table says."""
    table = torch.tensor([[True, False], [True, True], [False, True]])
    one = torch.tensor([3], dtype=torch.int32)
    counts = torch.tensor([2, 1], dtype=torch.int32)
    return Routing(
        channels=1, num_tokens=3, num_local_experts=2, topk=1, is_token_in_rank=table,
        channel_prefix=torch.tensor([[2], [2]]).int(), node_rows=torch.full((num_nodes, 1), 2).int(),
        recv_tokens=torch.tensor([[2], [1]]).int(), recv_begin=torch.tensor([[0], [2]]).int(),
        stream_rows=torch.tensor([[2], [1]]).int(), reducer_tokens=torch.zeros(2, 1, 1).int(),
        rank_prefix=torch.tensor([2, 3]).int(),
        expert_counts=HostWords(counts, counts.data_ptr()) if words else counts,
        recv_total=HostWords(one, one.data_ptr()) if words else one,
        recv_src_idx=torch.tensor([0, 1, 0]).int(), number=torch.ones(1).int(), refusal=None, num_rows=0, owner=None,
    )  # fmt: skip


def test_routing_counted_once_the_host_may_read() -> None:
    made = routing(1, words=True)
    assert made.counted() == [2, 1] and made.num_rows == 3
    assert sum(isinstance(t, HostWords) for t in made.tensors()) == 2  # kept with the others
    with pytest.raises(AssertionError):
        routing(1, words=False).counted()  # nobody has waited for it


@pytest.mark.parametrize("num_nodes, parts", [(1, 6), (2, 10)])
def test_routing_handle(num_nodes: int, parts: int) -> None:
    made = routing(num_nodes, words=True)
    handle = ThroughputHandle.make(made, num_nodes)
    assert len(handle) == parts == len(list(handle)) and handle == handle and handle != ThroughputHandle.make(made, 1)
    order = handle[5] if num_nodes == 1 else handle[8]
    assert order.tolist() == [[0, -1], [1, 0], [-1, 1]]
    if num_nodes > 1:
        assert handle[7].view(torch.int32).tolist() == [[0, 0], [0, 1], [1, 0]]  # source rank, token
    assert repr(handle) == f"ThroughputHandle({parts} tensors, 0 rows)"


def handles_of(variables: Any, per_node: int, check: Callable[[Buffer, Any, torch.Tensor], None]) -> None:
    variables(RANKS_PER_NODE=per_node)
    c = case(8, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer, throughput(group) as other:
            layout = layout_arguments(buffer, c.topk_idx[group.rank()], 8)
            x, _, _, _, handle, _ = buffer.dispatch(c.x[group.rank()], **layout)
            check(buffer, handle, x)
            for foreign in (lambda: other.combine(x, handle), lambda: other.dispatch(c.x[group.rank()], handle=handle)):
                assert_refused(foreign, ["handle=one of another Buffer", "dispatch of this Buffer returned"])
            buffer.combine(x, handle)

    run_ranks(2, body)


@pytest.mark.parametrize("per_node", [0, 1])
def test_routing_handle_must_be_the_one_that_dispatch_returned(variables: Any, per_node: int) -> None:
    def check(buffer: Buffer, handle: Any, x: torch.Tensor) -> None:
        copies = [t.clone() for t in handle]
        mixed, place = list(handle), 1 if len(handle) == 6 else 2
        mixed[place] = copies[place]  # as if the parts were of two dispatches
        for forged in (None, 7, handle[0], handle[1:], (None,) * 6, copies, mixed, tuple(handle)[::-1]):
            assert_refused(lambda f=forged: buffer.combine(x, f), ["handle=", "the handle that dispatch returned"])
        of_low_latency = (handle[0], handle[1], 16, 128, 8)
        assert_refused(
            lambda: buffer.combine(x, of_low_latency), ["handle=one of low_latency_dispatch", "low_latency_combine"]
        )
        with pytest.raises(NotSupported, match="cannot be pickled"):
            pickle.dumps(handle)
        with pytest.raises(NotSupported, match="cannot be pickled"):
            copy.deepcopy(handle)

    handles_of(variables, per_node, check)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("per_node", [0, 1])
def test_routing_handle_comes_back_from_autograd_as_a_tuple(variables: Any, per_node: int) -> None:
    """xtuner: `ctx.save_for_backward(*handle)`, and nobody keeps the handle itself; PyTorch saves and detaches."""
    variables(RANKS_PER_NODE=per_node)
    c = case(23, "mixed", num_ranks=2, num_experts=4, hidden=64, max_tokens=9)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[group.rank()], 4)

            class Dispatch(torch.autograd.Function):
                @staticmethod
                def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                    rows, *_, handle, _ = buffer.dispatch(x, **layout)
                    ctx.save_for_backward(*handle)
                    return rows

                @staticmethod
                def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                    kept = ctx.saved_tensors
                    assert type(kept) is tuple
                    once = buffer.combine(gradient, kept)[0]
                    again = buffer.combine(gradient, [t.detach() for t in kept])[0]
                    assert same(once, again) and same(buffer.dispatch(once, handle=kept)[0], Dispatch.apply(once))
                    return once

            x = c.x[group.rank()].requires_grad_()
            rows = Dispatch.apply(x)
            gc.collect()
            rows.backward(torch.ones_like(rows))
            assert x.grad is not None
            assert same(x.grad, layout["is_token_in_rank"].sum(1, keepdim=True).expand_as(x).bfloat16())

    run_ranks(2, body)


def test_routing_handle_tuple_frees_its_routing(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            x, *_, handle, _ = buffer.dispatch(
                torch.zeros(3, 64).bfloat16(), **layout_arguments(buffer, torch.zeros(3, 1).long(), 1)
            )
            routing, kept = weakref.ref(handle.routing), tuple(handle)
            del handle
            assert routing() is not None and buffer.combine(x, kept)[0].shape == x.shape
            gc.disable()  # no cycle: the last tensor takes it along
            try:
                del kept
                assert routing() is None
            finally:
                gc.enable()

    run_ranks(1, body)
