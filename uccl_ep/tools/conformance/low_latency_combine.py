"""Checks of low_latency_combine: the weighted sum, its target, zero copy, logfmt, hooks and events."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.reference import LowLatencyReceived, RandomCase
from uccl_ep.tools.conformance.low_latency_dispatch import compare, dispatch, expected
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.throughput_dispatch import one_token
from uccl_ep.tools.conformance.world import HIDDEN, LOCAL_EXPERTS, MAX_TOKENS, World

Tensor = torch.Tensor
_LOGFMT_ERROR = 0.02  # relative, root mean square; a 10-bit value is off by 1% at most where a block has 15 octaves


def outputs(world: World, scale: float = 1.0) -> list[Tensor]:
    """bf16 [L, P, H] of every rank: what its experts might have computed."""
    shape = (LOCAL_EXPERTS, world.size * MAX_TOKENS, HIDDEN)
    return [(world.rows(100 + rank, *shape) * scale).bfloat16() for rank in range(world.size)]


def all_received(world: World, case: RandomCase, got: tuple[Any, ...], masked: Any = None) -> list[LowLatencyReceived]:
    """Every rank's handle as the reference takes it: the order of rows is each library's own. Collective."""
    tables = world.gather((got[2][0].cpu(), got[2][1].cpu()))
    made = expected(world, case, masked=masked)
    return [
        LowLatencyReceived(of.recv_x, None, of.recv_count, src_info, layout_range)
        for of, (src_info, layout_range) in zip(made, tables, strict=True)
    ]


def wanted_sum(world: World, case: RandomCase, got: tuple[Any, ...], rows: list[Tensor], masked: Any = None) -> Tensor:
    """combined_x of this rank by the reference. Collective."""
    received = all_received(world, case, got, masked)
    sums = reference.low_latency_combine(rows, case.topk_idx, case.topk_weights, received, masked)
    return sums[world.rank]


def combine(
    world: World, case: RandomCase, got: tuple[Any, ...], x: Tensor, buffer: Any = None, **arguments: Any
) -> tuple[Any, ...]:
    """A combine of rows `x` for the dispatch that returned `got`. Collective."""
    buffer = world.buffer("low_latency") if buffer is None else buffer
    ids, weights = world.put(case.topk_idx[world.rank]), world.put(case.topk_weights[world.rank])
    results = tuple(buffer.low_latency_combine(world.put(x), ids, weights, got[2], **arguments))
    world.equal("values that low_latency_combine returns", len(results), 3)
    return results


def round_trip(world: World, case: RandomCase, **arguments: Any) -> tuple[Any, ...]:
    """dispatch and combine against the reference; returns what combine returned. Collective."""
    rows = outputs(world)
    got = dispatch(world, case)
    results = combine(world, case, got, rows[world.rank], **arguments)
    if results[2] is not None:
        results[2]()
    elif results[1].event is not None:
        results[1].current_stream_wait()
    world.equal("combined_x", results[0], wanted_sum(world, case, got, rows))
    return results


@check("B")
def low_latency_combine_sum(world: World) -> None:
    """The weighted f32 sum over ascending k, -1 left out, rounded to bf16 once, to the bit. Part B.1."""
    results = round_trip(world, world.case())
    world.expect(results[1].event is None, "the event of a synchronous combine is not None")
    world.expect(results[2] is None, "the hook is not None although none was asked for")


@check("A.6")
def low_latency_combine_traffic(world: World) -> None:
    """No tokens; tokens without experts, which give zeros; one hot expert; one token a rank. Parts A.6 and B.1."""
    cases = [world.case(turn, traffic) for turn, traffic in enumerate(("no_tokens", "all_unused", "hot_expert"))]
    for case in (*cases, one_token(world)):
        round_trip(world, case)


@check("A.6")
def low_latency_combine_into(world: World) -> None:
    """`out` is written and returned. Part A.6; vLLM passes it."""
    case = world.case()
    out = torch.full_like(world.put(case.x[world.rank]), 7.0)
    results = round_trip(world, case, out=out)
    world.equal("where combined_x lies", results[0].data_ptr(), out.data_ptr())


@check("A.6")
def low_latency_combine_hook(world: World) -> None:
    """With return_recv_hook a callable comes back, and after it the sum is there. Part A.6."""
    results = round_trip(world, world.case(), return_recv_hook=True)
    world.expect(callable(results[2]), f"the hook is {results[2]!r}")
    world.expect(results[1].event is None, "the event of a call with a hook is not None")


@check("A.6")
def low_latency_combine_asynchronous(world: World) -> None:
    """With async_finish an event comes back, after which the sum is there. Parts A.6 and A.7."""
    results = round_trip(world, world.case(), async_finish=True)
    world.expect(results[1].event is not None, "the event of an asynchronous combine is None")
    world.expect(results[2] is None, "the hook is not None although none was asked for")


@check("A.6")
def low_latency_combine_two_at_once(world: World) -> None:
    """Two micro-batches in turn: dispatch, dispatch, combine, combine. Part A.6."""
    cases, rows = [world.case(), world.case(1)], outputs(world)
    got = [dispatch(world, case) for case in cases]
    sums = [combine(world, case, of, rows[world.rank])[0].clone() for case, of in zip(cases, got, strict=True)]
    for number, (case, of, combined) in enumerate(zip(cases, got, sums, strict=True)):
        world.equal(f"combined_x of micro-batch {number}", combined, wanted_sum(world, case, of, rows))


@check("A.6")
def low_latency_combine_zero_copy(world: World) -> None:
    """Rows written to get_next_low_latency_combine_buffer's view are what a zero_copy combine sends. Part A.6."""
    case, rows = world.case(), outputs(world)
    got = dispatch(world, case)
    view = world.buffer("low_latency").get_next_low_latency_combine_buffer(got[2])
    world.equal("shape and dtype of the view", (view.shape, view.dtype), (rows[0].shape, torch.bfloat16))
    view.copy_(rows[world.rank])
    nothing = torch.zeros_like(rows[world.rank])
    results = combine(world, case, got, nothing, zero_copy=True)
    world.equal("combined_x", results[0], wanted_sum(world, case, got, rows))


