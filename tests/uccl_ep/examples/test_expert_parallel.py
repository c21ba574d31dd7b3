"""uccl_ep.examples.expert_parallel with plain experts on ranks that are threads: values, gradients, both modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uccl_ep import run_ranks
from uccl_ep.examples.expert_parallel import ExpertParallel, from_fp8, make_buffer, to_fp8

RANKS, EXPERTS, HIDDEN, TOPK = 4, 8, 128, 3
TOKENS = (5, 0, 17, 1)
BF16, FP8 = 0.02, 0.15  # of the largest element


class Experts(torch.nn.Module):
    """One matrix an expert; ids from the number of matrices on mean "none"."""

    def __init__(self, matrices: Tensor) -> None:
        super().__init__()
        self.matrices = torch.nn.Parameter(matrices.clone())

    def forward(self, rows: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        result = torch.zeros_like(rows)
        for expert, matrix in enumerate(self.matrices):
            if bool((idx == expert).any()):
                result = result + ((idx == expert) * weights).sum(1, keepdim=True) * (rows @ matrix)
        return result


def matrices() -> Tensor:
    return torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1)) * HIDDEN**-0.5


def inputs(rank: int, experts: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2 + rank)
    x = torch.randn(TOKENS[rank], HIDDEN, generator=draw)
    idx = torch.rand(TOKENS[rank], EXPERTS, generator=draw)[:, :experts].topk(TOPK if experts > 2 else 1).indices
    return x, idx, torch.rand(idx.shape, generator=draw)


def relative(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if wanted.numel() == 0:
        return 0.0
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9))


def on_all_ranks(body: Any, fp8: bool = False) -> None:
    def rank_of(group: Any) -> None:
        share = EXPERTS // RANKS
        first = group.rank() * share
        buffer = make_buffer(group, HIDDEN, EXPERTS, max(TOKENS))
        layer = ExpertParallel(Experts(matrices()[first : first + share]), buffer, EXPERTS, max(TOKENS), fp8)
        body(group.rank(), layer)
        group.barrier()
        buffer.destroy()

    run_ranks(RANKS, rank_of)


@pytest.mark.parametrize("fp8", [False, True])
def test_examples_expert_parallel_both_modes_compute_what_one_process_does(fp8: bool) -> None:
    def body(rank: int, layer: ExpertParallel) -> None:
        x, idx, weights = inputs(rank)
        with torch.no_grad():
            wanted = Experts(matrices())(x, idx, weights)
            for mode in ("throughput", "low_latency", "throughput", "low_latency"):
                layer.mode = mode  # type: ignore[assignment]
                assert relative(layer(x, idx, weights), wanted) <= (FP8 if fp8 else BF16), mode

    on_all_ranks(body, fp8)


@pytest.mark.parametrize("used", [EXPERTS, 2])  # with 2, only rank 0 has experts that get rows
def test_examples_expert_parallel_gradients(used: int) -> None:
    def body(rank: int, layer: ExpertParallel) -> None:
        x, idx, weights = inputs(rank, used)
        x.requires_grad_(), weights.requires_grad_()
        layer(x, idx, weights).square().sum().backward()
        everybody = Experts(matrices())
        for other in (r for r in range(RANKS) if TOKENS[r]):
            x2, idx2, weights2 = inputs(other, used)
            x2.requires_grad_(), weights2.requires_grad_()
            everybody(x2, idx2, weights2).square().sum().backward()
            if other == rank:
                assert x.grad is not None and weights.grad is not None
                assert x2.grad is not None and weights2.grad is not None
                assert relative(x.grad, x2.grad) <= BF16
                assert relative(weights.grad, weights2.grad) <= BF16
        share = EXPERTS // RANKS
        wanted = everybody.matrices.grad[rank * share : (rank + 1) * share]
        got = layer.local.matrices.grad  # type: ignore[union-attr, attr-defined]
        got = torch.zeros_like(wanted) if got is None else got
        assert relative(got, wanted) <= BF16
        assert used == EXPERTS or rank == 0 or bool((wanted == 0).all())

    on_all_ranks(body)


def test_examples_expert_parallel_fp8_keeps_four_bits() -> None:
    rows = torch.randn(3, 256, generator=torch.Generator().manual_seed(9)).bfloat16() * 50
    rows[1] = 0
    quantised, scales = to_fp8(rows)
    assert quantised.dtype == torch.float8_e4m3fn and scales.shape == (3, 2) and scales.dtype == torch.float32
    back = from_fp8(quantised, scales)
    assert back.dtype == torch.bfloat16 and bool((back[1] == 0).all())
    assert relative(back.float(), rows.float()) <= 2**-4
    assert from_fp8(quantised[None], scales[None]).shape == (1, 3, 256)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(1, 4), st.integers(-12, 12), st.integers(0, 1000))
def test_examples_expert_parallel_fp8_error_is_bounded(rows: int, blocks: int, power: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, 128 * blocks, generator=generator) * 2.0**power).bfloat16()
    quantised, scales = to_fp8(x)
    assert quantised.dtype == torch.float8_e4m3fn and quantised.shape == x.shape
    assert scales.dtype == torch.float32 and scales.shape == (rows, blocks)
    error = (from_fp8(quantised, scales).float() - x.float()).abs()
    # e4m3 keeps 3 fraction bits (1/16 when rounded) down to 2^-6, and 2^-10 of the scale below; bf16 adds 1/256.
    bound = x.float().abs() / 14 + scales.repeat_interleave(128, 1) * 2.0**-9
    assert bool((error <= bound).all())


def test_examples_expert_parallel_fp8_each_block_has_a_scale_of_its_own() -> None:
    x = torch.cat([torch.full((1, 128), 448.0), torch.full((1, 128), 0.5), torch.zeros(1, 128)], 1).bfloat16()
    quantised, scales = to_fp8(x)
    assert scales[0, 0] == 1.0
    assert scales[0, 1] == torch.tensor(0.5) / 448
    assert scales[0, 2] > 0  # a block of zeros must not divide by zero
    assert quantised.float()[0, [0, 128, 256]].tolist() == [448.0, 448.0, 0.0]
    assert torch.equal(from_fp8(quantised, scales), x)
