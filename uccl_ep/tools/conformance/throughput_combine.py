"""Checks of combine: what is added, in which order it is rounded, biases, weights, events, the buffer's end."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.reference import RandomCase
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.throughput_dispatch import dispatch, expected, one_token
from uccl_ep.tools.conformance.world import World

Tensor = torch.Tensor


def biases(world: World, case: RandomCase, number: int) -> list[Any]:
    """For each rank no bias, one, or a pair."""
    made = [tuple(world.rows(40 + 2 * r + i, *x.shape) for i in range(2)) for r, x in enumerate(case.x)]
    return [None if number == 0 else pair[0] if number == 1 else pair for pair in made]


def placed(world: World, bias: Any) -> Any:
    """A bias where the library wants it."""
    if bias is None:
        return None
    return world.put(bias) if isinstance(bias, Tensor) else tuple(world.put(b) for b in bias)


def combine_and_compare(world: World, case: RandomCase, number: int = 0, **arguments: Any) -> Any:
    """dispatch, then combine of other rows, against the reference; returns the event. Collective."""
    received = expected(world, case)
    rows = [world.rows(60 + r, of.num_rows, case.shape.hidden) for r, of in enumerate(received)]
    weights = [of.recv_topk_weights for of in received if of.recv_topk_weights is not None]
    bias = biases(world, case, number)
    sent = dispatch(world, case)
    results = world.buffer("throughput").combine(
        world.put(rows[world.rank]),
        sent[4],
        topk_weights=sent[2],
        bias=placed(world, bias[world.rank]),
        **arguments,
    )
    combined, combined_weights, event = results
    if event.event is not None:
        event.current_stream_wait()
    nodes = None if world.one_node else world.ranks_per_node
    wanted, wanted_weights = reference.throughput_combine(rows, received, weights, bias, nodes)
    world.equal("combined_x", combined, wanted[world.rank])
    if wanted_weights is not None:
        world.equal("combined_topk_weights", combined_weights, wanted_weights[world.rank])
    return event


@check("B")
def throughput_combine_sum(world: World) -> None:
    """The unweighted f32 sum over ranks in ascending order, rounded to bf16 once; by node first.

    Part B.1, to the bit; rows of very different size show another order or another rounding.
    """
    event = combine_and_compare(world, world.case())
    world.expect(event.event is None, "the event of a synchronous combine is not None")


@check("B")
def throughput_combine_one_bias(world: World) -> None:
    """A bias is where the sum begins. Parts A.5 and B.1."""
    combine_and_compare(world, world.case(), 1)


@check("B")
def throughput_combine_two_biases(world: World) -> None:
    """Of a pair of biases the sum is where the sum begins. Parts A.5 and B.1."""
    combine_and_compare(world, world.case(), 2)


@check("A.5")
def throughput_combine_weights_come_back(world: World) -> None:
    """Received weights, combined, are the weights that were sent, exactly; 0 where the id was -1. Parts A.5 and B.1."""
    case = world.case()
    sent = dispatch(world, case)
    _, weights, _ = world.buffer("throughput").combine(sent[0], sent[4], topk_weights=sent[2])
    ids, own = case.topk_idx[world.rank], case.topk_weights[world.rank]
    world.equal("combined_topk_weights", weights, torch.where(ids >= 0, own, torch.zeros(())))


@check("A.5")
def throughput_combine_without_weights(world: World) -> None:
    """Without topk_weights the second result is None. Part A.5."""
    sent = dispatch(world, world.case())
    results = world.buffer("throughput").combine(sent[0], sent[4])
    world.equal("values that combine returns", len(results), 3)
    world.expect(results[1] is None, "combined_topk_weights without topk_weights is not None")


@check("B")
def throughput_combine_no_destination(world: World) -> None:
    """A token that went nowhere gives zeros, or its bias. Part B.1."""
    combine_and_compare(world, world.case(traffic="all_unused"))
    combine_and_compare(world, world.case(1, traffic="all_unused"), 1)


@check("A.5")
def throughput_combine_zero_tokens(world: World) -> None:
    """Ranks without tokens, and with one. Part A.5."""
    combine_and_compare(world, world.case(traffic="no_tokens"))
    combine_and_compare(world, one_token(world))


@check("A.7")
def throughput_combine_asynchronous(world: World) -> None:
    """With async_finish the sum is there after the event. Parts A.5 and A.7."""
    before = world.module.EventOverlap(world.module.EventHandle())
    event = combine_and_compare(world, world.case(), 1, previous_event=before, async_finish=True)
    world.expect(event.event is not None, "the event of an asynchronous combine is None")


@check("A.5")
def throughput_backward(world: World) -> None:
    """The backward pass: combine of gradients, then a cached dispatch with the same handle. Parts A.5 and D.1."""
    case = world.case()
    received = expected(world, case)
    sent = dispatch(world, case)
    buffer = world.buffer("throughput")
    grad = [world.rows(80 + rank, *x.shape) for rank, x in enumerate(case.x)]
    buffer.combine(sent[0], sent[4])
    again = buffer.dispatch(world.put(grad[world.rank]), handle=sent[4])
    own = received[world.rank]
    source = [grad[int(r)][int(t)] for r, t in zip(own.src_rank, own.src_token, strict=True)]
    world.equal("gradients", again[0], torch.stack(source) if source else own.recv_x)


@check("A.5")
def throughput_combine_refusals(world: World) -> None:
    """Rows of another number or dtype are refused before anything is sent; the next call works. Part A.5."""
    case = world.case()
    sent, buffer = dispatch(world, case), world.buffer("throughput")
    more = torch.zeros(sent[0].shape[0] + 1, case.shape.hidden, dtype=torch.bfloat16, device=world.device)
    world.refused("a row too many", lambda: buffer.combine(more, sent[4]))
    world.refused("float64 rows", lambda: buffer.combine(sent[0].double(), sent[4]))
    combine_and_compare(world, case)


@check("A.3")
def buffer_attributes_and_destroy(world: World) -> None:
    """rank, group_size and byte counts can be read; destroy() leaves runtime None. Parts A.2 and A.3."""
    buffer = world.new_buffer("throughput")
    world.equal("rank and group_size", (buffer.rank, buffer.group_size), (world.rank, world.size))
    world.expect(buffer.num_nvl_bytes > 0 and buffer.num_rdma_bytes >= 0, "num_nvl_bytes or num_rdma_bytes is off")
    world.expect(buffer.group is world.group, "group is another object")
    world.expect(buffer.low_latency_mode is False and buffer.explicitly_destroy is True, "flags are not kept")
    world.expect(buffer.runtime is not None, "runtime is None before destroy()")
    world.gather(None)
    buffer.destroy()
    world.expect(buffer.runtime is None, "runtime is not None after destroy()")
