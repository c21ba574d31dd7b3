"""Which ranks share a node, as arrays: quick enough for 1,024 ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep._native import LandingRanks
from uccl_ep.errors import refuse

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Cluster:
    """Ranks, their nodes and cells. A cell is who shares one landing place for rows of other nodes: a node, or with
    `apart` (Buffer's enable_shrink, or a network where hosting does not pay) a single rank.

    Args:
        node_of: node of each rank; nodes are numbered from 0 without gaps.
        apart: with several nodes, each rank is a cell of its own.
    """

    def __init__(self, node_of: Sequence[int], apart: bool = False) -> None:
        self.node_of: Ints = np.asarray(node_of, dtype=np.int64)
        self.num_ranks = len(self.node_of)
        self.num_nodes = int(self.node_of.max()) + 1
        self.apart = apart and self.num_nodes > 1
        self.cell_of: Ints = np.arange(self.num_ranks) if self.apart else self.node_of
        self.num_cells = int(self.cell_of.max()) + 1

    @classmethod
    def even(cls, ranks: int, ranks_per_node: int, apart: bool = False) -> Cluster:
        """Nodes of `ranks_per_node` ranks in rank order; the last may be smaller.

        Raises:
            InvalidArgument: a count below 1.
        """
        for name, value in (("ranks", ranks), ("ranks_per_node", ranks_per_node)):
            if value < 1:
                refuse(name, value, "1 or more")
        return cls([rank // ranks_per_node for rank in range(ranks)], apart)

    def with_cells(self, apart: bool) -> Cluster:
        """The same nodes with the other kind of cells."""
        return Cluster(self.node_of.tolist(), apart)

    @cached_property
    def cell_sizes(self) -> Ints:
        """int64 [cells]."""
        return np.bincount(self.cell_of, minlength=self.num_cells)

    @cached_property
    def is_remote_cell(self) -> Bools:
        """bool [N, cells]: the cell lies on another node than the rank."""
        node_of_cell = np.zeros(self.num_cells, dtype=np.int64)
        node_of_cell[self.cell_of] = self.node_of
        remote: Bools = self.node_of[:, None] != node_of_cell[None, :]
        return remote

    @cached_property
    def is_remote(self) -> Bools:
        """bool [N, N]: the two ranks are on different nodes."""
        remote: Bools = self.node_of[:, None] != self.node_of[None, :]
        return remote

    @cached_property
    def host(self) -> Ints:
        """int64 [N, cells]: the rank of a cell where rows of a source are read; for the source's own node, itself."""
        ranks = LandingRanks(self.node_of.tolist(), self.cell_of.tolist())
        table: Ints = np.array([ranks.in_cell(cell) for cell in range(self.num_cells)], dtype=np.int64).T.copy()
        return table

    @cached_property
    def once(self) -> Ints:
        """int64 [N, N]: 1 from a rank to its host in each cell of other nodes."""
        return self.to_hosts(np.ones((self.num_ranks, self.num_cells), dtype=np.int64))

    def to_hosts(self, per_cell: npt.NDArray[Any]) -> Ints:
        """[N, cells] amounts that sources send to cells, as [N, N] amounts that ranks send to ranks. Only cells of
        other nodes count."""
        matrix = np.zeros((self.num_ranks, self.num_ranks), dtype=np.int64)
        sources, cells = np.nonzero(self.is_remote_cell)
        matrix[sources, self.host[sources, cells]] = per_cell[sources, cells]  # cells share no rank
        return matrix
