"""What ranks do in a change of members in which one of them is killed: steps with agreed masks, each row compared."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from tests.end_to_end.play import playing
from tests.end_to_end.world import World
from tests.faults.bodies import deliver
from tests.faults.fleet import LIMIT_S, Member
from tests.uccl_ep.survival.serving import sizes, steps
from uccl_ep import Buffer, UcclEpError
from uccl_ep.group.store_group import StoreGroup
from uccl_ep.membership.agreed_values import AgreedValues

# Where a rank is when it is killed. It dies in prepare_members or in switch_members: other threads of it wait there.
EXCHANGES = tuple(f"exchange {number}" for number in range(4))  # of the next group, which it does not take part in
AGREEMENTS = ("before it tells what it has prepared", "before it tells what it has built", "before it pledges")
KNOWS, PREPARED, DUE, SWITCHED = "when it knows", "prepared", "due", "switched"
POINTS = (PREPARED, *EXCHANGES, *AGREEMENTS, KNOWS, DUE, SWITCHED)
JOINED = "joined"  # of one that joins: when its constructor has returned
STEPS = 4


@dataclass(frozen=True)
class Killing:
    """Who is killed, and where. Ranks of the present members are 0 to present - 1; rank `present` joins."""

    present: int
    rank: int
    point: str
    port: int  # of the store
    patience_s: float  # of a group

    def group(self, rank: int, size: int) -> StoreGroup:
        """A group of the ranks below `size`."""
        store = TCPStore("127.0.0.1", self.port, timeout=timedelta(seconds=60))
        return StoreGroup(store, rank, size, timeout_s=self.patience_s)


class Doom:
    """Lets a thread of the rank that is to be killed wait at the point, until switch_members() is called."""

    def __init__(self) -> None:
        self._due = threading.Event()

    def strike(self) -> None:
        """Ends the process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def hold(self) -> None:
        """This thread goes no further."""
        self._due.set()
        threading.Event().wait()

    def look(self) -> None:
        """Ends the process if a thread is at the point."""
        if self._due.is_set():
            self.strike()

    def join(self, group: StoreGroup, point: str) -> StoreGroup:
        """The group, whose exchange of that number this rank does not come to."""
        gather, left = group.all_gather_object, EXCHANGES.index(point) if point in EXCHANGES else -1

        def counted(value: Any) -> list[Any]:
            nonlocal left
            if left == 0:
                self.hold()
            left -= 1
            return gather(value)

        group.all_gather_object = counted  # type: ignore[method-assign]
        return group

    def watch(self, changes: AgreedValues, point: str) -> None:
        """Holds the thread that comes to an agreement of the change, of which there are three."""
        agree = changes.agree

        def held(*arguments: Any) -> Any:
            number = arguments[3]
            if point in AGREEMENTS and number == 1 + AGREEMENTS.index(point):
                self.hold()
            found = agree(*arguments)
            if point == KNOWS and number == len(AGREEMENTS):
                self.hold()
            return found

        changes.agree = held  # type: ignore[method-assign, assignment]


def step(buffer: Buffer, world: World, number: int) -> list[int]:
    """A step without whom the ranks have agreed to leave out, who are returned."""
    lost = buffer.agree_on_masks(timeout_s=30.0)
    for one in steps(number, lost, shrink=True) if len(lost) + 1 < buffer.group_size else ():
        assert set(playing(buffer, one, world.node_sizes)) == {"send", "receive"}
    return lost


def make(group: StoreGroup, world: World, killing: Killing) -> Buffer:
    size = sizes(world, killing.present, killing.present + 1)
    return Buffer(group, **size, low_latency_mode=True, enable_shrink=True, explicitly_destroy=True)


def changes(member: Member, world: World, killing: Killing) -> None:
    """A rank's life: a change in which one is killed, and another one without it."""
    rank, present = member.rank(), killing.present
    doom = Doom() if rank == killing.rank else None
    if rank == present:
        joins(member, world, killing, doom)
        return
    buffer = make(killing.group(rank, present), world, killing)
    step(buffer, world, 0)
    member.tell("started")
    member.ask()
    group = killing.group(rank, present + 1)
    if doom is not None:
        doom.watch(buffer._life.session.agreement_service.changes, killing.point)  # type: ignore[union-attr]
        group = doom.join(group, killing.point)
    deliver(buffer)
    buffer.prepare_members(group, timeout_s=killing.patience_s)
    if doom is not None and killing.point == PREPARED:
        doom.strike()
    if doom is not None and killing.point == DUE:
        buffer._switch = lambda *_: doom.strike()  # type: ignore[method-assign]
    how, at = serve_until_told(buffer, world, doom)
    if doom is not None:
        assert (how, killing.point) == ("", SWITCHED)
        doom.strike()
    goes_on(member, buffer, world, (how, at))


def serve_until_told(buffer: Buffer, world: World, doom: Doom | None) -> tuple[str, int]:
    """Steps until the switch ("") or the error; and how many."""
    until, number = time.monotonic() + LIMIT_S, 0
    while time.monotonic() < until:
        number += 1
        step(buffer, world, number)
        if doom is not None:
            deliver(buffer)  # else rows of this step end with it
            doom.look()
        try:
            if buffer.switch_members():
                return "", number
        except UcclEpError as error:
            return str(error), number
    raise AssertionError("no switch, and no error")


def goes_on(member: Member, buffer: Buffer, world: World, told: tuple[str, int]) -> None:
    """Steps of whoever is left, in the life that it is in."""
    lost = [step(buffer, world, 1000 + number) for number in range(STEPS)][-1]
    assert buffer.switch_members() is False
    member.tell("went on", (*told, buffer.group_size, lost))
    member.ask()  # all have
    buffer.destroy()


def joins(member: Member, world: World, killing: Killing, doom: Doom | None) -> None:
    """The rank that joins; it may find that the others could not build."""
    member.tell("started")
    member.ask()
    group = killing.group(killing.present, killing.present + 1)
    if doom is not None and killing.point in EXCHANGES:
        group._timeout_s = 60.0  # whom it waits for may be slow
        doom.hold = doom.strike  # type: ignore[method-assign]
        group = doom.join(group, killing.point)
    try:
        buffer = make(group, world, killing)
    except UcclEpError as error:
        member.tell("could not join", str(error))
        return
    if doom is not None:
        doom.strike()
    member.tell("joined")
    try:
        goes_on(member, buffer, world, ("", 0))
    except UcclEpError as error:
        member.tell("could not go on", str(error))
        buffer.destroy()
