# One rank of a run with --kill: its training step survives the loss of a rank. The gradient group breaks with the dead
# rank, so each life of the Buffer has a new one, which meets in a store that the launcher hosts.
from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from uccl_ep import Buffer, PeerLost, PeerTimeout
from uccl_ep.tools.demo.expert_parallel import ExpertParallel
from uccl_ep.tools.demo.job import GROUP_TIMEOUT, READY_TO_DIE
from uccl_ep.tools.demo.model import Experts, Routed
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.trainer import Trainer


class StoreGroup:
    """What Buffer asks of a group, over a torch store."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size, self._index = store, rank, size, 0

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def all_gather_object(self, value: bytes) -> list[bytes]:
        """Everybody's bytes, by rank."""
        self._index += 1
        self._store.set(f"{self._index}/{self._rank}", value)
        return [self._store.get(f"{self._index}/{rank}") for rank in range(self._size)]


class GradientGroup:
    """A gloo group of the ranks of one life, made anew for each."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._group: Any = None

    def meet(self, life: int, members: Sequence[int]) -> None:
        """Collective among `members`."""
        store = PrefixStore(f"gradients of life {life}", self._store)
        self._group = distributed.ProcessGroupGloo(store, list(members).index(self._rank), len(members), GROUP_TIMEOUT)

    def sum(self, values: Tensor) -> None:
        self._group.allreduce([values]).wait()


class MortalExchange(ExpertParallel):
    """As ExpertParallel; once it is `doomed`, it dispatches and then waits for the launcher's kill."""

    def __init__(self, buffer: Buffer, options: DemoOptions, store: Any) -> None:
        super().__init__(buffer, options.experts, options.fp8)
        self._store = store
        self.doomed = False

    def __call__(self, batches: Sequence[Routed], experts: Experts) -> list[Tensor]:
        if not self.doomed:
            return super().__call__(batches, experts)
        return super().__call__(batches, _LastWish(self._store))  # type: ignore[arg-type]


class _LastWish:
    """In the place of the experts of a doomed rank: rows have come, none will go back."""

    up: tuple[()] = ()

    def __init__(self, store: Any) -> None:
        self._store = store

    def __call__(self, *rows: Any) -> Tensor:
        self._store.set(READY_TO_DIE, b"1")
        threading.Event().wait()
        raise AssertionError("the launcher has not killed this rank")


class SurvivingTrainer:
    """What uccl_ep.tools.demo.result.train asks of a trainer. A step that loses a rank is done again without it.

    Attributes:
        interruptions: see RunResult.
    """

    def __init__(self, trainer: Trainer, exchange: MortalExchange, gradients: GradientGroup, buffer: Buffer) -> None:
        self._trainer, self._exchange, self._gradients, self._buffer = trainer, exchange, gradients, buffer
        self.dense, self.expert_parameters = trainer.dense, trainer.expert_parameters
        self.interruptions: list[dict[str, Any]] = []

    def validate(self) -> float:
        return self._trainer.validate()

    def step(self, step: int) -> float:
        doom = self._trainer.options.doom
        self._exchange.doomed = doom == (self._buffer.rank, step)
        try:
            return self._trainer.step(step)
        except (PeerLost, PeerTimeout) as error:
            lost = error
        members = self._buffer.recover()
        report = self._buffer.recoveries[-1]
        self._gradients.meet(len(self._buffer.recoveries), members)
        self._trainer.go_on_with(members)
        mean_loss = self._trainer.step(step)
        told = {"step": step + 1, "lost": list(report.lost), "error": str(lost), "recover_s": report.seconds}
        self.interruptions.append({**told, "resumed_at": time.monotonic()})
        return mean_loss


def connect_store() -> Any:
    """The launcher's store."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=GROUP_TIMEOUT)


def make_trainer(options: DemoOptions, rank: int, budgets: tuple[int, int]) -> tuple[SurvivingTrainer, Buffer]:
    """A rank's trainer and the Buffer that it recovers."""
    from uccl_ep.tools.demo.corpus import load_corpus

    torch.set_num_threads(1)
    store = connect_store()
    group = StoreGroup(PrefixStore("buffer", store), rank, options.ranks)
    buffer = Buffer(group, *budgets, explicitly_destroy=True, device="cpu")
    gradients = GradientGroup(store, rank)
    gradients.meet(0, range(options.ranks))
    exchange = MortalExchange(buffer, options, store)
    trainer = Trainer(options, load_corpus(), [rank], exchange, gradients.sum)
    return SurvivingTrainer(trainer, exchange, gradients, buffer), buffer
