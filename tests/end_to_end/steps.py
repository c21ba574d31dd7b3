"""Inputs and expected results of one dispatch and combine, for all ranks, from a seed.

Every rank can make everybody's inputs, so each compares its own results with the reference without asking anyone:
that is what lets rounds follow each other without a barrier in between.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from uccl_ep import reference
from uccl_ep.reference import CaseShape, Fp8Format, RandomCase
from uccl_ep.sizes import round_up

LOW_LATENCY_FORMATS = {
    "bf16": None,
    "fp8": Fp8Format(),
    "fp8_round_scale": Fp8Format(round_scale=True),
    "fp8_ue8m0": Fp8Format(round_scale=True, use_ue8m0=True),
}
COMBINES = {"plain": 8, "zero_copy": 8, "logfmt": 512, "fp8": 128, "mxfp8": 32, "nvfp4": 64}
"""Ways of a low-latency combine, and what H is then a multiple of."""
THROUGHPUT_FORMATS = ("bf16", "float32", "fp8_float_scales", "fp8_int_scales")


@dataclass(frozen=True)
class LowLatencyStep:
    """One low-latency dispatch and the combine of made-up expert outputs."""

    seed: int
    max_tokens: int = 8
    hidden: int = 256
    local_experts: int = 2
    topk: int = 4
    traffic: str = "mixed"
    format: str = "bf16"
    send: str = "sync"  # sync | async | hook
    combine: str = "plain"  # plain | zero_copy | how rows travel: logfmt | fp8 | mxfp8 | nvfp4
    masked: tuple[int, ...] = ()  # ranks that all others mask, and that mask all others
    torn: int = -1  # with enable_shrink: the rank that dies in this round, after it has called dispatch

    @property
    def combines(self) -> dict[str, bool]:
        """Combine's keyword for how its rows travel."""
        return {} if self.combine in ("plain", "zero_copy") else {f"use_{self.combine}": True}


@dataclass(frozen=True)
class ThroughputStep:
    """One throughput dispatch, cached dispatches of other rows, and the combine of made-up expert outputs."""

    seed: int
    max_tokens: int = 16
    hidden: int = 256
    local_experts: int = 2
    topk: int = 4
    traffic: str = "mixed"
    format: str = "bf16"
    num_scales: int = 2
    column_major: bool = False
    with_topk: bool = True
    worst: bool = False
    alignment: int = 1
    num_bias: int = 0
    combine_weights: bool = True
    num_cached: int = 0
    use_async: bool = False
    num_sms: int = 20
    masked: tuple[int, ...] = ()  # ranks that all others leave out, and that leave out all others
    apart: bool = False  # each rank a cell of its own, as with enable_shrink
    surprise: bool = False  # the layout does not know yet that ranks are masked: the dispatch finds out
    torn: int = -1  # with enable_shrink: the rank that dies in this round, after it has called dispatch


Step = LowLatencyStep | ThroughputStep
AnyStep = TypeVar("AnyStep", LowLatencyStep, ThroughputStep)


@dataclass(frozen=True, eq=False)
class LowLatencyExpected:
    """`received` as the reference has it; `outputs` are the made-up expert rows, `combined` what they sum to."""

    case: RandomCase
    received: list[reference.LowLatencyReceived]
    outputs: list[Tensor]
    combined: list[Tensor]


@dataclass(frozen=True, eq=False)
class ThroughputExpected:
    """Per rank: inputs, layout, received rows, expert outputs, bias and combined sums."""

    case: RandomCase
    inputs: list[reference.ThroughputInput]
    layouts: list[reference.Layout]
    received: list[reference.ThroughputReceived]
    outputs: list[Tensor]
    bias: list[reference.Bias]
    combined: list[Tensor]
    combined_weights: list[Tensor] | None
    num_worst_tokens: int
    counts: list[list[int]]  # num_recv_tokens_per_expert_list


_lock = threading.RLock()  # ranks that are threads compute each expectation once


@functools.lru_cache(maxsize=8)
def _expected(step: Step, ranks: int, ranks_per_node: int | None) -> LowLatencyExpected | ThroughputExpected:
    if isinstance(step, LowLatencyStep):
        return _low_latency(step, ranks)
    return _throughput(step, ranks, ranks_per_node)


def without_torn(step: AnyStep) -> AnyStep:
    """The step as it comes out where the loss is noticed before anything of the lost rank is taken in."""
    if isinstance(step, ThroughputStep):
        return replace(step, masked=(step.torn,), apart=True, torn=-1)  # type: ignore[call-arg]
    return replace(step, masked=(step.torn,), torn=-1)


def low_latency_expected(step: LowLatencyStep, ranks: int) -> LowLatencyExpected:
    """What every rank sends and must get."""
    with _lock:
        result = _expected(step, ranks, None)
    assert isinstance(result, LowLatencyExpected)
    return result


def throughput_expected(step: ThroughputStep, ranks: int, ranks_per_node: int | None) -> ThroughputExpected:
    """What every rank sends and must get."""
    with _lock:
        result = _expected(step, ranks, ranks_per_node)
    assert isinstance(result, ThroughputExpected)
    return result


def _case(step: Step, ranks: int) -> RandomCase:
    shape = CaseShape(ranks, ranks * step.local_experts, step.topk, step.hidden, step.max_tokens)
    case = reference.random_case(step.seed, shape, step.traffic)
    # Every mode refuses ids that name no expert, except -1.
    return replace(case, topk_idx=[torch.where(ids >= shape.num_experts, -1, ids) for ids in case.topk_idx])


