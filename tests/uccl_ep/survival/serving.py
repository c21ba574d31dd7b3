"""A server's steps for tests of changes of members: both modes, every row compared; ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.end_to_end.play import budgets, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World
from uccl_ep import Buffer, PeerLost, PeerTimeout, ThreadGroup

MOST = 400  # steps of a change


def steps(number: int, lost: Sequence[int] = (), shrink: bool = False) -> list[Step]:
    """One of each mode."""
    return [
        LowLatencyStep(number, max_tokens=8, hidden=256, traffic="uniform", topk=3, masked=tuple(lost)),
        ThroughputStep(number, max_tokens=16, hidden=128, traffic="uniform", topk=3, masked=tuple(lost), apart=shrink),
    ]


def sizes(world: World, *ranks: int) -> dict[str, int]:
    """What the steps need with any of these numbers of ranks."""
    nvl, rdma = zip(*(budgets(steps(0), n, world.ranks_per_node, slack=6) for n in ranks), strict=True)
    return {"num_nvl_bytes": max(nvl), "num_rdma_bytes": max(rdma)}


def make(group: Any, world: World, ranks: int = 0, shrink: bool = False) -> Buffer:
    """A Buffer with memory for the steps, also when there are `ranks` ranks."""
    size = sizes(world, group.size(), ranks or group.size())
    return Buffer(group, **size, low_latency_mode=True, enable_shrink=shrink, explicitly_destroy=True)


def play(buffer: Buffer, world: World, number: int, *lost: int) -> None:
    """One step of a server: both modes, each row compared."""
    for one in steps(number, lost, buffer.enable_shrink):
        assert set(playing(buffer, one, world.node_sizes)) == {"send", "receive"}


def serve_until_switched(buffer: Buffer, world: World, *lost: int) -> int:
    """Steps until the switch, of which there were so many."""
    for number in range(MOST):
        play(buffer, world, number, *lost)
        if buffer.switch_members():
            return number
    raise AssertionError("no switch")


def serve(buffer: Buffer, world: World, count: int = 4) -> None:
    """Steps of the next life, which all its ranks number alike."""
    for number in range(1000, 1000 + count):
        play(buffer, world, number)


_made: list[ThreadGroup] = []


def groups_of(size: int) -> list[ThreadGroup]:
    """A group's ranks; when a thread of `run` fails, nobody waits in it any more."""
    _made.append((made := ThreadGroup.create(size))[0])
    return made


def run(world: World, *bodies: Callable[[], Any]) -> list[Any]:
    """Runs each on a thread of its own; results in order. The first one that failed is raised."""
    results: list[Any] = [None] * len(bodies)
    errors: list[BaseException] = []

    def one(at: int) -> None:
        try:
            results[at] = bodies[at]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
            for group in _made:
                group.leave()

    with world.environment():
        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _made.clear()
    if errors:
        raise min(errors, key=lambda e: isinstance(e, (PeerLost, PeerTimeout, threading.BrokenBarrierError)))
    return results
