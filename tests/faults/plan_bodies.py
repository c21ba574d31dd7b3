"""What ranks do under a fault plan: rounds, the harm at the plan's point, and then, on every survivor, the report,
another call, the end, and what is left in the process."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import Step, ThroughputStep
from tests.faults import inventory
from tests.faults.bodies import Fault, again, deliver, fault_of
from tests.faults.bodies import step as small_step
from tests.faults.fleet import Member
from tests.faults.plan import MID_STREAM, STAGES, Plan
from uccl_ep import Buffer, UcclEpError

DOOMED_ROUND = 3  # those before it are compared with the reference, row by row, on every rank
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "pause": signal.SIGSTOP}


class Left(Exception):
    """The victim has left in good order."""


class Actor:
    """One rank of a plan: plays rounds, and stops where the plan says. Also its group, for harm during the start."""

    def __init__(self, member: Member, plan: Plan) -> None:
        self.member, self.plan = member, plan
        self.victim = member.rank() == plan.rank
        self.beside = member.rank() in plan.beside
        self.mode = "l" if plan.mode == "low_latency" else "t"
        self._exchanges = 0

    # ---- a group ---------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        return self.member.rank()

    def size(self) -> int:
        return self.member.size()

    def all_gather_object(self, value: Any) -> list[Any]:
        """The group's; the victim is harmed before it says where its memory is, or before it connects."""
        self._exchanges += 1
        if self.victim and (self.plan.point, self._exchanges) == ("construction", 3):
            self.strike(None)
        values = self.member.all_gather_object(value)
        if self.victim and (self.plan.point, self._exchanges) == ("connecting", 3):
            self.strike(None)
        return values

    # ---- harm ------------------------------------------------------------------------------------------------------

    def strike(self, buffer: Buffer | None) -> None:
        """Does the plan's harm to this rank, or lets the test do it. What this rank has sent has arrived before.

        A rank beside the victim only says that it has.
        """
        if buffer is not None and self.plan.point not in MID_STREAM:
            buffer._device.finish()  # a call may be asynchronous
            deliver(buffer)
        if self.beside:
            self.member.tell("delivered")
            return
        if self.plan.harm == "leave":
            assert buffer is not None
            buffer.destroy()
            self.member.tell("doomed", time.monotonic())
            raise Left
        self.member.tell("doomed", time.monotonic())
        if self.plan.harm in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[self.plan.harm])
        else:
            self.member.ask()

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def step(self, number: int) -> Step:
        """Round `number`; in the middle of a stream there is more to send than the rings hold."""
        if self.plan.point in MID_STREAM:
            return ThroughputStep(number, max_tokens=160, hidden=128, traffic="uniform", topk=3)
        return small_step(self.mode, number)

    def make(self) -> Buffer:
        """Makes the Buffer: rings as small as they can be where one is to be full."""
        slack = 1 if self.plan.point in MID_STREAM else 6
        return make_buffer(self, [self.step(0)], self.plan.world.ranks_per_node, slack)

    def rounds(self, buffer: Buffer) -> None:
        """Whole rounds, then the one that the victim does not finish, and more, until a fault."""
        for number in range(DOOMED_ROUND):
            self._play(buffer, number)
        if self.plan.point in (*MID_STREAM, "counted"):
            self._stall(buffer)
        if self.plan.point == "idle":
            self.member.tell("idle")
            self.member.ask()
            if self.victim:
                self.strike(buffer)
        if self.plan.point == "barrier":
            if self.victim or self.beside:
                self.strike(buffer)
            buffer.barrier()
        number = DOOMED_ROUND
        while True:
            self._play(buffer, number)
            number += 1

    def _play(self, buffer: Buffer, number: int) -> None:
        struck = number == DOOMED_ROUND and (self.victim or self.beside)
        stage = STAGES.get(self.plan.point, -1) if struck else -1
        stages = playing(buffer, self.step(number), self.plan.world.node_sizes)
        for at in range(5):
            if at == stage:
                self.strike(buffer)
            if next(stages, None) is None:
                return

    def _stall(self, buffer: Buffer) -> None:
        """Prepares the next throughput call: one rank holds its half back, the victim is harmed inside of its own."""
        call = "combine" if self.plan.point == "mid-combine" else "dispatch"
        launch = getattr(buffer._life.throughput._throughput, call)
        held = self.rank() == self.plan.held and self.plan.point in MID_STREAM
        if not (self.victim or held):
            return

        def instead(*arguments: Any, **options: Any) -> Any:
            setattr(buffer._life.throughput._throughput, call, launch)  # once
            if held:
                self.member.ask()
                return launch(*arguments, **options)
            if self.plan.point == "counted":
                self.strike(buffer)
                return launch(*arguments, **options)
            deliver(buffer)
            before = published(buffer)
            result = launch(*arguments, **options)
            event = buffer._device.record()
            while published(buffer) == before:
                assert not event.query(), "the stream ended, and nothing had been sent"
                os.sched_yield()
            assert not event.query(), "the stream ended before the rank could be harmed inside of it"
            self.strike(buffer)
            return result

        setattr(buffer._life.throughput._throughput, call, instead)