@check("B")
def low_latency_combine_logfmt(world: World) -> None:
    """use_logfmt: sums are close to those of plain rows, also where single units go plain. Part B.1."""
    case, rows = world.case(), outputs(world, 0.05)
    got = dispatch(world, case)
    results = combine(world, case, got, rows[world.rank], use_logfmt=True)
    wanted = wanted_sum(world, case, got, rows)
    world.equal("shape and dtype of combined_x", (results[0].shape, results[0].dtype), (wanted.shape, wanted.dtype))
    if wanted.numel():
        size = float(wanted.double().norm()) or 1.0
        error = float((results[0].cpu().double() - wanted.double()).norm()) / size
        world.expect(error < _LOGFMT_ERROR, f"relative error {error:.3g}, not below {_LOGFMT_ERROR}")


@check("A.6")
def low_latency_combine_refusals(world: World) -> None:
    """zero_copy with logfmt, both endings, and rows of another shape are refused; the next call works. Part A.6."""
    case, rows = world.case(), outputs(world)
    got, x = dispatch(world, case), rows[world.rank]
    refusals: dict[str, dict[str, Any]] = {
        "zero_copy with use_logfmt": {"zero_copy": True, "use_logfmt": True},
        "async_finish with return_recv_hook": {"async_finish": True, "return_recv_hook": True},
    }
    for what, arguments in refusals.items():
        world.refused(what, lambda arguments=arguments: combine(world, case, got, x, **arguments))  # type: ignore[misc]
    world.refused("rows of another shape", lambda: combine(world, case, got, x[:, 1:].contiguous()))
    results = combine(world, case, got, x)
    world.equal("combined_x", results[0], wanted_sum(world, case, got, rows))


@check("A.6")
def low_latency_after_throughput(world: World) -> None:
    """clean_low_latency_buffer readies low latency after throughput calls, as SGLang switches modes. Part A.6."""
    world.buffer("low_latency").clean_low_latency_buffer(MAX_TOKENS, HIDDEN, world.num_experts)
    case = world.case()
    compare(world, dispatch(world, case, use_fp8=False), expected(world, case)[world.rank])
    world.expect(world.buffer("low_latency").low_latency_mode is True, "low_latency_mode is not True")
