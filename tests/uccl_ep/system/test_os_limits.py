"""What the system refuses is said with the call, the limit behind it and what to do; and what is limited still runs."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.forked_pair import free_descriptors
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.system import os_limits
from uccl_ep.system.os_limits import address_space, in_words, limit_behind, naming

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can become another user")


def pair(*changes: str, **variables: str) -> list[str]:
    """What two forked ranks say: see forked_pair."""
    command = [sys.executable, "-m", "tests.uccl_ep.forked_pair", *changes]
    environment = {**os.environ, "UCCL_EP_TIMEOUT_S": "20", **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert len(said) == 2, done.stdout + done.stderr
    return said


def test_limits_name_the_call_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (17, resource.RLIM_INFINITY))
    with pytest.raises(
        OSError, match=r"epoll_create1 for x: Too many open files\. .* 17 \(hard limit unlimited\)"
    ) as e:
        with naming("the whole"), naming("epoll_create1 for x"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert e.value.errno == errno.EMFILE and str(e.value).count("ulimit -n") == 1
    assert in_words(e.value).count("ulimit -n") == 1 and in_words(e.value).startswith("OSError: ")
    with pytest.raises(PermissionError, match=r"epoll_create1 for x: Operation not permitted$"):
        with naming("epoll_create1 for x"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    with pytest.raises(OSError, match=r"a: Too many open files \(/some/file\)"), naming("a"):
        open_of = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/some/file")
        raise open_of


MANY_BUFFERS = (
    "import resource, sys, uccl_ep\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))\n"
    "def body(group):\n"
    "    made = [uccl_ep.Buffer(group, 2 << 20, explicitly_destroy=True) for _ in range(12)]\n"
    "    [each.destroy() for each in made]\n"
    "uccl_ep.run_ranks(1, body)\n"
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
)


@pytest.mark.slow
def test_limits_soft_one_is_raised_for_many_buffers() -> None:
    """One Buffer for each layer of a model: a login's soft limit of open files is not what it may have."""
    command = [sys.executable, "-c", MANY_BUFFERS]
    done = subprocess.run([*command, "4096"], cwd=ROOT, capture_output=True, text=True, timeout=50)
    soft, hard = map(int, done.stdout.split())
    assert 64 < soft <= 1024 < hard == 4096, done.stderr  # as far as needed, and no further
    short = subprocess.run([*command, "70"], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert short.returncode == 1 and "This process may have 70 (hard limit 70) open files" in short.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, None),  # enough
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (100, 100, None),  # nothing to be had
        (100, 4096, (550, 4096)),
        (100, 300, (300, 300)),
        (100, resource.RLIM_INFINITY, (550, resource.RLIM_INFINITY)),
    ],
)
def test_limits_soft_one_is_raised_no_further(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: Any
) -> None:
    set_to: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, to: set_to.append(to))
    monkeypatch.setattr(os, "listdir", lambda path: ["0"] * 50)
    os_limits.make_room(500)
    assert set_to == ([] if raised is None else [raised])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memfd_create: Too many open files", "17 (hard limit 17) open files and sockets (ulimit -n): allow"),
        ("mmap of 34359738368 bytes: Cannot allocate memory", "17 (hard limit 17) bytes of address space"),
        ("cannot start the thread of a proxy worker: Resource temporarily unavailable", "threads (ulimit -u)"),
        ("can't start new thread", "pids.max"),
    ],
)
def test_limits_of_native_errors(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (17, 17))
    assert words in in_words(RuntimeError(text)) and text in in_words(RuntimeError(text))


def test_limits_are_not_blamed_for_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_words(ValueError("x")) == "ValueError: x"
    monkeypatch.setattr(os_limits, "address_space", lambda: None)
    assert limit_behind("mmap: Cannot allocate memory") == ""


@pytest.mark.parametrize(
    ("free", "words"),
    [(0, "socket for the agreement service"), (1, "epoll_create1"), (3, "socketpair"), (4, "epoll_create1")],
)
def test_limits_of_the_roll_call(free: int, words: str) -> None:
    with free_descriptors(free), pytest.raises(OSError, match=f"{words} .*Too many open files.*ulimit -n"):
        AgreementService(0, 2, b"s" * 32, "127.0.0.1")


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, *(pytest.param(free, marks=pytest.mark.slow) for free in (1, 7, 16))])
def test_limits_of_open_files_on_one_rank_are_told_to_both(free: int) -> None:
    told = pair("same", f"files={free}")
    for said in told[1:] if free == 0 else told:  # without one, it fails before it can tell the other
        assert re.search(r"rank 1: (OSError: )?.*: Too many open files.*\(hard limit \d+\).*\(ulimit -n\): allow", said)


@pytest.mark.slow
@pytest.mark.parametrize("per_node", ["2", pytest.param("1", marks=pytest.mark.slow)])
def test_limits_of_address_space_cost_zero_copy_its_room_alone(per_node: str) -> None:
    """32 GiB of it are reserved otherwise. One rank's limit is enough, since it maps what the others have."""
    variables = {"UCCL_EP_RANKS_PER_NODE": per_node}
    assert address_space() is None
    for said in pair("same", f"address_space={GIB * 3 // 2}", **variables):
        assert f"nodes {2 // int(per_node)} sum 1024.0" in said


@pytest.mark.slow
def test_limits_of_address_space_are_named() -> None:
    rings = {"UCCL_EP_RINGS": "8", "UCCL_EP_RING_CAPACITY": str(1 << 20), "UCCL_EP_PROXY_THREADS": "4"}  # 512 MiB
    for said in pair("address_space=900000000", "same", **rings):
        wanted = (
            r"mmap of \d+ bytes: Cannot allocate memory.* 900000000 .* bytes of address space \(ulimit -v, RLIMIT_AS\)"
        )
        assert re.search(wanted, said), said


@as_root
@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes",
    [
        ("same", "user=65534"),
        pytest.param(("user=65534", "user=65534"), marks=pytest.mark.slow),
        pytest.param(("user=65534", "user=65533"), marks=pytest.mark.slow),
    ],
)
def test_ranks_that_cannot_map_each_other_are_nodes_of_their_own(changes: tuple[str, str], transport: str) -> None:
    """Nor can two of one user that have changed to it after they began."""
    for said in pair(*changes, UCCL_EP_TRANSPORT=transport):
        assert "nodes 2 sum 1024.0" in said


@pytest.mark.slow
def test_ranks_that_must_not_be_looked_into_are_nodes_of_their_own() -> None:
    for said in pair("same", "undumpable"):
        assert "nodes 2 sum 1024.0" in said


@pytest.mark.slow
@as_root
def test_ranks_of_two_users_and_shared_memory() -> None:
    for said in pair("same", "user=65534", UCCL_EP_TRANSPORT="shared_memory"):
        assert "needs all ranks on one host and of one user" in said
        assert float(said.rpartition("| ")[2]) < 10  # the deadline is 20 s
