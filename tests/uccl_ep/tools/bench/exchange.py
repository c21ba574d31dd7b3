"""A collective between threads of one test, and a whole exchange of a peer's form over it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from uccl_ep.tools.bench.inputs import expected_factor, make_inputs, worst_error
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.staging import Staging


class ThreadWorld:
    """What the ranks of a world share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=30.0)
        self.sent: list[Any] = [None] * ranks
        self.rows_sent = 0


class ThreadCollective:
    """uccl_ep.tools.bench.collectives.Collective, by reading what the other threads send."""

    family = "threads"

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self._world, self._rank = world, rank

    def equal(self, out: torch.Tensor, sent: torch.Tensor) -> None:
        for rank, block in enumerate(self._all(sent)):
            out[rank] = block[self._rank]
        self._world.barrier.wait()

    def rows(self, out: torch.Tensor, sent: torch.Tensor, received: list[int], counts: list[int]) -> None:
        assert len(sent) == sum(counts) and len(out) == sum(received)
        parts = [rows.split(split)[self._rank] for rows, split in self._all((sent, counts))]
        assert [len(part) for part in parts] == received
        out.copy_(torch.cat(parts))
        self._world.rows_sent += len(sent) if self._rank == 0 else 0
        self._world.barrier.wait()

    def _all(self, mine: Any) -> list[Any]:
        self._world.sent[self._rank] = mine
        self._world.barrier.wait()
        return list(self._world.sent)

    def close(self) -> None:
        """Nothing to free."""


def exchange(form: Callable[..., Any], options: BenchOptions) -> tuple[list[float], int]:
    """(each rank's worst error over two rounds, rows that rank 0 sent out and back)."""
    world = ThreadWorld(options.ranks)
    worst = [float("inf")] * options.ranks

    def body(rank: int) -> None:
        side = form(options, rank, ThreadCollective(world, rank), Staging(options.hidden))
        found = 0.0
        for number in range(2):
            inputs = make_inputs(options, rank, number)
            state = side.dispatch(inputs)
            side.experts(state)
            out = side.combine(inputs, state)
            found = max(found, worst_error(out, inputs, expected_factor(options, inputs)))
        side.close()
        worst[rank] = found

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(options.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40.0)
    return worst, world.rows_sent
