"""Where the ranks of a measurement wait for each other: asleep, so that nothing but what is measured takes CPU time.

gloo's barrier does not do: a rank that has come early has sent its message to one that still works, and there gloo's
thread polls a socket whose bytes nobody wants yet until that rank comes too, on the core that the rank needs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 300.0
"""The longest wait for the others: far above any phase, so only a rank that hangs is waited for so long."""
_HERE = "127.0.0.1"


class Meeting:
    """A barrier of ranks on one host: rank 0 hears from every other rank, then answers all."""

    def __init__(self, rank: int, num_ranks: int, share: Callable[[Any], Any]) -> None:
        """
        Args:
            rank: this one of `num_ranks`.
            share: called by every rank once; returns what rank 0 has given to it.

        Raises:
            OSError: another rank did not come.
        """
        self._leads = rank == 0
        if self._leads:
            with socket.create_server((_HERE, 0), backlog=num_ranks) as server:
                server.settimeout(TIMEOUT_S)
                share(server.getsockname()[1])
                self._others = [server.accept()[0] for _ in range(num_ranks - 1)]
        else:
            self._others = [socket.create_connection((_HERE, share(None)), TIMEOUT_S)]
        for other in self._others:
            other.settimeout(TIMEOUT_S)
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait(self) -> None:
        """Returns when every rank has called it.

        Raises:
            OSError: a rank has gone, or did not come within TIMEOUT_S.
        """
        if self._leads:
            self._hear()
            self._say()
        else:
            self._say()
            self._hear()

    def close(self) -> None:
        """Ends the connections. Only after a wait that all have returned from, or because of an error."""
        for other in self._others:
            other.close()
        self._others = []

    def _hear(self) -> None:
        for other in self._others:
            if not other.recv(1):
                raise ConnectionResetError("another rank of the measurement has ended")

    def _say(self) -> None:
        for other in self._others:
            other.sendall(b"!")
