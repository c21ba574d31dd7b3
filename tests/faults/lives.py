"""What ranks do that go on without the dead: rounds, recover() after each fault, and rounds again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.end_to_end.play import budgets, make_buffer, playing
from tests.end_to_end.steps import Step, ThroughputStep
from tests.faults.bodies import Doom, Fault, deliver, fault_of, step
from tests.faults.fleet import Member
from uccl_ep import Buffer, PeerLost, PeerTimeout, UcclEpError

ROUNDS = 20  # in the last life
LIFE = 1000  # rounds of a life are numbered from here, so that survivors agree on the number without a word


def without(one: Step, lost: Sequence[int]) -> Step:
    return replace(one, masked=tuple(lost))


def outlive(member: Member, ranks_per_node: int, mode: str, dooms: Sequence[Doom]) -> None:
    """Rounds until every doom has come true, recovering each time, then ROUNDS more; all compared to the bit.

    A doom's `number` counts from the begin of the life that it ends. Then waits for the test, and plays 5 rounds more.
    """
    buffer = make_buffer(member, [step(mode, 0)], ranks_per_node, slack=6)
    member.tell("started")
    member.ask()
    try:
        for life in range(len(dooms)):
            fault = play_until_fault(member, buffer, ranks_per_node, mode, (life, dooms[life]))
            begin = time.monotonic()
            members = buffer.recover()
            member.tell("recovered", (fault, members, time.monotonic() - begin))
        play(member, buffer, ranks_per_node, mode, (len(dooms), ROUNDS))
        member.tell("went on", str(buffer.recoveries[-1]))
        member.ask()
        play(member, buffer, ranks_per_node, mode, (len(dooms) + 1, 5))
        member.tell("still going")
    except UcclEpError as error:
        member.tell("excluded", fault_of(error))
        member.tell("first", fault)
    buffer.destroy()


def play_until_fault(member: Member, buffer: Buffer, per_node: int, mode: str, doomed: tuple[int, Doom]) -> Fault:
    """Rounds of a life until a peer's fault, which is returned."""
    life, doom = doomed
    lost = [rank for rank in range(buffer.group_size) if rank not in buffer.members()]
    try:
        for number in range(LIFE):
            stages = playing(buffer, without(step(mode, life * LIFE + number), lost), per_node or None)
            for stage in range(5):
                if (member.rank(), number, stage) == (doom.rank, doom.number, doom.stage):
                    deliver(buffer)
                    member.tell("doomed", time.monotonic())
                    os.kill(os.getpid(), doom.signal)
                if next(stages, None) is None:
                    break
    except (PeerLost, PeerTimeout) as error:
        return fault_of(error)
    raise AssertionError("no fault came")


def play(member: Member, buffer: Buffer, per_node: int, mode: str, life: tuple[int, int]) -> None:
    """So many rounds of a life."""
    lost = [rank for rank in range(buffer.group_size) if rank not in buffer.members()]
    for number in range(life[1]):
        one = without(step(mode, life[0] * LIFE + number), lost)
        assert set(playing(buffer, one, per_node or None)) == {"send", "receive"}


def rejoin(member: Member, ranks_per_node: int, mode: str, doom: Doom | None) -> None:
    """Rounds, a fault, recover with the group, which has a new process in the dead one's place; then all again."""
    buffer = make_buffer(member, [step(mode, 0)], ranks_per_node, slack=6)
    if doom is not None:
        member.tell("started")
        member.ask()
        play_until_fault(member, buffer, ranks_per_node, mode, (0, doom))
        play_without(member, buffer, ranks_per_node, mode)
        assert buffer.recover(member) == list(range(buffer.group_size))
        assert buffer.recoveries[-1].joined == (doom.rank,)
    play(member, buffer, ranks_per_node, mode, (2, ROUNDS))
    member.tell("whole again", buffer.members())
    buffer.destroy()


def play_without(member: Member, buffer: Buffer, ranks_per_node: int, mode: str) -> None:
    """The life in between."""
    member.tell("recovered", buffer.recover())
    play(member, buffer, ranks_per_node, mode, (1, 3))
    member.tell("waiting")
    member.ask()


