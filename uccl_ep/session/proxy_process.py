"""The proxy as a process of its own: `python -m uccl_ep.session.proxy_process PARENT_PID`, started by ProcessProxy.

Imports neither torch nor anything of a GPU. Ends when its standard input closes or its parent dies: both, because a
process that the parent forked holds the pipe open. (Not by PR_SET_PDEATHSIG, which fires at the end of the *thread*
that started this process.)
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgpack

from uccl_ep import _native
from uccl_ep.session.proxy_link import ProxyConfig, make_proxy, read_message


class ProxyServer:
    """Answers a rank's requests, one at a time."""

    def __init__(self) -> None:
        self._proxy: _native.Proxy | None = None
        self._channel: socket.socket | None = None  # that brings descriptors
        self.serving = False  # started and not told to stop

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; an exception becomes its "error"."""
        operations: dict[str, Callable[[dict[str, Any]], Any]] = {
            "configure": self._configure,
            "local_address": lambda m: self._ready().local_address(),
            "connect": lambda m: self._ready().connect(m["addresses"], m["peer_bytes"], m["peer_pids"]),
            "start": self._start,
            "stop": self._stop,
            "dismiss_peer": lambda m: self._ready().dismiss_peer(m["peer"]),
            "admit": self._admit,
            "notes": lambda m: self._ready().notes(),
        }
        try:
            return {"value": operations[message["operation"]](message)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _configure(self, message: dict[str, Any]) -> None:
        self._channel = socket.socket(fileno=message["channel"]) if "channel" in message else None
        self._proxy = make_proxy(ProxyConfig.from_plain(message["config"]))

    def _start(self, message: dict[str, Any]) -> None:
        self._ready().start()
        self.serving = True

    def _stop(self, message: dict[str, Any]) -> None:
        self._ready().stop(int(message["drain_s"] * 1e9))
        self.serving = False

    def _admit(self, message: dict[str, Any]) -> None:
        dmabufs: list[int] = []
        if (count := message["num_dmabufs"]) and self._channel is not None:
            _, dmabufs, _, _ = socket.recv_fds(self._channel, 1, count)
        try:
            self._ready().admit(message["num_bytes"], 0, dmabufs)  # the address is the rank's
        finally:
            for descriptor in dmabufs:
                os.close(descriptor)

    def _ready(self) -> _native.Proxy:
        if self._proxy is None:
            raise RuntimeError("configure first")
        return self._proxy


def watch(pid: int) -> list[int]:
    """A descriptor that becomes readable when a process ends; none where the kernel has no such thing (before 5.3)."""
    try:
        return [os.pidfd_open(pid)]
    except (OSError, AttributeError):  # a Python built against older headers lacks the function
        return []


def main() -> int:
    """Serves until standard input ends."""
    parent = int(sys.argv[1])
    death = watch(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the rank decides
    if os.getppid() != parent:
        return 1  # the parent died before it was watched
    server = ProxyServer()
    serve(server, death)
    if server.serving:
        # The rank has died. Taking the proxy down in good order would tell its peers that all is well.
        os._exit(1)
    return 0


def serve(server: ProxyServer, death: list[int]) -> None:
    """Answers requests until standard input ends or a descriptor in `death` is readable."""
    while True:
        # A rank sends its next request after the answer, so nothing of one can be in the stream's own buffer here.
        ready, _, _ = select.select([sys.stdin.fileno(), *death], [], [])
        if sys.stdin.fileno() not in ready:
            return
        try:
            message = read_message(sys.stdin.buffer)
            body = msgpack.packb(server.handle(message), use_bin_type=True)
            sys.stdout.buffer.write(len(body).to_bytes(4, "little") + body)
            sys.stdout.buffer.flush()
        except (EOFError, BrokenPipeError):
            return


if __name__ == "__main__":
    raise SystemExit(main())
