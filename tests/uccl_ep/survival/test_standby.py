"""A change of members that does not go as planned: who ends, fails or is late meanwhile; ranks are threads.

Every call of both lives is compared with the reference, row by row.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.request
from typing import Any

import pytest

from tests.end_to_end.play import playing
from tests.end_to_end.world import World
from tests.uccl_ep.holdings import Holdings
from tests.uccl_ep.proxies import eventually
from tests.uccl_ep.survival.serving import MOST, groups_of, make, play, run, serve, serve_until_switched, steps
from uccl_ep import Buffer, PeerLost, PeerTimeout, UcclEpError
from uccl_ep.membership.agreed_values import AgreedValues
from uccl_ep.settings import settings
from uccl_ep.survival import standby


def test_standby_that_do_not_come_in_time_end_the_change() -> None:
    """Nobody joins. What is built too late is dropped."""
    world = World(2)
    held = Holdings()
    old, new = groups_of(2), groups_of(3)
    over = threading.Barrier(3)

    def stays(rank: int) -> None:
        buffer = make(old[rank], world, ranks=3)
        buffer.prepare_members(new[rank], timeout_s=1.5 if rank == 0 else 20.0)
        with pytest.raises(
            UcclEpError, match=r"rank 0: the next life was not built within 1\.5 s; rank 1: it no longer"
        ):
            serve_until_switched(buffer, world)
        play(buffer, world, 2000)
        over.wait(60)
        over.wait(60)
        play(buffer, world, 2001)
        buffer.destroy()

    def joins() -> None:
        over.wait(60)
        buffer = make(new[2], world, ranks=2)
        with pytest.raises((PeerLost, PeerTimeout)):
            serve(buffer, world)
        buffer.destroy()
        over.wait(60)

    run(world, lambda: stays(0), lambda: stays(1), joins)
    held.assert_gone_back()


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("moment", [-1, 0, 1, 3, 5, 99])
def test_standby_are_the_same_on_all_whoever_ends_meanwhile(moment: int) -> None:
    """A present rank ends so many steps after the change began, or when the ranks have agreed (99). Those that are left
    switch at one step, or raise one error at one step, and go on without it."""
    world, victim = World(3, 2, "tcp"), 1
    old, new = groups_of(3), groups_of(4)

    def step(buffer: Buffer, number: int) -> list[int]:
        lost = buffer.agree_on_masks(timeout_s=10.0)
        if len(lost) + 1 < buffer.group_size:
            play(buffer, world, number, *lost)
        return lost

    def stays(rank: int) -> tuple[str, int, list[int]]:
        buffer = make(old[rank], world, ranks=4, shrink=True)
        if rank == victim and moment < 0:
            buffer.destroy()
            new[rank].leave()
            return "", 0, []
        step(buffer, 500)
        buffer.prepare_members(new[rank])
        how, number = "", 0
        while not how:
            assert number < MOST
            step(buffer, number)
            due = number == moment or (moment == 99 and buffer._standby is not None and buffer._standby._known.is_set())
            if rank == victim and due:
                buffer.destroy()
                new[rank].leave()
                return "", 0, []
            try:
                how = "switched" if buffer.switch_members() else ""
            except UcclEpError as error:
                how = str(error)
            number += 1
        if rank == victim:  # it was too late to be in time
            buffer.destroy()
            return "", 0, []
        lost = [step(buffer, 1000 + n) for n in range(4)][-1]
        assert buffer.group_size == (4 if how == "switched" else 3)
        buffer.destroy()
        return how, number, lost

    def joins() -> list[int]:
        try:
            buffer = make(new[3], world, ranks=3, shrink=True)
        except UcclEpError:
            return []
        lost = [step(buffer, 1000 + n) for n in range(4)][-1]
        buffer.destroy()
        return lost

    found = run(world, *(lambda r=r: stays(r) for r in range(3)), joins)
    assert found[0] == found[2] and found[0][2] == [victim]
    if moment == 99:
        assert found[0][0] == "switched" and found[3] == [victim]
    if moment < 0:
        assert "has failed" in found[0][0]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("agreed", [False, True])
def test_standby_recover_from_the_life_that_was_agreed_on(agreed: bool) -> None:
    """A loss ends calls in the middle of a change: before the ranks have agreed, or after."""
    world, victim = World(3, 2, "tcp"), 0
    old, new = groups_of(3), groups_of(4)
    left = threading.Event()

    def stays(rank: int) -> tuple[list[int], int]:
        buffer = make(old[rank], world, ranks=4)
        play(buffer, world, 0)
        buffer.prepare_members(new[rank])
        try:
            for number in range(1, MOST):
                play(buffer, world, number)
                if rank == victim and (not agreed or (buffer._standby and buffer._standby._known.is_set())):
                    buffer.destroy()
                    new[rank].leave()
                    left.set()
                    return [], 0
                assert not buffer.switch_members()
        except PeerLost:
            pass
        members = buffer.recover(timeout_s=20.0)
        assert not buffer.switch_members()
        for number in range(1000, 1004):
            play_without(buffer, number)
        buffer.destroy()
        return members, buffer.group_size

    def play_without(buffer: Buffer, number: int) -> None:
        lost = [r for r in range(buffer.group_size) if r not in buffer.members()]
        for one in steps(number, lost):
            assert set(playing(buffer, one, world.node_sizes)) == {"send", "receive"}

    def joins() -> list[int]:
        assert agreed or left.wait(60)
        try:
            buffer = make(new[3], world, ranks=3)
        except UcclEpError:
            return []
        with pytest.raises((PeerLost, PeerTimeout)):
            play(buffer, world, 1000)
        members = buffer.recover(timeout_s=20.0)
        for number in range(1000, 1004):
            play_without(buffer, number)
        buffer.destroy()
        return members

    found = run(world, *(lambda r=r: stays(r) for r in range(3)), joins)
    if agreed:
        assert found[1] == found[2] == ([1, 2, 3], 4) and found[3] == [1, 2, 3]
    else:
        assert found[1] == found[2] == ([1, 2], 3) and found[3] == []


def test_standby_switch_at_one_step_however_far_apart_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that comes to its pledge before it has heard the others' waits there. These ranks make no calls that would
    keep them together, and one hears late."""
    world = World(2)
    old, new = groups_of(2), groups_of(2)
    monkeypatch.setattr(standby, "_LEAST", 1)
    monkeypatch.setattr(standby, "_AHEAD_S", 0.0)

    def body(rank: int) -> int:
        buffer = make(old[rank], world)
        changes = buffer._session.agreement_service.changes  # type: ignore[union-attr]
        agree, pause = changes.agree, threading.Event()

        def late(masked: Any, deadline_s: float, value: Any, number: int) -> Any:
            pause.wait(0.3 * rank * (number == 3))
            return agree(masked, deadline_s, value, number)

        monkeypatch.setattr(changes, "agree", late)
        buffer.prepare_members(new[rank])
        at = 1
        while not buffer.switch_members():
            at += 1
            pause.wait(0.004 * (1 + 3 * rank))
        serve(buffer, world)
        buffer.destroy()
        return at

    found = run(world, lambda: body(0), lambda: body(1))
    assert found[0] == found[1] > 1


