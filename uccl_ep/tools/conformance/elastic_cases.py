"""What the checks of V2 work with: an ElasticBuffer if the module has one, cases, and what must come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.reference import RandomCase, ThroughputInput, ThroughputReceived
from uccl_ep.sizes import round_up
from uccl_ep.tools.conformance.registry import Skipped
from uccl_ep.tools.conformance.throughput_dispatch import layout_of
from uccl_ep.tools.conformance.world import LOCAL_EXPERTS, MAX_TOKENS, World

Tensor = torch.Tensor
Row = tuple[int, int]
"""A received token and a k: what stands in one expanded row."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """What one rank must receive from a dispatch of V2.

    Attributes: `tokens`: as the throughput dispatch gives them; `weights`: f32 [n, K], as the source had them;
    `source`: int32 [n], source rank * M + token.
    """

    tokens: ThroughputReceived
    weights: Tensor
    source: Tensor

    @property
    def ids(self) -> Tensor:
        """int64 [n, K]: local experts or -1."""
        assert self.tokens.recv_topk_idx is not None
        return self.tokens.recv_topk_idx

    @property
    def counts(self) -> list[int]:
        """Choices of each local expert."""
        return [int((self.ids == expert).sum()) for expert in range(LOCAL_EXPERTS)]

    def aligned(self, alignment: int) -> list[int]:
        """`counts`, rounded up."""
        return [round_up(count, alignment) for count in self.counts]

    def layout(self, alignment: int) -> list[Row | None]:
        """What stands in each row of an expanded result, None in padding."""
        rows: list[Row | None] = []
        for expert in range(LOCAL_EXPERTS):
            rows += [(int(token), int(k)) for token, k in (self.ids == expert).nonzero()]
            rows += [None] * (-len(rows) % alignment)
        return rows

    def places(self, alignment: int) -> dict[Row, int]:
        """The expanded row of each (token, k)."""
        return {row: place for place, row in enumerate(self.layout(alignment)) if row is not None}


def elastic(world: World, kind: str = "elastic") -> Any:
    """The module's ElasticBuffer. Collective.

    Raises:
        Skipped: the module has none.
    """
    offered(world)
    return world.buffer(kind)


def offered(world: World) -> Any:
    """The class.

    Raises:
        Skipped: the module has none.
    """
    if not hasattr(world.module, "ElasticBuffer"):
        raise Skipped("not offered: the module has no ElasticBuffer")
    return world.module.ElasticBuffer


def busy_case(world: World, turn: int = 0, traffic: str = "some_unused") -> RandomCase:
    """A case whose every rank has a token: integrators pad ranks that have none, since upstream waits for them."""
    case = world.case(turn, traffic)
    for rank in range(world.size):
        if not case.x[rank].shape[0]:
            fill_with_one_token(world, case, rank)
    return case


def fill_with_one_token(world: World, case: RandomCase, rank: int) -> None:
    """Gives a rank exactly one token, whose experts are spread over all of them."""
    topk = case.shape.num_topk
    ids = (torch.arange(topk) * max(1, world.num_experts // topk) + rank) % world.num_experts
    case.x[rank] = world.rows(40 + rank, 1, case.shape.hidden)
    case.topk_idx[rank] = ids.unsqueeze(0)
    case.topk_weights[rank] = torch.full((1, topk), 0.25 + rank)


def arrivals(world: World, case: RandomCase, casts: list[tuple[Tensor, Tensor]] | None = None) -> list[Arrival]:
    """Of all ranks; `casts`: (data, scales) of each rank instead of its own rows."""
    inputs = []
    for rank in range(world.size):
        data, scales = (case.x[rank], None) if casts is None else casts[rank]
        topk = case.topk_idx[rank], case.topk_weights[rank]
        inputs.append(ThroughputInput(data, layout_of(world, case, rank).is_token_in_rank, *topk, scales))
    found = []
    for tokens in reference.throughput_dispatch(inputs, world.num_experts):
        pairs = list(zip(tokens.src_rank.tolist(), tokens.src_token.tolist(), strict=True))
        weights = [case.topk_weights[rank][token] for rank, token in pairs]
        stacked = torch.stack(weights) if weights else torch.zeros(0, case.shape.num_topk)
        source = torch.tensor([rank * MAX_TOKENS + token for rank, token in pairs], dtype=torch.int32)
        found.append(Arrival(tokens, stacked, source))
    return found


def dispatch(world: World, case: RandomCase, kind: str = "elastic", **arguments: Any) -> tuple[Any, ...]:
    """A plain dispatch of this rank's tokens; `arguments` replace or add to it. Collective."""
    buffer = elastic(world, kind)
    given = {
        "x": world.put(case.x[world.rank]),
        "topk_idx": world.put(case.topk_idx[world.rank]),
        "topk_weights": world.put(case.topk_weights[world.rank]),
        "num_experts": world.num_experts,
    }
    results = tuple(buffer.dispatch(**{**given, **arguments}))
    world.equal("values that dispatch returns", len(results), 5)
    return results


