"""Checks of V2's combine: sums and where they are rounded, biases, weights, padding that must not count, refusals.

Rows of whole numbers make a sum the same in any order and with any rounding in between, so that it is checked to the
bit where the order depends on the mode (allow_multiple_reduction, nodes); so are any rows of two ranks a token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from uccl_ep.reference import RandomCase
from uccl_ep.tools.conformance.elastic_cases import Arrival, arrivals, busy_case, compare, dispatch, elastic
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.world import HIDDEN, World

Tensor = torch.Tensor
Bias = Tensor | tuple[Tensor, Tensor] | None
ALIGNMENT = 8
_ROUNDINGS = 2.0**-6  # of the sum of magnitudes: three roundings to bf16 at most (rank, node, result), 2^-8 each


def whole_rows(world: World, turn: int, rows: int) -> Tensor:
    """Random bf16 of whole numbers from -8 to 8, on the host; no -0, whose sign the contract leaves open."""
    return ((world.rows(turn, rows, HIDDEN).float() * 4).round().clamp(-8, 8) + 0.0).bfloat16()


def rows_of(world: World, wanted: list[Arrival], expand: bool, whole: bool) -> list[Tensor]:
    """What every rank gives back: a row for each one that it received, in its layout; padding is NaN."""
    given = []
    for rank, arrival in enumerate(wanted):
        layout = arrival.layout(ALIGNMENT) if expand else [(0, 0)] * arrival.tokens.num_rows
        rows = whole_rows(world, 70 + rank, len(layout)) if whole else world.rows(70 + rank, len(layout), HIDDEN)
        for place, row in enumerate(layout):
            if row is None:
                rows[place] = float("nan")
        given.append(rows)
    return given


def terms(
    world: World, case: RandomCase, wanted: list[Arrival], rows: list[Tensor], expand: bool
) -> list[list[Tensor]]:
    """For each token of this rank, the rows that belong to it, by ascending top-k position.

    Not expanded, a rank gives one row for a token; its position is the last one that names an expert of that rank.
    """
    local = world.num_experts // world.size
    here = [{(int(r), int(t)): n for n, (r, t) in enumerate(zip(a.tokens.src_rank, a.tokens.src_token, strict=True))}
            for a in wanted]  # fmt: skip
    places = [arrival.places(ALIGNMENT) for arrival in wanted]
    found: list[list[Tensor]] = []
    for token, ids in enumerate(case.topk_idx[world.rank].tolist()):
        owners = [expert // local if expert >= 0 else -1 for expert in ids]
        own = []
        for k, owner in enumerate(owners):
            if owner < 0 or (not expand and owner in owners[k + 1 :]):
                continue
            n = here[owner][(world.rank, token)]
            own.append(rows[owner][places[owner][(n, k)] if expand else n])
        found.append(own)
    return found


def summed(own: list[list[Tensor]], bias: Bias) -> Tensor:
    """f32 [T, H]: bias, then the rows of each token in their order."""
    parts = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
    total = torch.zeros(len(own), HIDDEN)
    for part in parts:
        total += part.float()
    for token, rows in enumerate(own):
        for row in rows:
            total[token] += row.float()
    return total


def biases(world: World, tokens: int, number: int, whole: bool) -> Bias:
    """None, one, or a pair, on the host."""
    make = whole_rows if whole else lambda world, turn, rows: world.rows(turn, rows, HIDDEN)
    made = make(world, 90, tokens), make(world, 91, tokens)
    return None if number == 0 else made[0] if number == 1 else made


def put(world: World, bias: Bias) -> Any:
    """A bias where the library wants it."""
    if bias is None:
        return None
    return world.put(bias) if isinstance(bias, Tensor) else tuple(world.put(part) for part in bias)


def combined(
    world: World, case: RandomCase, rows: list[Tensor], expand: bool, kind: str = "elastic", **arguments: Any
) -> tuple[Any, ...]:
    """dispatch, then combine of other rows; what combine returned. Collective."""
    handle = dispatch(world, case, kind, do_expand=expand, expert_alignment=ALIGNMENT)[3]
    results = tuple(elastic(world, kind).combine(world.put(rows[world.rank]), handle=handle, **arguments))
    world.equal("values that combine returns", len(results), 3)
    return results


def combine_and_compare(world: World, case: RandomCase, number: int = 0, kind: str = "elastic") -> None:
    """Both layouts against plain sums: of whole numbers; with "elastic_once" of any rows, in the contract's order."""
    whole = kind == "elastic"
    wanted = arrivals(world, case)
    bias = biases(world, case.x[world.rank].shape[0], number, whole)
    for expand in (False, True):
        rows = rows_of(world, wanted, expand, whole)
        got = combined(world, case, rows, expand, kind, bias=put(world, bias))
        total = summed(terms(world, case, wanted, rows, expand), bias)
        world.equal(f"combined_x, expanded={expand}", got[0], total.bfloat16())
        world.expect(got[1] is None, "combined_topk_weights without topk_weights is not None")
        world.expect(got[2].event is None, "the event of a synchronous combine is not None")


