"""What a rank publishes: right, there while it lives, and never a reason for a job to fail."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.observe.samples import page, running
from uccl_ep import Buffer, ThreadGroup, run_ranks
from uccl_ep.observe import publish as publish_module
from uccl_ep.observe.attach import find
from uccl_ep.observe.publish import Published


def test_publish_says_what_the_session_is(variables: Any, tmp_path: Path) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="shared_memory", OBSERVE_DIR=tmp_path / "seen", RING_CAPACITY=128)
    with running(3, lambda rank, buffer: None) as found:
        assert [f.page.rank for f in found] == [0, 1, 2]
        by_directory = find(directory=tmp_path / "seen")
        assert [f.page for f in by_directory] == [f.page for f in found]
        for rank, one in enumerate(found):
            p = one.page
            assert (p.num_ranks, p.node_of, p.absent, p.apart) == (3, [0, 0, 1], [], False)
            assert p.pids == [os.getpid()] * 3 and p.pid == p.proxy_pid == one.pid == os.getpid()
            assert p.host_name(rank) == socket.gethostname() and p.device == "cpu" and p.placement == "host"
            assert p.ring_capacity == 128 and p.session == found[0].page.session
            assert p.segments.keys() == {"control", "rings", "counters", "stats", "data", "durations"}
    assert list((tmp_path / "seen").iterdir()) == []


def test_publish_ends_with_the_buffer(variables: Any) -> None:
    def body(group: ThreadGroup) -> tuple[int, int]:
        buffer = Buffer(group, 1 << 20)
        during = {f.page.session for f in find(os.getpid())} - before
        group.barrier()
        buffer.destroy()
        group.barrier()
        return len(during), len({f.page.session for f in find(os.getpid())} - before)

    before = {f.page.session for f in find(os.getpid())}
    assert run_ranks(2, body) == [(1, 0), (1, 0)]


def test_publish_a_directory_that_cannot_be_written_is_a_warning(
    variables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish_module, "_write_file", full)
    variables(OBSERVE_DIR=tmp_path)

    def body(group: ThreadGroup) -> int:
        buffer = Buffer(group, 1 << 20)
        seen = sum(f.page.pid == os.getpid() for f in find(os.getpid()))
        buffer.destroy()
        return seen

    with pytest.warns(UserWarning, match="UCCL_EP_OBSERVE_DIR.*No space left"):
        assert run_ranks(1, body) == [1]


def test_publish_a_port_that_is_taken_is_a_warning(variables: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        variables(METRICS_PORT=taken.getsockname()[1])

        def body(group: ThreadGroup) -> None:
            Buffer(group, 1 << 20).destroy()

        with pytest.warns(UserWarning, match="UCCL_EP_METRICS_PORT.*no metrics are served"):
            run_ranks(1, body)


def test_publish_writes_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    published = Published(page(1, 2), str(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".page"]
    again = Published(page(1, 2), str(tmp_path))  # takes the name over
    assert published.path == again.path and len(list(tmp_path.iterdir())) == 1


def test_publish_follows_no_link(tmp_path: Path) -> None:
    """Who can write to the directory can plant a link at every name that can be told beforehand."""
    one = page(1, 2)
    (tmp_path / "victim").write_bytes(b"victim")
    for suffix in (".page", f".{os.getpid()}"):
        (tmp_path / f"uccl-ep-{one.job}-1{suffix}").symlink_to(tmp_path / "victim")
    published = Published(one, str(tmp_path))
    assert (tmp_path / "victim").read_bytes() == b"victim"
    assert published.path is not None and not published.path.is_symlink()