def split(x: Any) -> tuple[Any, Any]:
    """(data, scales or None) of recv_x."""
    return x if isinstance(x, tuple) else (x, None)


def compare(world: World, got: tuple[Any, ...], wanted: Arrival) -> None:
    """recv_x (or data and scales), ids and weights of a dispatch that does not expand; rows beyond the real ones, which
    are there when the host was not told their number, may hold anything.
    """
    (data, scales), n = split(got[0]), wanted.tokens.num_rows
    world.equal("recv_x", data[:n], wanted.tokens.recv_x)
    if wanted.tokens.recv_scales is not None and world.expect(scales is not None, "recv_x has no scales"):
        world.equal("scales", scales[:n], wanted.tokens.recv_scales)
    if world.expect(got[1] is not None, "recv_topk_idx is None"):
        world.equal("recv_topk_idx", got[1][:n], wanted.ids)
    if world.expect(got[2] is not None, "recv_topk_weights is None"):
        world.equal("recv_topk_weights", got[2][:n], wanted.weights)


def compare_expanded(world: World, got: tuple[Any, ...], wanted: Arrival, alignment: int, zeros: bool = False) -> None:
    """The same of a dispatch that expands; padding is looked at only if it must be zero."""
    data, scales = split(got[0])
    layout = wanted.layout(alignment)
    enough = world.expect(data.shape[0] >= len(layout), f"recv_x has {data.shape[0]} rows, not {len(layout)}")
    world.expect(got[1] is None, "recv_topk_idx of an expanded dispatch is not None")
    if not enough or not world.expect(got[2] is not None and got[2].dim() == 1, "recv_topk_weights is not 1-D"):
        return
    real = torch.tensor([place for place, row in enumerate(layout) if row is not None], dtype=torch.int64)
    token = torch.tensor([row[0] for row in layout if row is not None], dtype=torch.int64)
    k = torch.tensor([row[1] for row in layout if row is not None], dtype=torch.int64)
    world.equal("recv_x, real rows", _at(data, real), _at(wanted.tokens.recv_x, token))
    world.equal("recv_topk_weights, real rows", _at(got[2], real), wanted.weights[token, k])
    if wanted.tokens.recv_scales is not None and world.expect(scales is not None, "recv_x has no scales"):
        world.equal("scales, real rows", _at(scales, real), _at(wanted.tokens.recv_scales, token))
    if zeros:
        padding = torch.tensor([place for place, row in enumerate(layout) if row is None], dtype=torch.int64)
        world.equal("recv_x, padding", _at(data, padding), _at(torch.zeros_like(data, device="cpu"), padding))


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor, on the host; as bytes where torch cannot index the dtype."""
    plain = values.detach().cpu()
    return (plain.contiguous().view(torch.uint8) if plain.element_size() == 1 else plain)[rows]


def worst_rows(world: World, alignment: int, topk: int) -> int:
    """Rows of an expanded result when the host is not told how many there are. Part C.2."""
    rows = MAX_TOKENS * world.size * min(topk, LOCAL_EXPERTS) + (alignment - 1) * LOCAL_EXPERTS
    return round_up(rows, alignment)
