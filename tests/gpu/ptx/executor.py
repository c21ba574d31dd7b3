"""Under the fake GPU's driver: kernels run as PTX in the machine, a stream is a thread with a queue.

Options of pytest choose it for every test that makes a FakeDriver (`plugin.py`).
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from tests.gpu.ptx.machine import Counts, Machine, MachineError
from tests.gpu.ptx.programs import product, usage
from tests.uccl_ep.gpu.fake_driver import FakeDriver, HostExecutor
from uccl_ep import _native
from uccl_ep.gpu.driver import Facts
from uccl_ep.group.thread_group import ThreadGroup

SHARED_BYTES = {"compute_80": 164 << 10}  # of a processor; 228 KiB of newer ones


class Event:
    """A point of a queue."""

    def __init__(self, machine: Machine) -> None:
        self.number = 0
        self._machine = machine
        self._happened = threading.Event()

    def happen(self, number: int) -> None:
        """The queue has come here."""
        self.number = number
        self._happened.set()

    def query(self) -> bool:
        """Whether it has happened."""
        return self._happened.is_set()

    def wait(self, nanoseconds: int) -> bool:
        """Waits so long at most; whether it has happened."""
        return self._happened.wait(min(nanoseconds / 1e9, threading.TIMEOUT_MAX))


class Queue:
    """A stream's work, done by a thread of its own."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(self._work,), daemon=True, name=f"stream-{number}")
        self._thread.start()

    @staticmethod
    def _run(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (item := work.get()) is not None:
            item()

    def __del__(self) -> None:
        self._work.put(None)

    def put(self, item: Callable[[], None]) -> None:
        """Queues it."""
        self._work.put(item)

    def record(self) -> Event:
        """An event behind what is queued."""
        event, machine, number = Event(self.machine), self.machine, self.number
        self._work.put(lambda: event.happen(machine.record(number)))
        return event

    def wait(self, event: Event) -> None:
        """What is queued from now on runs behind an event."""
        machine, number = self.machine, self.number

        def pause() -> None:
            event.wait(1 << 62)
            machine.wait(number, event.number)

        self._work.put(pause)

    def synchronize(self) -> None:
        """Blocks until the queue is empty."""
        event = self.record()
        event.wait(1 << 62)
        self.machine.host_learns(threading.get_ident(), event.number)


class World:
    """The machine of one test, and what it has found."""

    def __init__(self, arch: str, seed: int, preempt: int, judge: bool, lag: tuple[int, int] = (0, 0)) -> None:
        self.arch = arch
        self.machine = Machine(seed, preempt, judge, not judge, lag, SHARED_BYTES.get(arch, 228 << 10))
        self.machine.load(product(arch))
        self.usage = usage(arch)
        self.streams = itertools.count()
        self.gpus = itertools.count()
        self.devices = itertools.count(1)
        self.errors: list[str] = []
        self.launches: Counter[str] = Counter()
        self.counts: list[Counts] = []
        self.keep_counts = False


class PtxExecutor(HostExecutor):
    """See HostExecutor."""

    world: ClassVar[World]  # of the test at hand

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._world = self.world
        self._gpu = next(self._world.gpus)
        self._local = threading.local()

    def queue(self) -> Queue:
        return Queue(self._world.machine, next(self._world.streams))

    def launch(self, queue: Queue, name: str, args: bytes, grid: int, warps: int) -> None:
        registers, static = self._world.usage[name]
        shared = _native.shared_bytes(name, args, warps) + static
        self.enqueue(queue, name, bytes(args), (grid, 32 * warps, shared, registers))

    def load(self, program: Callable[[str], str]) -> None:
        """Gives the machine more kernels: of program(architecture)."""
        self._world.machine.load(program(self._world.arch))

    def enqueue(self, queue: Queue, name: str, args: bytes, block: tuple[int, int, int, int]) -> None:
        """Queues any kernel that the machine has: its blocks, and lanes, shared memory and registers of each."""
        world = self._world
        snapshot = world.machine.snapshot(threading.get_ident())
        shape = (*block, queue.number, self.context(), snapshot, self._gpu, self.facts.num_sms)

        def run() -> None:
            world.launches[name] += 1
            try:
                counts = world.machine.launch(name, shape, args)
                if world.keep_counts:
                    world.counts.append(counts)
            except MachineError as error:
                world.errors.append(str(error))
            finally:
                world.machine.release(snapshot)

        queue.put(run)

    def rank_begins(self) -> None:
        self._local.device = next(self._world.devices)

    def context(self) -> int:
        return getattr(self._local, "device", 0)

    def flush(self, context: int) -> None:
        self._world.machine.flush(context)

    def host_waited(self, event: Event) -> None:
        self._world.machine.host_learns(threading.get_ident(), event.number)

    def memory(self, address: int, num_bytes: int, kind: str) -> None:
        self._world.machine.region(address, num_bytes, kind, self.context())


@contextmanager
def playing(world: World) -> Iterator[None]:
    """Every FakeDriver made within runs its kernels in the world's machine, which hears when ranks meet."""
    patch = pytest.MonkeyPatch()
    wait, gather = threading.Barrier.wait, ThreadGroup.all_gather_object

    def meet(group: ThreadGroup) -> None:
        for _ in range(2):  # all have come before any goes on, so that what they know is put together between
            wait(group._shared.barrier, 60)
            world.machine.hosts_meet()

    def gathered(group: ThreadGroup, value: Any) -> list[Any]:
        values = gather(group, value)
        world.machine.hosts_meet()
        return values

    data_ptr = torch.Tensor.data_ptr

    def known(tensor: torch.Tensor) -> int:
        """Tensors that no rank's thread has made come to be known when their address is asked for."""
        storage = tensor.untyped_storage()
        world.machine.tensor(storage.data_ptr(), storage.nbytes())
        return data_ptr(tensor)

    patch.setattr(torch.Tensor, "data_ptr", known)
    patch.setattr(PtxExecutor, "world", world, raising=False)
    patch.setattr(FakeDriver, "executor_type", PtxExecutor)
    patch.setattr(ThreadGroup, "barrier", meet)
    patch.setattr(ThreadGroup, "all_gather_object", gathered)
    try:
        yield
    finally:
        patch.undo()
