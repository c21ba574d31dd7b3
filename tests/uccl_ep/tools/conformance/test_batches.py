"""The checks of bit-consistency: green on ours, red on a Buffer whose sums look at the batch, in either mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import assert_red, module_with, replaced, run, wrong
from uccl_ep.reference import CaseShape, random_case
from uccl_ep.tools.conformance.batches import remixed
from uccl_ep.tools.conformance.runner import PASSED

CHECKS = ["throughput_batch_keeps_bits", "low_latency_batch_keeps_bits"]


@pytest.mark.parametrize("per_node", [4, 2])
def test_batches_ours_pass_on_one_node_and_on_two(variables: Any, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node, TIMEOUT_S=10)
    outcomes = run(module_with(Buffer=uccl_ep.Buffer), CHECKS, per_node=per_node)
    assert {o.status for o in outcomes.values()} == {PASSED}, outcomes


def _last_bit_of_long_batches(self: Any, arguments: Any, results: Any) -> Any:
    """As a library that splits a sum by the number of rows: the last bit of a number is another one."""
    combined = results[0].clone()
    combined.view(torch.int16).bitwise_xor_(int(len(combined) > 12))
    return replaced(results, _0=combined)


def _scales_of_the_batch(self: Any, arguments: Any, results: Any) -> Any:
    if not isinstance(results[0], tuple):
        return results
    data, scales = results[0]
    return replaced(results, _0=(data, scales * (1 + 2**-7 * int(results[1].sum() % 2))))


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    ("methods", "red", "green"),
    [
        ({"after_combine": _last_bit_of_long_batches}, CHECKS[0], CHECKS[1]),
        ({"after_low_latency_combine": _last_bit_of_long_batches}, CHECKS[1], CHECKS[0]),
        ({"after_low_latency_dispatch": _scales_of_the_batch}, CHECKS[1], CHECKS[0]),
    ],
)
def test_batches_are_red_where_a_batch_shows(variables: Any, methods: Any, red: str, green: str) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)
    assert_red(wrong(**methods), red, "in another batch", [green])


def test_batches_are_remixed_as_said() -> None:
    shape = CaseShape(num_ranks=3, hidden=8, max_tokens=10)
    seen = set()
    for seed in range(20):
        case, other = random_case(seed, shape), random_case(seed + 100, shape)
        batch, taken, places = remixed(case, other, seed)
        for rank, x in enumerate(batch.x):
            kept, rows = taken[rank], places[rank]
            assert len(x) == min(10, len(kept) + len(other.x[rank])) and len(set(rows.tolist())) == len(rows)
            assert torch.equal(x[rows], case.x[rank][kept])
            assert torch.equal(batch.topk_idx[rank][rows], case.topk_idx[rank][kept])
            assert torch.equal(batch.topk_weights[rank][rows], case.topk_weights[rank][kept])
            seen.add((len(kept) > 0, len(x) > len(kept), rows.tolist() != sorted(rows.tolist())))
    assert (True, True, True) in seen and len(seen) >= 4
