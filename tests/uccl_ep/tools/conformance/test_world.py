"""What checks work with: soft comparisons to the bit, refusals, inputs that all ranks agree on, buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uccl_ep
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.tools.conformance.world import MAX_PROBLEMS, World, bits


def world_of(rank: int = 0, size: int = 4, seed: int = 1, name: str = "some_check") -> World:
    world = World(uccl_ep, ThreadGroup.create(size)[rank], "cpu", 2, seed)
    world.check_name = name
    return world


def problems_of(got: Any, wanted: Any) -> list[str]:
    world = world_of()
    world.equal("it", got, wanted)
    return world.problems


def test_world_equal_is_to_the_bit() -> None:
    x = torch.tensor([[1.0, -0.0], [float("nan"), 2.0]])
    assert problems_of(x.clone(), x) == [] and problems_of(x.T.contiguous().T, x) == []  # strides do not count
    assert problems_of(x.double(), x) == ["it is (2, 2) torch.float64, not (2, 2) torch.float32"]
    assert problems_of(x[:1], x) == ["it is (1, 2) torch.float32, not (2, 2) torch.float32"]
    assert problems_of(torch.tensor([[1.0, 0.0], [float("nan"), 2.0]]), x)[0].endswith("first in row 0")
    other = x.clone()
    other[1, 1] = 3
    assert problems_of(other, x) == ["it: 1 of 16 bytes differ, first in row 1"]
    assert problems_of(None, x) == ["it is a NoneType, not a tensor"]
    empty = torch.zeros(0, 5)
    assert problems_of(empty, empty) == [] and bits(empty).shape == (0, 1)
    float8 = torch.ones(3, 4).to(torch.float8_e4m3fn)
    assert problems_of(float8, float8.clone()) == []


def test_world_equal_of_plain_values_wants_the_type() -> None:
    assert problems_of([1], [1]) == [] and problems_of((None, None), (None, None)) == []
    assert problems_of((1,), [1]) and problems_of(True, 1) and problems_of([1], [2])


def test_world_refused() -> None:
    def raises() -> None:
        raise KeyError("no")

    world = world_of()
    world.refused("one", raises)
    world.refused("two", raises, (KeyError,))
    assert world.problems == []
    world.refused("three", raises, (ValueError, TypeError))
    world.refused("four", dict)
    assert world.problems == ["three: raised KeyError, not ValueError or TypeError", "four: accepted"]


def test_world_notes_a_few_problems_only() -> None:
    world = world_of()
    assert world.expect(1, "never") and not world.expect(0, "0")
    for number in range(2 * MAX_PROBLEMS):
        world.note(str(number))
    assert len(world.problems) == MAX_PROBLEMS


def test_world_inputs_are_the_same_on_every_rank_and_differ_between_checks() -> None:
    first, other = world_of(0).case(), world_of(3).case()
    assert all(torch.equal(a, b) for a, b in zip(first.x + first.topk_idx, other.x + other.topk_idx, strict=True))
    assert torch.equal(world_of(0).rows(5, 3, 4), world_of(2).rows(5, 3, 4))
    different = [world_of(name="another"), world_of(seed=2)]
    shapes = [[tuple(x.shape) for x in w.case().x] for w in (world_of(), *different)]
    assert shapes[0] != shapes[1] and shapes[0] != shapes[2]
    assert not torch.equal(world_of().rows(0, 8), world_of().rows(1, 8))


def test_world_buffers_are_made_once_and_dropped(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)

    def body(group: ThreadGroup) -> list[bool]:
        world = World(uccl_ep, group, "cpu", 2, 1)
        buffers = [world.buffer("throughput"), world.buffer("low_latency")]
        facts = [world.buffer("throughput") is buffers[0], buffers[1].low_latency_mode, world.one_node]
        assert world.gather(world.rank) == [0, 1, 2]
        world.gather(None)
        world.drop_buffers()
        return [*facts, all(b.runtime is None for b in buffers)]

    assert run_ranks(3, body) == [[True, True, False, True]] * 3


@pytest.mark.parametrize("size, per_node, one", [(2, 8, True), (4, 4, True), (4, 2, False)])
def test_world_knows_nodes(size: int, per_node: int, one: bool) -> None:
    assert World(uccl_ep, ThreadGroup.create(size)[0], "cpu", per_node, 1).one_node is one
