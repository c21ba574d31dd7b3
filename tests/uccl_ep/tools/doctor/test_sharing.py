"""Path host: the real system calls on this machine, and what is said where they are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.tools.doctor.hosts import host, told
from uccl_ep.tools.doctor import sharing
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, SLOW

Room = namedtuple("Room", "f_frsize f_blocks f_bavail")


def test_sharing_works_here() -> None:
    here = Host(environment={})
    assert told(sharing.segments(here)) == OK
    assert told(sharing.process_watch(here)) == OK
    answer = sharing.peers_memory(here)
    assert told(answer) == OK and "a child's segment was opened and read" in answer.found


def refuse(*arguments: Any) -> int:
    raise PermissionError(1, "Operation not permitted")


def test_sharing_where_a_container_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    answer = sharing.segments(host(tmp_path))
    assert told(answer) == MISSING and "seccomp" in answer.fix
    watch = sharing.process_watch(host(tmp_path))
    assert told(watch) == SLOW and "every 100 ms" in watch.found


def test_sharing_a_peer_whose_memory_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child names a descriptor that it does not have: what ranks of another user or pid namespace look like."""
    monkeypatch.setattr(sharing, "_HOLDER", "import sys; print(987, flush=True); sys.stdin.read()")
    made = host(tmp_path, proc={"sys/kernel/yama/ptrace_scope": "1\n"})
    answer = sharing.peers_memory(made)
    assert told(answer) == MISSING and "/fd/987: No such file" in answer.found
    assert "yama ptrace_scope 1" in answer.found and "one user in one pid namespace" in answer.fix


def test_sharing_a_peer_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_HOLDER", "raise SystemExit(3)")
    assert "could not make a segment" in sharing.peers_memory(host(tmp_path)).found


def test_sharing_a_peer_with_other_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = sharing._HOLDER.replace("b'seen'", "b'else'")
    monkeypatch.setattr(sharing, "_HOLDER", other)
    assert "is not what the child wrote" in sharing.peers_memory(host(tmp_path)).found


def test_sharing_leaves_no_child_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def keep(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", keep)
    sharing.peers_memory(host(tmp_path))
    assert made[0].args[0] == sys.executable and made[0].returncode is not None


def test_sharing_host_identity(tmp_path: Path) -> None:
    known = host(tmp_path / "a", proc={"sys/kernel/random/boot_id": "x\n"})
    assert told(sharing.one_host(known)) == OK
    hidden = sharing.one_host(host(tmp_path / "b"))
    assert told(hidden) == SLOW and "boot_id" in hidden.needed


def test_sharing_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(sharing.shm(host(tmp_path / "a"))) == NOT_NEEDED
    (tmp_path / "b/dev/shm").mkdir(parents=True)
    made = host(tmp_path / "b")
    monkeypatch.setattr(os, "statvfs", lambda path: Room(4096, 16384, 16000))
    small = sharing.shm(made)
    assert told(small) == SLOW and "of 64 MiB" in small.found and "--shm-size" in small.fix
    monkeypatch.setattr(os, "statvfs", lambda path: Room(4096, 1 << 20, 1 << 20))
    assert told(sharing.shm(made)) == OK
