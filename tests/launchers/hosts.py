"""Hosts of our own making: each with a name, an address, processes and network that the others cannot see.

A host is the network namespace that tests/faults/network.py makes, with a pid, mount and host-name namespace around
it; so ranks of two hosts find two nodes, as on two machines. Hosts know each other by name (/etc/hosts).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.faults import network
from tests.faults.network import Network

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0
"""Seconds for ranks to import torch, to meet and to end, on a machine whose cores others use too."""
_ENTRANCES = ("--pid", "--mount", "--uts", "--net")
# The first process of a host. It ignores SIGCHLD, so that the kernel takes away processes whose parents have died.
_BOOT = 'mount --bind "$0" /etc/hosts && hostname "$1" && echo up && trap "" CHLD && exec sleep infinity'
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC", "SLURM_", "OMPI_", "PMI", "UCCL_EP_")


def missing() -> str:
    """Why hosts cannot be made here; empty: they can."""
    tools = [name for name in ("unshare", "nsenter") if shutil.which(name) is None]
    if tools:
        return f"{', '.join(tools)} (util-linux) not installed"
    why = network.missing()
    if why:
        return why
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--mount", "true"], capture_output=True, text=True
    )
    return f"unshare: {tried.stderr.strip()}" if tried.returncode else ""


def require() -> None:
    """Skips the test, loudly, where hosts cannot be made."""
    import pytest

    why = missing()
    if why:
        pytest.skip(f"NOT RUN: two hosts cannot be made: {why}")


def rank_environment(**more: str) -> dict[str, str]:
    """This process's environment as ranks get it: our code, one thread each, and nothing of another launcher's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "UCCL_EP_TIMEOUT_S": "30", **more}


class Hosts:
    """`count` hosts named host-1, host-2, ... A context manager: nothing of them is left at its end."""

    def __init__(self, count: int) -> None:
        self._network = Network(count)
        self._boots: list[subprocess.Popen[str]] = []
        self._first: list[int] = []  # process 1 of each host, as this host numbers it
        self._started: list[subprocess.Popen[str]] = []

    def name(self, host: int) -> str:
        """The host's name."""
        return f"host-{host + 1}"

    def address(self, host: int) -> str:
        """Its address, which its name stands for on all hosts."""
        return self._network.address(host)

    def __enter__(self) -> Hosts:
        self._network.__enter__()
        try:
            self._names = tempfile.NamedTemporaryFile("w", prefix="hosts-", encoding="ascii")
            lines = [f"{self.address(host)} {self.name(host)}" for host in range(self._network.hosts)]
            self._names.write("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
            self._names.flush()
            for host in range(self._network.hosts):
                self._boot(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _boot(self, host: int) -> None:
        around = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--mount", "--kill-child"]
        boot = [*around, "sh", "-c", _BOOT, self._names.name, self.name(host)]
        command = ["ip", "netns", "exec", self._network.name(host), *boot]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._boots.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "up\n", f"{self.name(host)} did not start: {said}"
        (first,) = psutil.Process(process.pid).children()
        self._first.append(first.pid)

    def __exit__(self, *_: object) -> None:
        for host in range(len(self._first)):
            self.power_off(host)
        for process in [*self._started, *self._boots]:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._names.close()
        self._network.__exit__()

    def power_off(self, host: int) -> None:
        """Ends every process of a host at once, without a word to anyone."""
        try:
            os.kill(self._first[host], signal.SIGKILL)
        except ProcessLookupError:
            pass  # it is off

    def enter(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on a host."""
        return ["nsenter", "--target", str(self._first[host]), *_ENTRANCES, "--", *command]

    def start(
        self, host: int, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command on a host; what it prints, errors too, is the process's stdout."""
        process = subprocess.Popen(
            self.enter(host, command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=dict(rank_environment() if environment is None else environment),
        )
        self._started.append(process)
        return process

    def module(self, host: int, *words: str, **environment: str) -> subprocess.Popen[str]:
        """`python -m words...` on a host, with these variables added to what ranks get."""
        return self.start(host, [sys.executable, "-m", *words], rank_environment(**environment))


def finish(processes: Sequence[subprocess.Popen[str]], limit_s: float = START_S) -> list[str]:
    """What each printed, line by line, when all have ended well.

    Raises:
        AssertionError: one failed, or did not end in time; with the output of all.
    """
    until = time.monotonic() + limit_s
    texts, late = [], False
    for process in processes:
        try:
            text, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            text, _ = process.communicate()
        texts.append(text)
    ended = [process.returncode for process in processes]
    assert not late and not any(ended), f"ended with {ended}, late: {late}\n" + "\n----\n".join(texts)
    return [line for text in texts for line in text.splitlines()]


def ranks_say(lines: Iterable[str]) -> list[str]:
    """What the examples print, by rank; torch prints warnings beside it."""
    return sorted(line for line in lines if re.match(r"rank \d+ of ", line))
