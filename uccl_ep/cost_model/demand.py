"""What a routing demands of a cluster: rows, runs and selections between its ranks, counted once for all models."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep.cost_model.cluster import Bools, Cluster, Ints
from uccl_ep.cost_model.routing import Routing
from uccl_ep.errors import Described, refuse


class Demand:
    """A routing over a cluster's experts. Amounts per cell leave out cells of the source's own node.

    Args:
        routing: ids [T, K] by rank.
        num_experts: E, over all ranks; rank r has experts r E / N to (r + 1) E / N - 1.

    Raises:
        InvalidArgument: not one array a rank, or experts that ranks cannot share equally.
    """

    def __init__(self, routing: Routing, cluster: Cluster, num_experts: int) -> None:
        if len(routing) != cluster.num_ranks:
            refuse("routing", Described(f"{len(routing)} arrays"), f"{cluster.num_ranks} arrays, one of each rank")
        if num_experts < 1 or num_experts % cluster.num_ranks:
            refuse("num_experts", num_experts, f"a multiple of the {cluster.num_ranks} ranks")
        self.routing, self.cluster, self.num_experts = routing, cluster, num_experts
        self._runs: dict[int, Ints] = {}
        self._channels: dict[int, Ints] = {}

    def with_cells(self, apart: bool) -> Demand:
        """The same routing over the other kind of cells; this one, where it has that kind."""
        if apart == self.cluster.apart or self.cluster.num_nodes == 1:
            return self
        return Demand(self.routing, self.cluster.with_cells(apart), self.num_experts)

    @property
    def local_experts(self) -> int:
        """Experts of a rank."""
        return self.num_experts // self.cluster.num_ranks

    @property
    def tokens(self) -> int:
        """Of all ranks together."""
        return sum(len(ids) for ids in self.routing)

    def _visited(self, source: int) -> Bools:
        visited = visited_cells(self.routing[source], self.cluster, self.num_experts)
        visited &= self.cluster.is_remote_cell[source]
        return visited

    @cached_property
    def rows(self) -> Ints:
        """int64 [N, cells]: tokens of a source that visit a cell."""
        return np.stack([self._visited(source).sum(axis=0) for source in range(self.cluster.num_ranks)])

    def runs(self, batch: int) -> Ints:
        """int64 [N, cells]: runs of neighbouring tokens; a run ends where a batch does."""
        if batch not in self._runs:
            each = [runs(self._visited(source), batch) for source in range(self.cluster.num_ranks)]
            self._runs[batch] = np.stack(each)
        return self._runs[batch]

    def channel_rows(self, channels: int) -> Ints:
        """int64 [N, C, cells]: rows of each throughput stream."""
        if channels not in self._channels:
            each = [channel_rows(self._visited(source), channels) for source in range(self.cluster.num_ranks)]
            self._channels[channels] = np.stack(each)
        return self._channels[channels]

    @cached_property
    def selections(self) -> Ints:
        """int64 [N, N]: (token, expert) pairs of each source at each owner of experts, its own node's too."""
        return np.stack([rows_per_owner(ids, self.cluster.num_ranks, self.num_experts) for ids in self.routing])

    @cached_property
    def crossing(self) -> Ints:
        """selections, only between nodes."""
        return self.selections * self.cluster.is_remote

    @cached_property
    def experts_named(self) -> Ints:
        """int64 [N, N]: experts of each owner that any token of a source has chosen, only between nodes."""
        found = np.zeros((self.cluster.num_ranks, self.cluster.num_ranks), np.int64)
        for source, ids in enumerate(self.routing):
            named = np.unique(ids[(ids >= 0) & (ids < self.num_experts)])
            found[source] = np.bincount(named // self.local_experts, minlength=self.cluster.num_ranks)
        return found * self.cluster.is_remote


def visited_cells(ids: npt.NDArray[Any], cluster: Cluster, num_experts: int) -> Bools:
    """bool [T, cells]: the token has an expert in the cell."""
    local_experts = num_experts // cluster.num_ranks
    found = np.zeros((ids.shape[0], cluster.num_cells), dtype=np.bool_)
    tokens, choices = np.nonzero((ids >= 0) & (ids < num_experts))
    found[tokens, cluster.cell_of[ids[tokens, choices] // local_experts]] = True
    return found


def rows_per_owner(ids: npt.NDArray[Any], num_ranks: int, num_experts: int) -> Ints:
    """int64 [N]: (token, expert) pairs by the rank that has the expert; one named again by a token counts once."""
    ordered = np.sort(ids, axis=1)
    first = (ordered >= 0) & (ordered < num_experts)
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.bincount(ordered[first] // (num_experts // num_ranks), minlength=num_ranks)


def channel_rows(visited: Bools, channels: int) -> Ints:
    """int64 [C, cells]: rows of each stream. Channels are equal shares of the tokens, in order (channel_begin)."""
    tokens = visited.shape[0]
    share = -(-tokens // channels)
    rows = np.zeros((channels, visited.shape[1]), dtype=np.int64)
    for channel in range(channels):
        rows[channel] = visited[min(share * channel, tokens) : min(share * (channel + 1), tokens)].sum(axis=0)
    return rows


def runs(visited: Bools, batch: int) -> Ints:
    """int64 [cells]: runs of neighbouring tokens that go to a cell; a run ends where a batch does."""
    begins = visited.copy()
    begins[1:] &= ~visited[:-1]
    begins[::batch] |= visited[::batch]
    found: Ints = begins.sum(axis=0)
    return found
