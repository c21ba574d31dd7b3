"""The proxy as a process: its protocol over pipes, and every way in which it must end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest

from tests.uccl_ep.proxies import Half, connect, eventually
from uccl_ep.session.proxy_link import ProcessProxy, read_message
from uccl_ep.session.proxy_process import ProxyServer, watch

ROOT = Path(__file__).parents[3]


def start(parent: int, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uccl_ep.session.proxy_process", str(parent)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, **options)


def ask(process: subprocess.Popen[bytes], **message: Any) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    body = msgpack.packb(message, use_bin_type=True)
    process.stdin.write(len(body).to_bytes(4, "little") + body)
    process.stdin.flush()
    return read_message(process.stdout)


def config_of(half: Half) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(half.config)


def test_proxy_process_protocol_over_pipes() -> None:
    half = Half(1, "tcp")
    with start(os.getpid(), pass_fds=half.config.descriptors()) as process:
        try:
            assert ask(process, operation="local_address") == {"error": "RuntimeError: configure first"}
            assert ask(process, operation="configure", config=config_of(half)) == {"value": None}
            address = ask(process, operation="local_address")["value"]
            assert isinstance(address, bytes) and address
            assert "KeyError: 'nonsense'" in ask(process, operation="nonsense")["error"]
            assert "KeyError" in ask(process)["error"]
            wrong = ask(process, operation="connect", addresses=[b"x", b""], peer_bytes=[1, 0], peer_pids=[0, 0])
            assert wrong["error"]
            assert ask(process, operation="stop", drain_s=0.0) == {"value": None}
            assert process.poll() is None
        finally:
            process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(20) == 0


def test_proxy_process_takes_descriptors_of_memory_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a request says, which are closed when the NICs have them, or have refused them."""
    ours, theirs = socket.socketpair()
    seen: list[tuple[int, int, list[int]]] = []

    class Native:
        def admit(self, num_bytes: int, address: int, dmabufs: list[int]) -> None:
            seen.append((num_bytes, address, [os.fstat(fd).st_ino for fd in dmabufs]))
            if num_bytes == 3:
                raise RuntimeError("no room")

    monkeypatch.setattr("uccl_ep.session.proxy_process.ProxyConfig.from_plain", lambda values: None)
    monkeypatch.setattr("uccl_ep.session.proxy_process.make_proxy", lambda config: Native())
    server, memory = ProxyServer(), [os.memfd_create(f"rows {n}") for n in range(2)]
    inodes = [os.fstat(fd).st_ino for fd in memory]
    assert server.handle({"operation": "configure", "config": {}, "channel": theirs.detach()}) == {"value": None}
    before = len(os.listdir("/proc/self/fd"))
    for num_bytes, some in ((1, memory), (2, []), (3, memory[1:])):
        if some:
            socket.send_fds(ours, [b"."], some)
        answer = server.handle({"operation": "admit", "num_bytes": num_bytes, "num_dmabufs": len(some)})
        assert answer == ({"value": None} if num_bytes < 3 else {"error": "RuntimeError: no room"})
    assert seen == [(1, 0, inodes), (2, 0, []), (3, 0, inodes[1:])]
    assert len(os.listdir("/proc/self/fd")) == before
    for fd in memory:
        os.close(fd)
    ours.close()


def test_proxy_process_is_sent_descriptors_of_memory_that_comes_later() -> None:
    halves, fd = [Half(rank, "tcp") for rank in range(2)], os.memfd_create("rows")
    before = len(os.listdir("/proc/self/fd"))
    links = [ProcessProxy(half.config) for half in halves]
    connect(links, halves)
    proxy = links[0]
    for num_bytes in (1 << 20, 2 << 20):
        proxy.admit(num_bytes, 0x10000, [fd, fd])  # tcp registers nothing
        there = [os.readlink(f"/proc/{proxy.pid}/fd/{n}") for n in os.listdir(f"/proc/{proxy.pid}/fd")]
        assert "/memfd:rows (deleted)" not in there  # it has closed them
    for link in links:
        link.stop(0.0)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


def test_proxy_process_ends_at_the_end_of_its_input_even_when_idle() -> None:
    with start(os.getpid()) as process:
        assert process.stdin is not None
        assert ask(process, operation="start")["error"] == "RuntimeError: configure first"
        process.stdin.close()
        assert process.wait(20) == 0


def test_proxy_process_ends_in_the_middle_of_a_message() -> None:
    with start(os.getpid()) as process:
        assert process.stdin is not None
        process.stdin.write(b"\xff\x00")
        process.stdin.close()
        assert process.wait(20) == 0


def test_proxy_process_refuses_to_serve_another_parent() -> None:
    with start(os.getppid()) as process:
        assert process.wait(20) == 1


def test_proxy_process_ignores_the_terminals_interrupt() -> None:
    with start(os.getpid()) as process:
        assert ask(process, operation="start")["error"]  # it runs, so the signal's handler is set
        process.send_signal(signal.SIGINT)
        assert ask(process, operation="start")["error"] == "RuntimeError: configure first"
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(20) == 0


# A rank that starts a proxy, gives the pipe to a child of its own that lives on (as fork does), and is killed.
RANK = """
import os, sys
from tests.uccl_ep.proxies import Half
from uccl_ep.session.proxy_link import ProcessProxy
half = Half(0, "tcp")
proxy = ProcessProxy(half.config)
child = os.fork() if sys.argv[1] == "fork" else -1
if child == 0:
    import time
    time.sleep(40)
else:
    print(proxy.pid, child, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("forks", ["fork", "alone"])
def test_proxy_process_ends_when_its_parent_is_killed(forks: str) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, forks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert rank.stdout is not None
    proxy, child = (int(word) for word in rank.stdout.readline().split())
    try:
        assert psutil.pid_exists(proxy)
        rank.kill()
        rank.wait(20)

        def ended() -> bool:
            return not psutil.pid_exists(proxy) or psutil.Process(proxy).status() == psutil.STATUS_ZOMBIE

        assert eventually(ended)
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)
        with rank:
            rank.stdin.close()  # type: ignore[union-attr]


def test_proxy_process_watch_tells_of_an_end() -> None:
    import select

    child = subprocess.Popen(["sleep", "30"])
    descriptors = watch(child.pid)
    assert len(descriptors) == 1
    assert select.select(descriptors, [], [], 0)[0] == []
    child.kill()
    assert select.select(descriptors, [], [], 20)[0] == descriptors
    child.wait()
    os.close(descriptors[0])
    assert watch(child.pid) == []  # it is gone: nothing to watch, and no exception


def test_proxy_process_imports_no_torch() -> None:
    code = "import uccl_ep.session.proxy_process, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


def test_proxy_process_server_answers_in_this_process() -> None:
    half = Half(0, "loopback")
    server = ProxyServer()
    assert server.handle({"operation": "stop", "drain_s": 0.0}) == {"error": "RuntimeError: configure first"}
    packed = msgpack.unpackb(msgpack.packb(config_of(half)), raw=False)  # tuples become lists on the way
    assert server.handle({"operation": "configure", "config": packed}) == {"value": None}
    assert "TypeError" in server.handle({"operation": "configure", "config": {**packed, "colour": 1}})["error"]
    assert server.handle({"operation": "local_address"})["value"] is not None
    assert server.handle({"operation": "stop", "drain_s": 0.0}) == {"value": None}
