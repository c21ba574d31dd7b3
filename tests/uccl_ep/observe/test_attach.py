"""Ranks are found by pid, by directory and by themselves; what ends while it is looked at is gone, no error."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.observe.samples import page, running
from uccl_ep import InvalidArgument, _native
from uccl_ep.observe.attach import Attached, Found, Gone, attach, find
from uccl_ep.observe.page import Location, Page, pack
from uccl_ep.observe.publish import Published

# A rank that counts nothing, in a process of its own; ends with its input.
ALONE = """
import os, sys
from uccl_ep import _native, __version__
from uccl_ep.observe.page import Location, Page
from uccl_ep.observe.publish import Published

layout = _native.ControlLayout()
layout.num_ranks, layout.num_channels = 1, 64
sizes = {"control": layout.bytes(), "rings": _native.ring_bytes(64), "counters": _native.counters_bytes(1, 1)}
segments = {name: _native.Segment.create(name, size) for name, size in sizes.items()}
where = {name: Location(s.fd, os.fstat(s.fd).st_ino, s.bytes) for name, s in segments.items()}
page = Page(rank=0, num_ranks=1, session=5, pid=os.getpid(), proxy_pid=os.getpid(), library=__version__,
            host_names=["a"], machine_of=[0], pids=[os.getpid()], node_of=[0], device="cpu", family="tcp",
            placement="host", proxy_threads=1, num_rings=1, ring_capacity=64, max_in_flight=1,
            max_in_flight_bytes=16, num_channels=64, started_ns=1, segments=where)
published = Published(page)
print("ready", flush=True)
sys.stdin.readline()
"""


def located(segment: Any) -> Location:
    return Location(segment.fd, os.fstat(segment.fd).st_ino, segment.bytes)


class Rank:
    """Segments of a rank that counts nothing, and its page."""

    def __init__(self, rank: int = 0, num_ranks: int = 2, **changed: Any) -> None:
        layout = _native.ControlLayout()
        layout.num_ranks, layout.num_channels = num_ranks, 64
        sizes = {
            "control": layout.bytes(),
            "rings": 2 * _native.ring_bytes(64),
            "counters": _native.counters_bytes(1, num_ranks),
        }
        self.segments = {name: _native.Segment.create(f"test-{name}", size) for name, size in sizes.items()}
        where = {name: located(segment) for name, segment in self.segments.items()}
        self.page: Page = page(rank, num_ranks, **({"segments": where, "session": id(self)} | changed))

    def found(self) -> Found:
        return Found(self.page, os.getpid())


def of_session(found: list[Found], session: int) -> list[int]:
    return [f.page.rank for f in found if f.page.session == session]


def test_attach_finds_ranks_by_pid_and_by_user() -> None:
    ranks = [Rank(rank, 3) for rank in range(3)]
    session = ranks[0].page.session
    published = [Published(dataclasses.replace(r.page, session=session)) for r in reversed(ranks)]
    for where in ({"pid": os.getpid()}, {}):
        assert of_session(find(**where), session) == [0, 1, 2]
    published.pop()
    assert of_session(find(os.getpid()), session) == [1, 2]
    del published
    assert of_session(find(os.getpid()), session) == []


def test_attach_finds_ranks_below_a_launcher() -> None:
    """The launcher is this process; the rank a child of a child."""
    shell = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])", ALONE]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            assert child.stdout.readline() == b"ready\n"
            (found,) = find(child.pid)
            assert found.pid == found.page.pid != child.pid and found.page.num_ranks == 1
            rank = Attached(found)
            assert rank.alive
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.wait(20) == 0
        finally:
            child.kill()
    assert not rank.alive and rank.control[0] == 0  # still mapped
    with pytest.raises(Gone):
        Attached(found)
    assert attach([found]) == ([], [])


def test_attach_a_proxy_leads_to_its_rank_and_another_child_to_none() -> None:
    with contextlib.ExitStack() as stack:
        proxy, other = (stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(2))
        stack.callback(proxy.kill)
        stack.callback(other.kill)
        ranks = [Rank(0, 2, proxy_pid=proxy.pid), Rank(1, 2)]  # the second runs its proxy as threads
        published = [Published(rank.page) for rank in ranks]
        assert [found.page for found in find(proxy.pid)] == [ranks[0].page] == [published[0].page]
        assert find(other.pid) == []
    with pytest.raises(InvalidArgument, match=f"no process {proxy.pid}"):
        find(proxy.pid)


def test_attach_by_directory(tmp_path: Path) -> None:
    rank, other = Rank(0), Rank(1)
    published = Published(rank.page, str(tmp_path / "made"))
    (tmp_path / "made" / "uccl-ep-cut-0.page").write_bytes(b"".join(pack(rank.page))[:40])
    stale = dataclasses.replace(other.page, pid=rank.page.pid, segments=page().segments)  # its rank was killed
    (tmp_path / "made" / "uccl-ep-stale-1.page").write_bytes(b"".join(pack(stale)))
    os.mkfifo(tmp_path / "made" / "uccl-ep-pipe-0.page")  # an open for reading would wait for its writer
    (tmp_path / "made" / "uccl-ep-zero-0.page").symlink_to("/dev/zero")
    found = find(directory=tmp_path / "made")
    assert [f.page for f in found] == [rank.page]
    assert published.path is not None and published.path.exists()
    path = published.path
    del published
    assert not path.exists()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"pid": 2**22 + 5}, "no process 4194309"),
        ({"directory": "not/here"}, "no directory not/here"),
        ({"pid": 1, "directory": "."}, "exclude each other"),
    ],
)
def test_attach_refuses_places_that_are_not_there(where: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        find(**where)


def test_attach_another_version_is_left_out_with_the_reason() -> None:
    old, fine = Rank(library="0.0.9"), Rank(1)
    cut = Rank(segments=Rank().page.segments | {"counters": Location(3, 4, 64)})
    ranks, left_out = attach([old.found(), cut.found(), fine.found()])
    assert [r.page.rank for r in ranks] == [1]
    assert len(left_out) == 2 and "runs uccl_ep 0.0.9" in left_out[0]


def test_attach_a_descriptor_that_is_another_file_by_now_is_gone() -> None:
    rank = Rank()
    attached = Attached(rank.found())
    assert attached.alive and attached.stats is None and attached.data is None
    wrong = dataclasses.replace(rank.page.segments["control"], inode=1)
    moved = dataclasses.replace(rank.page, segments=rank.page.segments | {"control": wrong})
    with pytest.raises(Gone, match="another file by now"):
        Attached(Found(moved, os.getpid()))
    rank.segments.clear()
    assert not attached.alive


def test_attach_maps_what_cannot_be_written() -> None:
    rank = Rank()
    attached = Attached(rank.found())
    for words in (attached.control, attached.rings, attached.counters):
        with pytest.raises(ValueError, match="read-only"):
            words[0] = 1


def test_attach_a_real_job_has_everything(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="shared_memory", PROXY_THREADS=2)
    with running(2, lambda rank, buffer: None) as found:
        ranks, left_out = attach(found)
        assert [r.page.rank for r in ranks] == [0, 1] and left_out == []
        assert all(r.stats is not None and r.data is not None and r.alive for r in ranks)
        assert ranks[0].page.node_of == [0, 1] and ranks[0].page.family == "shared_memory"
        assert ranks[0].page.proxy_threads == 2 and ranks[0].page.num_rings == 4
    assert not any(r.alive for r in ranks)
