"""What ranks do in these tests: rounds of dispatch and combine, each compared with the reference, until a fault."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.faults.fleet import Member
from uccl_ep import Buffer, PeerLost, PeerTimeout, UcclEpError

FOREVER = 1 << 30


@dataclass(frozen=True)
class Fault:
    """An error that a rank raised, and when (time.monotonic)."""

    at: float
    kind: str
    text: str
    peer: int | None = None
    phase: str | None = None
    expected: int | None = None
    seen: int | None = None


def fault_of(error: UcclEpError) -> Fault:
    details = ()
    if isinstance(error, (PeerLost, PeerTimeout)):
        details = (error.peer, error.phase, error.expected, error.seen)  # type: ignore[assignment]
    return Fault(time.monotonic(), type(error).__name__, str(error), *details)


def step(mode: str, number: int) -> Step:
    """Round `number` of low latency ("l") or throughput ("t")."""
    if mode == "l":
        return LowLatencyStep(number, max_tokens=8, hidden=256, traffic="uniform", send="hook", topk=3)
    return ThroughputStep(number, max_tokens=24, hidden=128, traffic="uniform", topk=3, use_async=number % 2 == 1)


@dataclass(frozen=True)
class Doom:
    """What a rank does to itself: a signal, in round `number`, before its call `stage` returns what it did.

    A round of low latency stops after: dispatch sent, dispatch received, combine sent, combine received; of throughput
    after: dispatch called, compared, combine called, compared. Stage 0 is before all of these.
    """

    rank: int
    signal: signal.Signals
    number: int = 3
    stage: int = 0


def rounds(member: Member, ranks_per_node: int, mode: str, doom: Doom | None = None) -> None:
    """Rounds until a fault, which is told; then the same fault again, and an orderly end."""
    buffer = make_buffer(member, [step(mode, 0)], ranks_per_node, slack=6)
    member.tell("started")
    member.ask()
    try:
        for number in range(FOREVER):
            if number == 3:
                member.tell("working")
            stages = playing(buffer, step(mode, number), ranks_per_node or None)
            for stage in range(5):
                if doom and (member.rank(), number, stage) == (doom.rank, doom.number, doom.stage):
                    deliver(buffer)
                    member.tell("doomed", time.monotonic())
                    os.kill(os.getpid(), doom.signal)
                if next(stages, None) is None:
                    break
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
        member.tell("again", again(buffer, mode))
    begin = time.monotonic()
    buffer.destroy()
    member.tell("destroyed", time.monotonic() - begin)


def deliver(buffer: Buffer) -> None:
    """Returns when everything sent so far has arrived, so that what the others wait for is known."""
    assert buffer.runtime is not None
    while not buffer.runtime.rings_idle():
        os.sched_yield()


def again(buffer: Buffer, mode: str) -> Fault | None:
    """The error of another call after a fault."""
    try:
        for _ in playing(buffer, step(mode, 0), None):
            pass
    except UcclEpError as error:
        return fault_of(error)
    return None


def barriers(member: Member, ranks_per_node: int, doom: Doom) -> None:
    """Barriers until a fault."""
    buffer = make_buffer(member, [step("t", 0)], ranks_per_node, slack=6)
    member.tell("started")
    member.ask()
    try:
        for number in range(FOREVER):
            if (member.rank(), number) == (doom.rank, doom.number):
                member.tell("doomed", time.monotonic())
                os.kill(os.getpid(), doom.signal)
            buffer.barrier()
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
    buffer.destroy()


def barrier_after_a_send(member: Member, ranks_per_node: int, mode: str, victim: int) -> None:
    """A barrier right behind rows that the victim's stopped proxy does not take."""
    buffer = make_buffer(member, [step(mode, 0)], ranks_per_node, slack=6)
    member.tell("started")
    member.ask()
    assert set(playing(buffer, step(mode, 0), ranks_per_node or None)) == {"send", "receive"}
    deliver(buffer)
    member.tell("delivered")
    member.ask()
    sent = playing(buffer, step(mode, 1), ranks_per_node or None)
    try:
        if member.rank() != victim:
            next(sent)
        buffer.barrier()
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
    member.ask()
    buffer.destroy()


def barriers_under_watch(member: Member, watched: int) -> None:
    """Barriers until a fault; rank 0 tells when it watches another host's rank `watched`."""
    buffer = make_buffer(member, [step("t", 0)], 0, slack=6)
    member.tell("started")
    member.ask()
    service = buffer._life.session.agreement_service
    assert service is not None
    while member.rank() == 0 and not service._board._watched.holds(watched):
        time.sleep(0.002)
    member.tell("watched")
    try:
        for _ in range(FOREVER):
            buffer.barrier()
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
    buffer.destroy()


def leave_early(member: Member, ranks_per_node: int, mode: str, leaver: int) -> None:
    """One rank leaves after a round while the others stay; then they try one without it."""
    buffer = make_buffer(member, [step(mode, 0)], ranks_per_node, slack=6)
    member.tell("started")
    member.ask()
    for number in range(4):
        assert set(playing(buffer, step(mode, number), ranks_per_node or None)) == {"send", "receive"}
    if member.rank() == leaver:
        buffer.destroy()
        return
    member.tell("finished")
    member.ask()  # the leaver's process has ended
    buffer.stats()
    buffer.get_dispatch_layout(layout_ids(), member.size())  # asks for faults first, and needs nobody
    begin = time.monotonic()
    member.tell("alone", again(buffer, mode))
    member.tell("waited", time.monotonic() - begin)
    member.ask()  # in what order they go
    buffer.destroy()
    member.tell("destroyed")


def layout_ids() -> Any:
    import torch

    return torch.zeros(1, 1, dtype=torch.int64)


def start(member: Member, budget: int) -> None:
    """Only makes a Buffer."""
    try:
        Buffer(member, budget if member.rank() != 1 else budget * 2)
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
    else:
        member.tell("fault", None)
