"""Whom a time-out is about, when ranks wait for each other in chains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uccl_ep.proxies import eventually
from uccl_ep.membership import root_cause
from uccl_ep.membership.root_cause import Knowledge, has_ended, is_stopped, root_of, start_of


@pytest.mark.parametrize(
    ("waited_for", "wait_reports", "stopped", "root"),
    [
        (3, {}, [], 3),  # it says nothing: it waits for nobody
        (1, {1: 3}, [], 3),
        (1, {1: 2, 2: 3}, [], 3),
        (1, {}, [3], 3),  # whoever was waited for cannot have gone on without it
        (1, {1: 2}, [1, 3], 1),
        (2, {}, [3, 1], 1),
        (0, {0: 0, 1: 3, 2: 3}, [], 3),  # its own half waited for the other half, which waited for somebody
        (1, {1: 2, 2: 1}, [], 1),  # a circle of which nobody knows the way out
        (1, {1: 2, 2: 1, 0: 3, 4: 3, 5: 6}, [], 3),
    ],
)
def test_root_cause_root_of(waited_for: int, wait_reports: dict[int, int], stopped: list[int], root: int) -> None:
    assert root_of(9, waited_for, Knowledge(wait_reports, stopped)) == root


_RANKS = st.integers(0, 7)


@given(_RANKS, st.dictionaries(_RANKS, _RANKS), st.sets(_RANKS))
def test_root_cause_of_any_wait_reports_ends_and_names_somebody_named(
    waited_for: int, wait_reports: dict[int, int], stopped: set[int]
) -> None:
    root = root_of(9, waited_for, Knowledge(wait_reports, stopped, {8: 1}))
    assert root in {waited_for, *wait_reports.values(), *stopped}
    if stopped:
        assert root in stopped
    elif not set(wait_reports.values()) - set(wait_reports) and waited_for in wait_reports:
        assert root == waited_for  # everybody waits: nobody is the one


def test_root_cause_own_half_waits_for_who_has_been_silent_for_longest() -> None:
    heard = {1: 500, 2: 300, 3: 400}
    assert root_of(0, 0, Knowledge({0: 0}, (), heard)) == 2
    assert root_of(0, 0, Knowledge({0: 0}, (), {1: 300, 2: 300})) == 1
    assert root_of(0, 0, Knowledge({0: 0}, [0], heard)) == 0  # its own proxy is stopped
    assert root_of(0, 0, Knowledge({0: 0})) == 0
    assert root_of(0, 3, Knowledge({0: 3}, (), heard)) == 3
    assert root_of(0, 0, Knowledge({0: 0, 2: 3, 1: 2}, (), heard)) == 3  # or for whom the others wait
    assert root_of(0, 0, Knowledge({0: 0, 1: 3, 3: 1}, (), heard)) == 2  # unless those wait themselves


def test_root_cause_of_a_circle_is_left_to_who_says_nothing() -> None:
    circle = {0: 2, 2: 0}
    heard = {2: 500, 1: 400, 3: 300}
    assert root_of(0, 2, Knowledge(circle, (), heard, silent={1})) == 1
    assert root_of(0, 2, Knowledge(circle, (), heard, silent={1, 3, 4})) == 3  # 4 is of this host: it would be stopped
    assert root_of(0, 2, Knowledge(circle, (), {}, silent={4, 3})) == 3
    assert root_of(0, 2, Knowledge({**circle, 4: 5}, (), heard, silent={1})) == 5  # somebody waits for that one
    assert root_of(0, 2, Knowledge({0: 2, 2: 4}, (), heard, silent={1})) == 4  # no circle
    assert root_of(0, 2, Knowledge(circle, (), heard)) == 2


def test_root_cause_is_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_stopped(child.pid) and not is_stopped(os.getpid())
        child.send_signal(signal.SIGSTOP)
        assert eventually(lambda: is_stopped(child.pid))
        child.send_signal(signal.SIGCONT)
        assert eventually(lambda: not is_stopped(child.pid))
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
    assert not is_stopped(child.pid)


def test_root_cause_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not has_ended(child.pid) and not has_ended(os.getpid())
    child.kill()
    assert eventually(lambda: has_ended(child.pid))  # before anybody has waited for it,
    child.communicate()
    assert has_ended(child.pid)  # and after


def test_root_cause_a_process_that_cannot_be_looked_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another user's on a /proc with hidepid, or this process has no descriptor left."""

    def closed(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    def another_users(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", closed)
    assert not has_ended(os.getpid()) and not is_stopped(os.getpid())
    assert has_ended(2**22 + 5)
    monkeypatch.setattr(os, "kill", another_users)
    assert not has_ended(os.getpid())


def test_root_cause_of_a_process_that_proc_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hidepid: it lives until the kernel says that it has ended, with a pidfd or without."""
    monkeypatch.setattr(root_cause, "_stat", lambda pid: [])
    assert root_cause.start_of(os.getpid()) == 0
    for forbidden in (False, True):
        if forbidden:
            monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert not has_ended(child.pid)
        child.kill()
        child.communicate()
        assert has_ended(child.pid)
    monkeypatch.setattr(os, "kill", refused)
    assert not has_ended(os.getpid()), "another user's"


def refused(*arguments: int) -> int:
    raise PermissionError("Operation not permitted")


def test_root_cause_of_a_number_that_another_process_has_now() -> None:
    start = start_of(os.getpid())
    assert start > 0 and not has_ended(os.getpid(), start) and has_ended(os.getpid(), start + 1)
