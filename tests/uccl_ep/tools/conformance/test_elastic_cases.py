"""What V2's checks work with: layouts of expanded rows, cases without idle ranks, soft comparisons."""

from __future__ import annotations

import pytest
import torch

from tests.uccl_ep.tools.conformance.test_world import world_of
from tests.uccl_ep.tools.conformance.threads import module_with
from uccl_ep.tools.conformance.elastic_cases import (
    Arrival,
    arrivals,
    busy_case,
    compare,
    compare_expanded,
    offered,
    worst_rows,
)
from uccl_ep.tools.conformance.registry import Skipped
from uccl_ep.tools.conformance.world import MAX_TOKENS


def arrival(ids: list[list[int]]) -> Arrival:
    """Of tokens with these local ids; row i holds i, its weights are i + k / 10."""
    world = world_of()
    wanted = arrivals(world, busy_case(world))[0].tokens
    n, topk = len(ids), len(ids[0])
    x = torch.arange(n).bfloat16().unsqueeze(1).expand(n, 4).contiguous()
    table = torch.tensor(ids)
    tokens = type(wanted)(x, None, table, None, [], torch.zeros(n).int(), torch.arange(n).int(), n, n)
    weights = torch.arange(n).float().unsqueeze(1) + torch.arange(topk) / 10
    return Arrival(tokens, weights, torch.arange(n).int())


def test_elastic_cases_layout_is_by_expert_and_padded() -> None:
    one = arrival([[2, 0], [-1, 2], [2, -1]])
    assert one.counts == [1, 0, 3] and one.aligned(2) == [2, 0, 4] and one.aligned(1) == [1, 0, 3]
    assert one.layout(2) == [(0, 1), None, (0, 0), (1, 1), (2, 0), None]
    assert one.places(2) == {(0, 1): 0, (0, 0): 2, (1, 1): 3, (2, 0): 4}
    assert worst_rows(world_of(size=2), 8, 4) == -(-(2 * MAX_TOKENS * 3 + 7 * 3) // 8) * 8


def test_elastic_cases_leave_no_rank_idle() -> None:
    world = world_of()
    for turn in range(8):
        case = busy_case(world, turn)
        assert all(x.shape[0] for x in case.x)
        for x, ids, weights in zip(case.x, case.topk_idx, case.topk_weights, strict=True):
            assert x.shape[0] == ids.shape[0] == weights.shape[0]
            for row in ids.tolist():
                used = [expert for expert in row if expert >= 0]
                assert len(set(used)) == len(used)  # V2 wants them distinct


def test_elastic_cases_arrivals_keep_the_source_weights() -> None:
    world = world_of()
    case = busy_case(world)
    for one in arrivals(world, case):
        for row, (rank, token) in enumerate(zip(one.tokens.src_rank, one.tokens.src_token, strict=True)):
            assert torch.equal(one.weights[row], case.topk_weights[int(rank)][int(token)])
            assert int(one.source[row]) == int(rank) * MAX_TOKENS + int(token)


def test_elastic_cases_compare_says_what_differs() -> None:
    wanted = arrival([[2, 0], [-1, 2], [2, -1]])
    x, weights = wanted.tokens.recv_x, wanted.weights
    more = torch.cat([x, torch.full((2, 4), 7.0).bfloat16()])  # rows beyond the real ones may hold anything
    world = world_of()
    compare(world, (more, wanted.ids, weights), wanted)
    assert world.problems == []
    compare(world, (x.flip(0), wanted.ids, None), wanted)
    assert [problem.split()[0] for problem in world.problems] == ["recv_x:", "recv_topk_weights"]


def test_elastic_cases_compare_expanded_looks_at_padding_only_when_asked() -> None:
    wanted = arrival([[2, 0], [-1, 2], [2, -1]])
    rows = torch.tensor([0, 9, 0, 1, 2, 9]).bfloat16().unsqueeze(1).expand(6, 4).contiguous()
    weights = torch.tensor([0.1, 9, 0.0, 1.1, 2.0, 9])
    world = world_of()
    compare_expanded(world, (rows, None, weights), wanted, 2)
    assert world.problems == []
    compare_expanded(world, (rows, None, weights), wanted, 2, zeros=True)
    assert len(world.problems) == 1 and world.problems[0].startswith("recv_x, padding")
    rows[3] = 5
    compare_expanded(world, (rows, wanted.ids, weights), wanted, 2)
    assert any(problem.startswith("recv_x, real rows") for problem in world.problems)
    assert any("is not None" in problem for problem in world.problems)
    compare_expanded(world, (rows[:4], None, weights), wanted, 2)
    assert any("4 rows, not 6" in problem for problem in world.problems)


def test_elastic_cases_skip_where_there_is_no_elastic_buffer() -> None:
    world = world_of()
    assert offered(world).__name__ == "ElasticBuffer"
    world.module = module_with()
    with pytest.raises(Skipped, match="not offered"):
        offered(world)
