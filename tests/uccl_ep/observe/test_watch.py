"""The watcher: the first step is a beginning, the next tell; ranks come and go meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.uccl_ep.observe.samples import running
from tests.uccl_ep.observe.test_attach import Rank
from uccl_ep.observe import watch
from uccl_ep.observe.publish import Published
from uccl_ep.observe.watch import Watcher


def of(rank: Rank, watcher: Watcher) -> list[Any]:
    return [job for job in watcher.step() if job.page.session == rank.page.session]


def test_watch_tells_from_the_second_step_on() -> None:
    rank = Rank(1, 4)
    published = Published(rank.page)
    watcher = Watcher(os.getpid())
    assert watcher.step() == []
    (job,) = of(rank, watcher)
    assert job.alive and job.page == published.page and job.pids == {1: os.getpid()}
    assert job.rates[1].seconds > 0 and job.waits.ranks == (1,) and job.samples[1].alive


def test_watch_finds_who_comes_and_keeps_who_goes(monkeypatch: Any) -> None:
    monkeypatch.setattr(watch, "RESCAN_S", 0.0)
    first = Rank(0, 2)
    session = first.page.session
    published = [Published(first.page)]
    watcher = Watcher(os.getpid())
    watcher.step()
    second = Rank(1, 2, session=session)
    published.append(Published(second.page))
    assert list(of(first, watcher)[0].rates) == [0]  # one sample of the other
    assert list(of(first, watcher)[0].rates) == [0, 1]
    published.pop()
    second.segments.clear()
    (job,) = of(first, watcher)
    assert [job.rates[rank].alive for rank in (0, 1)] == [True, False] and job.alive


def test_watch_drops_a_life_that_has_ended_when_there_is_another() -> None:
    old, new = Rank(0, 2), Rank(0, 2)
    published = [Published(old.page)]
    watcher = Watcher(os.getpid())
    watcher.step()
    published.append(Published(new.page))
    old.segments.clear()
    published.pop(0)
    watcher.step()  # looks again, since somebody has gone
    assert of(old, watcher) == [] and len(of(new, watcher)) == 1


def test_watch_is_over_when_the_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(0, 2)
    published = [Published(rank.page)]
    watcher = Watcher(os.getpid())
    assert not watcher.over
    rank.segments.clear()
    published.clear()
    watcher.step()
    assert not watcher.over, "its process lives, and may begin another Buffer"
    child = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(watcher.attached[0], "pid", child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a process that nobody has waited for is none any more
    assert watcher.over
    child.wait()
    assert watcher.over
    monkeypatch.setattr(watcher, "_ranks", {})
    assert not watcher.over, "nobody was seen"


def test_watch_a_real_job_until_it_has_ended(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="shared_memory")
    with running(2, lambda rank, buffer: None) as found:
        session = found[0].page.session
        watcher = Watcher(os.getpid())
        watcher.step()
        moved = 0.0
        deadline = time.monotonic() + 20
        while not moved and time.monotonic() < deadline:
            time.sleep(0.1)
            (job,) = [job for job in watcher.step() if job.page.session == session]
            moved = min(r.total("writes") * r.total("rows_sent") for r in job.rates.values())
        assert moved > 0 and job.waits.seconds > 0
    ended = [job for job in watcher.step() if job.page.session == session]
    assert all(not job.alive for job in ended)
