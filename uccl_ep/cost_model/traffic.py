"""What a call puts on the network: flows of writes between ranks, and their sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from uccl_ep.cost_model.cluster import Ints


@dataclass(frozen=True, eq=False)
class Flow:
    """Writes of one purpose.

    Attributes:
        name: what they are for.
        writes: int64 [N, N], work requests from rank to rank. Each is one 16-byte command of a kernel.
        num_bytes: int64 [N, N], their payload.
        immediates: each carries 32 bits for the receiver (else it is an atomic of the NIC, or a bare write).
    """

    name: str
    writes: Ints
    num_bytes: Ints
    immediates: bool = True

    @classmethod
    def of_equal(cls, name: str, writes: Ints, each: int, immediates: bool = True) -> Flow:
        """Writes of `each` bytes."""
        return cls(name, writes, writes * each, immediates)


@dataclass(frozen=True, eq=False)
class Traffic:
    """All flows of one call."""

    flows: tuple[Flow, ...]

    def of(self, *names: str) -> Traffic:
        """Only the flows of these names."""
        return Traffic(tuple(flow for flow in self.flows if flow.name in names))

    def without(self, *names: str) -> Traffic:
        """All flows but those of these names."""
        return Traffic(tuple(flow for flow in self.flows if flow.name not in names))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.flows + other.flows)

    @property
    def writes(self) -> Ints:
        """int64 [N, N], also the number of commands."""
        return _sum(flow.writes for flow in self.flows)

    @property
    def num_bytes(self) -> Ints:
        """int64 [N, N]."""
        return _sum(flow.num_bytes for flow in self.flows)

    @property
    def immediates(self) -> int:
        """Of all ranks together."""
        return sum(int(flow.writes.sum()) for flow in self.flows if flow.immediates)


def _sum(matrices: Iterable[Ints]) -> Ints:
    total: Ints | None = None
    for matrix in matrices:
        total = matrix.copy() if total is None else total + matrix
    return np.zeros((1, 1), dtype=np.int64) if total is None else total


def busiest(matrix: Ints) -> int:
    """The most that one rank sends or receives: what a network with a port a rank waits for."""
    return int(max(matrix.sum(axis=1).max(), matrix.sum(axis=0).max()))