def outlast(member: Member, ranks_per_node: int, mode: str, doom: Doom) -> None:
    """With enable_shrink: rounds, the one in which a rank ends (torn, unless it ended before that one), and ROUNDS more
    without it; no call may fail. A loss after the rank's last word of a round may be noticed in the round after it."""
    nvl, rdma = budgets([step(mode, 0)], member.size(), ranks_per_node, slack=6)
    buffer = Buffer(member, nvl, rdma, low_latency_mode=rdma > 0, enable_shrink=True)
    member.tell("started")
    member.ask()
    lost, begin = [doom.rank], 0.0
    for number in range(doom.number + ROUNDS):
        gone = number > doom.number or (number, doom.stage) == (doom.number, 0)
        one = apart(step(mode, number), lost if gone else ())
        if number == doom.number:
            begin = time.monotonic()
            one = one if gone else replace(one, torn=doom.rank)
        if gone and number <= doom.number + 1:
            one = surprised(one)
        stages = playing(buffer, one, ranks_per_node or None)
        for stage in range(5):
            if (member.rank(), number, stage) == (doom.rank, doom.number, doom.stage):
                deliver(buffer)
                member.tell("doomed", time.monotonic())
                os.kill(os.getpid(), doom.signal)
            try:
                if next(stages, None) is None:
                    break
            except AssertionError:
                if number != doom.number or stage < 3:  # only what comes out at the very end of that round is torn
                    raise
                break
        if number == doom.number:
            begin = time.monotonic() - begin
    member.tell("went on", (masks_of(buffer), begin))
    buffer.destroy()


def come_back(member: Member, ranks_per_node: int, lost: int, inside: bool) -> None:
    """With enable_shrink: rounds, some without a rank that is stopped (`inside` of a dispatch) and masked, and, when it
    goes on, rounds with it."""
    one = step("l", 0)
    nvl, rdma = budgets([one], member.size(), ranks_per_node, slack=6)
    buffer = Buffer(member, nvl, rdma, low_latency_mode=True, enable_shrink=True)
    member.tell("started")
    member.ask()
    play_steps(buffer, ranks_per_node, range(3), ())
    if member.rank() == lost:
        stop_for_a_while(member, buffer, inside)
    else:
        deliver(buffer)
        member.tell("ready")
        member.ask()
        buffer.low_latency_update_mask_buffer(lost, True)
        play_steps(buffer, ranks_per_node, range(3, 9), (lost,))
        member.tell("went on")
        member.ask()
        buffer.low_latency_update_mask_buffer(lost)
        member.tell("asked")
    play_steps(buffer, ranks_per_node, range(9, 15), ())
    member.tell("whole again", masks_of(buffer))
    buffer.destroy()


def stop_for_a_while(member: Member, buffer: Buffer, inside: bool) -> None:
    """Stops this process, and goes on when it is told to."""
    hook = None
    if inside:
        x, ids = torch.zeros(8, 256, dtype=torch.bfloat16), torch.zeros(8, 3, dtype=torch.int64)
        hook = buffer.low_latency_dispatch(x, ids, 8, member.size() * 2, use_fp8=False, return_recv_hook=True)[4]
    deliver(buffer)
    member.tell("ready")
    member.ask()
    os.kill(os.getpid(), signal.SIGSTOP)
    if hook is not None:
        hook()
    member.tell("awake", masks_of(buffer))
    member.ask()
    if inside:
        buffer.low_latency_clean_mask_buffer()  # its call has found that the others had left it out


def play_steps(buffer: Buffer, ranks_per_node: int, numbers: range, lost: Sequence[int]) -> None:
    for number in numbers:
        one = apart(step("l", number), lost)
        assert set(playing(buffer, one, ranks_per_node or None)) == {"send", "receive"}


def masks_of(buffer: Buffer) -> list[int]:
    status = torch.zeros(buffer.group_size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    return status.nonzero().flatten().tolist()


def apart(one: Step, lost: Sequence[int]) -> Step:
    """The step as it comes out with enable_shrink."""
    if isinstance(one, ThroughputStep):
        return replace(one, masked=tuple(lost), apart=True)
    return replace(one, masked=tuple(lost))


def surprised(one: Step) -> Step:
    return replace(one, surprise=True) if isinstance(one, ThroughputStep) else one