@check("C.3")
def elastic_combine_sum(world: World) -> None:
    """The sum of a token's rows, expanded or not; padding rows count for nothing. Parts C.3 and B.1."""
    for turn, traffic in enumerate(("some_unused", "uniform")):
        combine_and_compare(world, busy_case(world, turn, traffic))


@check("C.3")
def elastic_combine_biases(world: World) -> None:
    """One bias, or the sum of two, is where the sum begins. Parts C.3 and B.1."""
    for number in (1, 2):
        combine_and_compare(world, busy_case(world, number), number)


@check("B")
def elastic_combine_roundings(world: World) -> None:
    """Any rows: within the roundings that several reductions may have (rank, node, result). Part B.1."""
    case = busy_case(world, traffic="uniform")
    wanted = arrivals(world, case)
    bias = biases(world, case.x[world.rank].shape[0], 1, whole=False)
    for expand in (False, True):
        rows = rows_of(world, wanted, expand, whole=False)
        got = combined(world, case, rows, expand, bias=put(world, bias))[0].detach().cpu().float()
        own = terms(world, case, wanted, rows, expand)
        magnitude = summed([[row.abs() for row in of] for of in own], bias.abs() if isinstance(bias, Tensor) else None)
        worst = float(((got - summed(own, bias)).abs() / magnitude.clamp(min=1e-30)).max()) if own else 0.0
        world.expect(worst <= _ROUNDINGS, f"combined_x is off by {worst:.2g} of its terms, expanded={expand}")