def _random(step: Step, *what: int) -> torch.Generator:
    """A generator of its own for each tensor of a step, so that a rank can make any of them alone."""
    seed = step.seed
    for number in what:
        seed = seed * 1000003 + number + 1
    return torch.Generator().manual_seed(seed & (1 << 63) - 1)


def _low_latency(step: LowLatencyStep, ranks: int) -> LowLatencyExpected:
    case = _case(step, ranks)
    experts = ranks * step.local_experts
    masks = None
    if step.masked:
        masks = [[r for r in range(ranks) if (r in step.masked) != (own in step.masked)] for own in range(ranks)]
    form, x = LOW_LATENCY_FORMATS[step.format], case.x
    if step.format == "fp8_ue8m0":  # the reference packs whole groups of four scales
        x = [torch.nn.functional.pad(rows, (0, -step.hidden % 512)) for rows in x]
    received = reference.low_latency_dispatch(x, case.topk_idx, step.max_tokens, experts, form, masks)
    rows = (step.local_experts, ranks * step.max_tokens, step.hidden)
    outputs = [torch.randn(rows, generator=_random(step, 1, rank)).bfloat16() for rank in range(ranks)]
    given = (outputs, case.topk_idx, case.topk_weights, received, masks)
    combined = reference.low_latency_combine(*given, **step.combines)
    return LowLatencyExpected(case, received, outputs, combined)


def rows_of(step: ThroughputStep, case: RandomCase, rank: int, call: int) -> tuple[Tensor, Tensor | None]:
    """(x, scales) of a rank in the step's dispatch (`call` 0) or one of its cached dispatches (from 1)."""
    tokens, generator = case.x[rank].shape[0], _random(step, 2, rank, call)
    if step.format == "bf16":
        return (case.x[rank] if call == 0 else case.x[rank].flip(0).contiguous() * -1), None
    if step.format == "float32":
        return torch.randn(tokens, step.hidden, generator=generator), None
    x = torch.randint(0, 256, (tokens, step.hidden), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    # Bits travel; what they mean is the receiver's affair.
    scales = torch.randint(-(2**31), 2**31 - 1, (tokens, step.num_scales), generator=generator, dtype=torch.int32)
    if step.format == "fp8_float_scales":
        scales = torch.rand(tokens, step.num_scales, generator=generator)
    return x, scales.t().contiguous().t() if step.column_major else scales


def _throughput(step: ThroughputStep, ranks: int, ranks_per_node: int | None) -> ThroughputExpected:
    case = _case(step, ranks)
    experts = ranks * step.local_experts
    all_ids = case.topk_idx
    if step.masked:
        case = replace(case, topk_idx=[_reachable(step, ranks, ids, own) for own, ids in enumerate(all_ids)])
    layouts = [reference.dispatch_layout(ids, experts, ranks, ranks_per_node) for ids in case.topk_idx]
    inputs = []
    for rank in range(ranks):
        x, scales = rows_of(step, case, rank, 0)
        choices = (all_ids[rank], case.topk_weights[rank]) if step.with_topk else (None, None)
        inputs.append(reference.ThroughputInput(x, layouts[rank].is_token_in_rank, *choices, scales))  # type: ignore[call-arg]
    worst = ranks * step.max_tokens if step.worst and step.with_topk else 0
    received = reference.throughput_dispatch(inputs, experts, step.alignment, worst)
    outputs, bias = [], []
    for rank in range(ranks):
        rows = received[rank].recv_x.shape[0]
        outputs.append(torch.randn(rows, step.hidden, generator=_random(step, 3, rank)).bfloat16())
        shape = (step.num_bias, case.x[rank].shape[0], step.hidden)
        given = torch.randn(shape, generator=_random(step, 4, rank)).bfloat16()
        bias.append(None if step.num_bias == 0 else given[0] if step.num_bias == 1 else (given[0], given[1]))
    weights = None
    if step.with_topk and step.combine_weights:
        weights = [own.recv_topk_weights for own in received if own.recv_topk_weights is not None]
    combined, combined_weights = reference.throughput_combine(
        outputs, received, weights, bias, ranks_per_node, step.apart
    )
    return ThroughputExpected(
        replace(case, topk_idx=all_ids),
        inputs,
        layouts,
        received,
        outputs,
        bias,
        combined,
        combined_weights,
        worst,
        [_counts(step, layouts, rank, worst) for rank in range(ranks)],
    )


def _reachable(step: ThroughputStep, ranks: int, ids: Tensor, own: int) -> Tensor:
    """-1 for experts on the other side of the masks."""
    masked = torch.tensor([int(rank in step.masked) for rank in range(ranks)])
    side = masked[(ids.clamp(0, ranks * step.local_experts - 1) // step.local_experts).long()]
    return torch.where(side == int(own in step.masked), ids, -1)


def _counts(step: ThroughputStep, layouts: list[reference.Layout], rank: int, worst: int) -> list[int]:
    """From the layouts, since a dispatch without topk_idx counts too (the reference then has nothing to count)."""
    total = sum(layout.num_tokens_per_expert for layout in layouts)
    assert isinstance(total, Tensor)
    own = total[rank * step.local_experts : (rank + 1) * step.local_experts].tolist()
    return [] if worst else [round_up(count, step.alignment) for count in own]
