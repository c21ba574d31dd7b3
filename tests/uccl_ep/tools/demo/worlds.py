"""Small worlds for the demo's tests: options, text, and ranks as threads over PlainBuffer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch

from tests.uccl_ep.tools.demo.plain_buffer import Board, PlainBuffer
from uccl_ep.tools.demo.corpus import Corpus
from uccl_ep.tools.demo.expert_parallel import ExpertParallel
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.result import RunResult
from uccl_ep.tools.demo.trainer import Trainer

torch.set_num_threads(1)  # as the demo does: with more, sums are split and the runs are equal only up to rounding

Result = TypeVar("Result")
SMALL = {"steps": 4, "experts": 8, "topk": 3, "hidden": 128, "sequence": 16, "batch": 2, "validation_batches": 1}


def small(**changes: Any) -> DemoOptions:
    return DemoOptions(**{**SMALL, **changes})


def text(length: int = 9000, seed: int = 3) -> Corpus:
    generator = np.random.default_rng(seed)
    train, validation = (generator.integers(97, 105, size=length).astype(np.uint8) for _ in range(2))
    return Corpus(train, validation, files=2)


def on_ranks(ranks: int, work: Callable[[int], Result]) -> list[Result]:
    """Runs work(rank) on a thread per rank. Raises the error that came first: others only waited for that rank."""
    errors: list[BaseException] = []

    def guarded(rank: int) -> Result:
        try:
            return work(rank)
        except BaseException as error:
            errors.append(error)
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(ranks)]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


class World:
    """What the threads of one run share."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.board, self.sums = Board(options.ranks), Board(options.ranks)

    def buffer(self, rank: int) -> PlainBuffer:
        options = self.options
        return PlainBuffer(rank, options.ranks, options.ranks_per_node, lambda item: self.board.gather(rank, item))

    def trainer(self, rank: int, buffer: PlainBuffer, corpus: Corpus) -> Trainer:
        def sum_over_ranks(values: torch.Tensor) -> None:
            parts = self.sums.gather(rank, values.clone())
            values.copy_(torch.stack(parts[::-1]).sum(0))  # another order than one process has

        exchange = ExpertParallel(buffer, self.options.experts, self.options.fp8)
        return Trainer(self.options, corpus, [rank], exchange, sum_over_ranks)


def result_of(options: DemoOptions, rank: int, losses: list[float]) -> RunResult:
    """A made-up result: rank r sent r * 10 + peer rows to each peer, 256 bytes each."""
    peers = []
    for peer in range(options.ranks):
        local = options.node_of(peer) == options.node_of(rank)
        peers.append(
            {
                "rank": peer,
                "node_local": local,
                "rows_sent": rank * 10 + peer,
                "bytes_sent": (rank * 10 + peer) * 256,
                "rows_received": 0,
                "bytes_received": 0,
                "wait_ns": 1_000_000 * (rank + 2 * peer),
                "via": "load/store" if local else "tcp",
            }
        )
    proxy = {"commands": 11, "writes": 7, "write_bytes": 1024}
    return RunResult(losses, losses[-1] + 0.5, 2.0, 1000, {"rank": rank, "peers": peers, "proxy": proxy})