def two_ranks_a_token(world: World, case: RandomCase) -> None:
    """Leaves each token the experts of the first two ranks that it names."""
    local = world.num_experts // world.size
    for rank, ids in enumerate(case.topk_idx):
        kept = ids.clone()
        for row in kept:
            owners = [expert // local for expert in row.tolist() if expert >= 0]
            first = list(dict.fromkeys(owners))[:2]
            row[[expert >= 0 and expert // local not in first for expert in row.tolist()]] = -1
        case.topk_idx[rank] = kept


@check("B")
def elastic_combine_two_ranks(world: World) -> None:
    """Any rows, up to two ranks a token, no bias: a rank's rows by ascending k in f32, rounded; their sum, rounded.

    Part B.1, to the bit: with two terms neither the order of ranks nor a sum of each node first makes a difference.
    """
    case = busy_case(world, traffic="uniform")
    two_ranks_a_token(world, case)
    wanted = arrivals(world, case)
    local, own_ids = world.num_experts // world.size, case.topk_idx[world.rank]
    for expand in (False, True):
        rows = rows_of(world, wanted, expand, whole=False)
        got = combined(world, case, rows, expand)[0]
        total = torch.zeros(own_ids.shape[0], HIDDEN)
        for owner in range(world.size):
            ids = torch.where(torch.div(own_ids, local, rounding_mode="floor") == owner, own_ids, -1)
            of_owner = replace(case, topk_idx=[*case.topk_idx[: world.rank], ids, *case.topk_idx[world.rank + 1 :]])
            total += summed(terms(world, of_owner, wanted, rows, expand), None).bfloat16().float()
        world.equal(f"combined_x, expanded={expand}", got, total.bfloat16())


@check("B")
def elastic_combine_once(world: World) -> None:
    """allow_multiple_reduction=False: bias, then all rows by ascending top-k position, in f32, rounded once.

    Part B.1, to the bit. Not expanded, a rank's row stands at the last position that names the rank.
    """
    for number in (0, 1, 2):
        combine_and_compare(world, busy_case(world, number, "uniform"), number, "elastic_once")


@check("C.3")
def elastic_combine_weights_come_back(world: World) -> None:
    """Received weights, combined, are the weights that were sent, exactly; 0 where the id is -1. Part C.3."""
    case = busy_case(world)
    own = torch.where(case.topk_idx[world.rank] >= 0, case.topk_weights[world.rank], 0.0)
    for expand in (False, True):
        x, _, weights, handle, _ = dispatch(world, case, do_expand=expand, expert_alignment=ALIGNMENT)
        got = elastic(world).combine(x, handle=handle, topk_weights=weights)
        world.equal(f"combined_topk_weights, expanded={expand}", got[1], own)


@check("C.3")
def elastic_combine_without_cpu_sync(world: World) -> None:
    """Rows of the worst size: what lies beyond the real ones must not count. Parts C.2 and C.3."""
    case = busy_case(world)
    wanted = arrivals(world, case)
    for expand in (False, True):
        x, _, _, handle, _ = dispatch(world, case, do_expand=expand, expert_alignment=ALIGNMENT, do_cpu_sync=False)
        rows = rows_of(world, wanted, expand, whole=True)
        full = torch.full_like(x, float("nan"))
        full[: rows[world.rank].shape[0]] = world.put(rows[world.rank])
        got = elastic(world).combine(full, handle=handle)
        total = summed(terms(world, case, wanted, rows, expand), None)
        world.equal(f"combined_x, expanded={expand}", got[0], total.bfloat16())


@check("C.3")
def elastic_combine_no_destination(world: World) -> None:
    """A token that went nowhere gives zeros, or its bias. Parts C.3 and B.1."""
    case = busy_case(world)
    for rank in range(world.size):
        case.topk_idx[rank] = torch.full_like(case.topk_idx[rank], -1)
    for number in (0, 1):
        combine_and_compare(world, case, number)


@check("C.3")
def elastic_combine_asynchronous(world: World) -> None:
    """With async_with_compute_stream the sum is there after the event. Part C.3."""
    case = busy_case(world)
    wanted = arrivals(world, case)
    rows = rows_of(world, wanted, False, whole=True)
    got = combined(world, case, rows, False, previous_event=elastic(world).capture(), allocate_on_comm_stream=True,
                   async_with_compute_stream=True)  # fmt: skip
    if world.expect(got[2].event is not None, "the event of an asynchronous combine is None"):
        got[2].current_stream_wait()
        world.equal("combined_x", got[0], summed(terms(world, case, wanted, rows, False), None).bfloat16())


@check("C.3")
def elastic_backward(world: World) -> None:
    """The backward pass: combine, then a cached dispatch of gradients with the same handle. Parts C.2, C.3 and D.4."""
    case, grads = busy_case(world), busy_case(world)
    for rank, x in enumerate(grads.x):
        grads.x[rank] = world.rows(80 + rank, *x.shape)
    x, _, _, handle, _ = dispatch(world, case)
    elastic(world).combine(x, handle=handle)
    again = elastic(world).dispatch(
        world.put(grads.x[world.rank]), handle=handle, num_sms=handle.num_sms, do_cpu_sync=False
    )
    wanted = arrivals(world, grads)[world.rank]
    world.equal("gradients", again[0][: wanted.tokens.num_rows], wanted.tokens.recv_x)


@check("C.3")
def elastic_combine_refusals(world: World) -> None:
    """Rows of another number or dtype, and 1-D weights that cannot be kept apart, are refused; the next call works.

    Part C.3: without allow_multiple_reduction an expanded combine takes no weights.
    """
    case = busy_case(world)
    x, _, _, handle, _ = dispatch(world, case)
    more = torch.zeros(x.shape[0] + 1, HIDDEN, dtype=torch.bfloat16, device=world.device)
    world.refused("a row too many", lambda: elastic(world).combine(more, handle=handle))
    world.refused("float64 rows", lambda: elastic(world).combine(x.double(), handle=handle))
    once = elastic(world, "elastic_once")
    rows, _, weights, kept, _ = dispatch(world, case, "elastic_once", do_expand=True)
    world.refused("weights of expanded rows", lambda: once.combine(rows, handle=kept, topk_weights=weights))
    compare(world, dispatch(world, case), arrivals(world, case)[world.rank])
