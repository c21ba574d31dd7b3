"""A rank's proxy put together from descriptors: its order of calls, its own mappings, and its end."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
from typing import Any

import pytest

from tests.uccl_ep.proxies import DATA_BYTES, Half, connect, eventually
from uccl_ep import _native
from uccl_ep.session.proxy_link import make_proxy


def settled(count: int) -> bool:
    return eventually(lambda: threads() == count)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("family", ["loopback", "shared_memory", "tcp"])
def test_proxy_host_calls_have_an_order(family: str) -> None:
    halves = [Half(rank, family) for rank in range(2)]
    proxies = [make_proxy(half.config) for half in halves]
    with pytest.raises(RuntimeError, match="start: connect the proxy first"):
        proxies[0].start()
    proxies[0].dismiss_peer(1)  # of nobody yet: nothing happens
    connect(proxies, halves)
    with pytest.raises(RuntimeError, match="local_address: the proxy is already connected"):
        proxies[0].local_address()
    with pytest.raises(RuntimeError, match="connect: the proxy is already connected"):
        proxies[0].connect([b"", b""], [0, 0], [0, 0])
    for proxy in proxies:
        proxy.stop(0)
        proxy.stop(0)


def test_proxy_host_unknown_family_is_refused_with_the_known_ones() -> None:
    half = Half(0, "smoke")
    with pytest.raises((ValueError, RuntimeError)) as caught:
        make_proxy(half.config)
    for word in ("smoke", "loopback", "shared_memory", "tcp"):
        assert word in str(caught.value)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("change", [
    {"rings_fd": 9999}, {"counters_fd": -1}, {"spans": [(0, DATA_BYTES, 9998)]},
])  # fmt: skip
def test_proxy_host_bad_descriptors_are_refused(change: dict[str, Any]) -> None:
    half = Half(0, "tcp", **change)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError):
        make_proxy(half.config)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_proxy_host_segments_smaller_than_told_are_refused() -> None:
    half = Half(0, "tcp")
    larger = Half(0, "tcp", spans=[(0, 1 << 30, half.data.fd)])
    with pytest.raises(RuntimeError, match=str(1 << 30)):
        make_proxy(larger.config)


def test_proxy_host_has_mappings_of_its_own() -> None:
    halves = [Half(rank, "loopback") for rank in range(2)]
    proxies = [make_proxy(half.config) for half in halves]
    connect(proxies, halves)
    descriptors = halves[0].config.descriptors()
    for half in halves:
        half.barrier_command(1)
    assert eventually(lambda: all(half.word(128) == 1 for half in halves))
    for descriptor in descriptors:
        os.fstat(descriptor)  # still the caller's
    for proxy in proxies:
        proxy.stop(0)
    for descriptor in descriptors:
        os.fstat(descriptor)


def test_proxy_host_gives_threads_and_descriptors_back() -> None:
    gc.collect()
    before = threads(), len(os.listdir("/proc/self/fd"))
    for family in ("loopback", "tcp", "shared_memory"):
        halves = [Half(rank, family) for rank in range(2)]
        proxies = [make_proxy(half.config) for half in halves]
        connect(proxies, halves)
        assert threads() > before[0]
        if family != "tcp":  # without stop, the end of the object is enough
            while proxies:
                proxies.pop().stop(0)
        del halves, proxies
        gc.collect()
        assert settled(before[0])
        assert len(os.listdir("/proc/self/fd")) == before[1]


def test_proxy_host_connect_lets_other_python_threads_run() -> None:
    """Connecting waits for the peer, which may be a thread of this process (helpers do exactly that)."""
    halves = [Half(rank, "tcp") for rank in range(2)]
    proxies = [make_proxy(half.config) for half in halves]
    ran = threading.Event()
    addresses = [p.local_address() for p in proxies]

    def second() -> None:
        ran.set()
        proxies[1].connect([addresses[0], b""], [halves[0].flat_bytes, 0], [0, 0])

    timer = threading.Timer(0.05, second)
    timer.start()
    proxies[0].connect([b"", addresses[1]], [0, halves[1].flat_bytes], [0, 0])
    assert ran.is_set()
    timer.join()
    for proxy in proxies:
        proxy.stop(0)


@pytest.mark.parametrize("told", [False, True])
def test_proxy_host_guard_makes_a_processes_end_a_fault(told: bool) -> None:
    half = Half(3, "tcp", num_ranks=4)
    child = subprocess.Popen(["sleep", "40"])
    guard = _native.ProxyGuard(child.pid, half.control.address, 3)
    assert half.fault() is None
    if told:
        guard.stop()
    child.kill()
    child.wait()
    if told:
        assert not eventually(lambda: half.fault() is not None, 0.3)
    else:
        assert eventually(lambda: half.fault() is not None)
        fault = half.fault()
        assert fault is not None and (fault["kind"], fault["peer"]) == (2, 3)
        assert half.word(0) != 0  # and every wait of the rank ends
    guard.stop()