def test_standby_that_are_masked_are_left_out_of_the_change() -> None:
    """A rank that one masks though it lives is told, and the others change without it."""
    world = World(3)
    old, new = groups_of(3), groups_of(2)
    switched = threading.Barrier(3)

    def body(rank: int) -> int:
        buffer = make(old[rank], world, ranks=2, shrink=True)
        if rank == 0:
            buffer.low_latency_update_mask_buffer(2, True)
        if rank == 2:
            buffer.prepare_members(None)
            with pytest.raises(PeerLost, match="rank 2 was excluded: rank ") as caught:
                while not buffer.switch_members():
                    threading.Event().wait(0.01)
            assert caught.value.phase == "change of members"
            switched.wait(60)
            buffer.destroy()
            return 0
        buffer.prepare_members(new[rank])
        at = 0
        while not buffer.switch_members():
            threading.Event().wait(0.01)
            at += 1
        switched.wait(60)
        serve(buffer, world)
        buffer.destroy()
        return at

    found = run(world, *(lambda r=r: body(r) for r in range(3)))
    assert found[0] == found[1]


def test_standby_end_what_they_have_built_when_another_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2, 1, "loopback")
    held = Holdings()
    old, new = groups_of(2), groups_of(3)
    make_life = standby.Life

    def fails_late(group: Any, terms: Any) -> Any:
        life = make_life(group, terms)
        if group.rank() == 1:
            life.end()
            raise UcclEpError("no room left")
        return life

    monkeypatch.setattr(standby, "Life", fails_late)

    def stays(rank: int) -> tuple[str, int]:
        buffer = make(old[rank], world, ranks=3)
        buffer.prepare_members(new[rank])
        number = 0
        with pytest.raises(UcclEpError, match="rank 1: UcclEpError: no room left") as caught:
            for number in range(MOST):
                play(buffer, world, number)
                assert not buffer.switch_members()
        for again in range(3):
            play(buffer, world, 2000 + again)
        buffer.destroy()
        return str(caught.value), number

    def joins() -> None:
        buffer = make(new[2], world, ranks=2)
        with pytest.raises((PeerLost, PeerTimeout)):
            serve(buffer, world)
        buffer.destroy()

    found = run(world, lambda: stays(0), lambda: stays(1), joins)
    assert found[0] == found[1]
    held.assert_gone_back()


