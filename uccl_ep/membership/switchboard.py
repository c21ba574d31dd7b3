"""The one thread of a process that its messengers run on, however many Buffers it has.

It sleeps until one of them has something to do: a descriptor of its own is readable, somebody has rung for it, or its
time has come. It starts with the first messenger and ends with the last one.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from typing import Protocol

from uccl_ep.system.os_limits import naming


class Client(Protocol):
    """What has turns on the thread."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to do."""

    def turn(self) -> float | None:
        """Does it, without blocking. Returns the seconds until the next turn in case nothing happens; None: for ever;
        negative: this was the last one."""

    def finish(self) -> None:
        """Closes what it holds, after its last turn."""


class Switchboard:
    """One thread and its clients. `join` finds it or makes it.

    Attributes:
        over: its last client has gone; a newcomer gets another one.
    """

    def __init__(self) -> None:
        with naming("socketpair for the agreement service"):
            self._bell, self._ringer = socket.socketpair()
        with naming("epoll_create1 for the agreement service"):
            self._selector = selectors.DefaultSelector()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._rung: set[Client] = set()
        self._next: dict[Client, float] = {}  # when each has its turn at the latest
        self.over = False
        self._thread = threading.Thread(target=self._run, name="uccl-roll-call", daemon=True)

    def ring(self, client: Client) -> None:
        """Gives a client a turn soon; one that had its last turn, nothing."""
        with _lock:
            self._rung.add(client)
        try:
            self._ringer.send(b"\0")
        except OSError:
            pass  # closed, or so full of rings that it will be heard anyway

    def settle(self) -> None:
        """Returns once the thread has ended, if its last client has gone. Not on that thread."""
        if self.over:
            self._thread.join()

    def add(self, client: Client) -> None:
        """Under the lock."""
        self._selector.register(client.fileno(), selectors.EVENT_READ, client)
        self._next[client] = 0.0
        self._rung.add(client)
        if self._thread.ident is None:
            try:
                self._thread.start()
            except BaseException:
                self._close()
                raise
        self._ringer.send(b"\0")

    def _run(self) -> None:
        while not self.over:
            with _lock:
                wait = min(self._next.values()) - time.monotonic()
            ready = self._selector.select(None if wait == _FOREVER else max(0.0, wait))
            due = {key.data for key, _ in ready if key.data is not None}
            try:
                self._bell.recv(4096)
            except BlockingIOError:
                pass
            now = time.monotonic()
            with _lock:
                due |= {client for client, at in self._next.items() if at <= now} | self._rung & self._next.keys()
                self._rung.clear()
            for client in due:
                self._turn(client)
        self._close()

    def _turn(self, client: Client) -> None:
        try:
            wait = client.turn()
        except Exception:  # its own fault: the others go on
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
            wait = -1.0
        if wait is None or wait >= 0:
            self._next[client] = _FOREVER if wait is None else time.monotonic() + wait
            return
        self._selector.unregister(client.fileno())
        with _lock:
            del self._next[client]
            if not self._next:
                self.over = True
        client.finish()

    def _close(self) -> None:
        for end in (self._bell, self._ringer, self._selector):
            end.close()


_FOREVER = float("inf")
_lock = threading.Lock()
_board: Switchboard | None = None


def join(client: Client) -> Switchboard:
    """Gives a client turns on the process's thread, from now until it says that it had its last one.

    Raises:
        OSError: no descriptor is left. RuntimeError: no thread can be started.
    """
    global _board
    with _lock:
        board = Switchboard() if _board is None or _board.over else _board
        board.add(client)
        _board = board
        return board


def _arrive() -> None:
    global _board, _lock
    _board, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_arrive)