def published(buffer: Buffer) -> int:
    """Chunks of streams that this rank's kernels have let others see so far, in all."""
    session = buffer._session
    signals = session.plan.signals
    streams = 2 * signals.num_ranks * signals.num_channels  # of both directions
    words = session.data.numpy().view(np.uint64)
    tails, sent = signals.stream_tail(0, 0, 0) // 8, signals.sent(0, 0, 0) // 8
    return int(words[tails : tails + streams].sum() + words[sent : sent + streams].sum())


def planned(member: Member, plan: Plan) -> None:
    """A rank's life under the plan."""
    actor = Actor(member, plan)
    small_step(actor.mode, 0)
    before = inventory.take()
    _life(actor)
    member.tell("left", inventory.take().since(before))


def _life(actor: Actor) -> None:
    member = actor.member
    begin = time.monotonic()
    try:
        buffer = actor.make()
    except RuntimeError as error:  # of the group, or ours
        member.tell("fault", fault_at_start(error))
        return
    member.tell("started", time.monotonic() - begin)
    member.ask()
    try:
        actor.rounds(buffer)
    except Left:
        return
    except UcclEpError as error:
        member.tell("fault", fault_of(error))
    member.ask()  # all have reported, and nobody is at work any more
    if actor.plan.recovers:
        member.tell("recovered", recovered(buffer))
        member.ask()  # all have, and a group that goes on does so without the others
        buffer.destroy()
        return
    alive = sum_of_peer(buffer, actor.plan.rank)
    begin = time.monotonic()
    member.tell("again", again(buffer, actor.mode))
    buffer.destroy()
    member.tell("destroyed", time.monotonic() - begin)
    member.tell("untouched", alive())


def recovered(buffer: Buffer) -> list[int] | Fault:
    """Who goes on with this rank, or why nobody does. A group that goes on plays a barrier."""
    try:
        members = buffer.recover()
        buffer.barrier()
        return members
    except UcclEpError as error:
        return fault_of(error)


def fault_at_start(error: RuntimeError) -> Fault:
    """As fault_of, for what may come from the group."""
    if isinstance(error, UcclEpError):
        return fault_of(error)
    return Fault(time.monotonic(), type(error).__name__, str(error))


def sum_of_peer(buffer: Buffer, peer: int) -> Callable[[], bool]:
    """Reads all of a peer's memory that this rank has mapped; the result reads it again: is it still the same?"""
    assert buffer.runtime is not None
    segment = buffer.runtime.regions._peer_data.get(peer)
    if segment is None or peer == buffer.rank:
        return lambda: True
    memory = segment.numpy()
    before = zlib.crc32(memory)
    return lambda: zlib.crc32(memory) == before
