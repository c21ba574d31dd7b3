"""Hosts as network namespaces, each with one cable to a switch that can be cut, or made to carry one direction only.

Nothing of it is in the machine's own namespace but the names below /run/netns, which end with the context.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_NAMES = Path("/run/netns")
_PREFIX = "uccl-ep-faults"
# A queue that holds one byte refuses every packet. It is in every kernel, which a dropping filter is not.
_DROP = "bfifo limit 1"


def missing() -> str:
    """Why namespaces cannot be made here; empty: they can."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    status = Path("/proc/self/status").read_text()
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    if not effective >> 12 & 1 or not effective >> 21 & 1:
        return "CAP_NET_ADMIN and CAP_SYS_ADMIN are needed"
    tried = subprocess.run(["ip", "netns", "add", f"{_PREFIX}-try-{os.getpid()}"], capture_output=True, text=True)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    _run(["ip", "netns", "del", f"{_PREFIX}-try-{os.getpid()}"])
    return ""


def _run(command: list[str], lines: Iterable[str] | None = None) -> None:
    text = None if lines is None else "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{text or ''}"


class Network:
    """`hosts` namespaces on one switch. A context manager."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._base = f"{_PREFIX}-{os.getpid()}"

    def name(self, host: int) -> str:
        """The namespace of a host."""
        return f"{self._base}-{host}"

    def address(self, host: int) -> str:
        """Its address."""
        return f"10.77.0.{host + 1}"

    @property
    def _switch(self) -> str:
        return f"{self._base}-switch"

    def __enter__(self) -> Network:
        _forget_the_dead()
        try:
            names = [self._switch, *(self.name(host) for host in range(self.hosts))]
            _run(["ip", "-batch", "-"], [f"netns add {name}" for name in names])
            cables = [
                f"link add port{host} netns {self._switch} type veth peer name eth0 netns {self.name(host)}"
                for host in range(self.hosts)
            ]
            _run(["ip", "-batch", "-"], cables)
            ports = [
                line
                for host in range(self.hosts)
                for line in (f"link set port{host} master bridge", f"link set port{host} up")
            ]
            _run(
                ["ip", "-n", self._switch, "-batch", "-"],
                ["link add bridge type bridge", "link set bridge up", *ports],
            )
            for host in range(self.hosts):
                own = ["link set lo up", f"address add {self.address(host)}/24 dev eth0", "link set eth0 up"]
                _run(["ip", "-n", self.name(host), "-batch", "-"], own)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*(self.name(host) for host in range(self.hosts)), self._switch):
            if (_NAMES / name).exists():
                _run(["ip", "netns", "del", name])

    def left(self) -> list[str]:
        """Names of this network that still exist."""
        return [path.name for path in _NAMES.glob(f"{self._base}-*")]

    def harm(self, what: str, host: int) -> None:
        """Cuts a host's cable ("cut"), or drops what it sends ("mute") or what it is sent ("deaf")."""
        if what == "cut":
            _run(["ip", "-n", self._switch, "link", "set", f"port{host}", "down"])
            return
        end, device = (self.name(host), "eth0") if what == "mute" else (self._switch, f"port{host}")
        _run(["tc", "-n", end, "qdisc", "replace", "dev", device, "root", *_DROP.split()])


def enter(name: str) -> None:
    """Moves the calling thread, and those it starts from now on, into a namespace."""
    with open(_NAMES / name, encoding="ascii") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"setns {name}: {os.strerror(code)}")


def _forget_the_dead() -> None:
    """Deletes the namespaces of test processes that were killed."""
    for path in _NAMES.glob(f"{_PREFIX}-*") if _NAMES.exists() else ():
        owner = path.name.removeprefix(_PREFIX).split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _run(["ip", "netns", "del", path.name])