def test_standby_keep_the_life_before_until_all_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pledges, that is: a rank that has not heard them all asks those that have switched."""
    world = World(2)
    old, new = groups_of(2), groups_of(2)
    settled, known, looked = AgreedValues.is_settled, threading.Event(), threading.Barrier(2)
    monkeypatch.setattr(
        AgreedValues,
        "is_settled",
        lambda *a: (a[1] != 3 or known.is_set()) and settled(*a),  # the third of a change
    )

    def body(rank: int) -> None:
        buffer = make(old[rank], world)
        before = buffer.runtime
        assert before is not None
        buffer.prepare_members(new[rank])
        serve_until_switched(buffer, world)
        serve(buffer, world)
        threading.Event().wait(0.5)
        assert not before.closed
        looked.wait(60)
        known.set()
        assert eventually(lambda: before.closed)
        buffer.destroy()

    run(world, *(lambda r=r: body(r) for r in range(2)))


def test_standby_serve_metrics_as_soon_as_the_port_is_free() -> None:
    """Who spoke for the host before keeps it until its life has ended, and it is not this process that ends it."""
    world = World(2)
    old, new = groups_of(2), groups_of(2)
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]

    def body(rank: int) -> None:
        use_port(port)
        buffer = make(old[rank], world)
        buffer.prepare_members(new[rank])
        serve_until_switched(buffer, world)
        serve(buffer, world)
        if rank == 0:
            taken.close()
            assert eventually(lambda: serves(port))
        new[rank].barrier()
        buffer.destroy()

    with pytest.warns(UserWarning, match="no metrics are served"):
        run(world, *(lambda r=r: body(r) for r in range(2)))
    assert not serves(port)


def test_standby_give_the_port_up_with_their_buffer() -> None:
    """Nobody waits for a port that another program keeps."""
    world = World(1)
    old, new = groups_of(1), groups_of(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def body() -> None:
            use_port(port)
            buffer = make(old[0], world)
            buffer.prepare_members(new[0])
            serve_until_switched(buffer, world)
            begin = time.monotonic()
            buffer.destroy()
            assert time.monotonic() - begin < 30.0  # of the 100 for which it would try

        with pytest.warns(UserWarning, match="no metrics are served"):
            run(world, body)


def use_port(port: int) -> None:
    """In the environment of the test's World, which puts it back."""
    os.environ["UCCL_EP_METRICS_PORT"] = str(port)
    settings.cache_clear()


def serves(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return b"uccl_ep_up" in answer.read()
    except OSError:
        return False
