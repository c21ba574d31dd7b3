"""Authenticated messages between ranks that need no group: one listening socket, one connection a peer, on the thread
that all messengers of a process share (switchboard.py).

For when the group is what broke. A connection carries frames one way. Whoever accepts it sends a nonce first; who
connects answers with its own nonce and a proof that it knows the secret, and sends nothing more before it has the
acceptor's proof. Proofs are bound to both ranks, both nonces and the side that speaks, frames to a key of their
connection and to their number, so nothing that was recorded is of use. A stranger is given no more memory than a hello
takes, is dropped, and counted.

Whoever breaks a connection ends nothing either: a connection that was lost is made again, the acceptor says how many
frames it has, and the rest is sent once more. A rank has gone when nobody listens at its address any longer; whether it
was killed, a goodbye tells (death_notices.py).
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgpack

from uccl_ep.membership import switchboard
from uccl_ep.membership.connections import MAX_QUEUED_FRAMES as MAX_QUEUED_FRAMES
from uccl_ep.membership.connections import Incoming, Outgoing, SentFrames
from uccl_ep.membership.death_notices import Watch
from uccl_ep.membership.proof import COUNT, MAC, NONCE, RANK, Talk, compare, goodbye, keyed, seal
from uccl_ep.system import ownership
from uccl_ep.system.os_limits import naming

MAX_FRAME_BYTES = (1 << 20) + (1 << 12)  # a handshake blob and its envelope
_MAX_STRANGERS = 64  # connections without a hello at one time; the oldest gives way
_HELLO_S = 5.0
_LENGTH, _HELLO, _ANSWER = 4, RANK + NONCE + MAC, COUNT + MAC
_LINGER_S = 0.3  # what close() gives messages that are still queued: a rank may end right after its last word
_SOON_S = 0.02  # between turns while something is to be tried again
_FLAP_S = 0.5  # before a rank that is watched is dialled again where its host cannot be reached
_PAUSE_S = 0.05  # before a connection that ended without the peer's proof is made again: a crowd may have pushed it out

Message = dict[str, Any]


class Messenger:
    """One rank's end. Callbacks run on the switchboard's thread and must not block.

    Args:
        rank: of this end.
        secret: shared by all ranks.
        interface: the one address to listen on.
        on_message: called with (rank, message) for each frame; a ValueError, TypeError or KeyError from it drops the
            connection as a stranger's.
        on_gone: called with a rank whose process (or listener) has ended, as its host's network says.

    Attributes:
        strangers: connections that were dropped, either way, because the other side lacked the secret, was silent, or
            said what no rank says.
    """

    def __init__(
        self,
        rank: int,
        secret: bytes,
        interface: str,
        on_message: Callable[[int, Message], None],
        on_gone: Callable[[int], None],
    ) -> None:
        self.rank, self.strangers = rank, 0
        self._key = keyed(secret, b"uccl-ep messenger")
        self._on_message, self._on_gone = on_message, on_gone
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        with naming(f"socket for the agreement service on {interface}"):
            self._listener = socket.create_server((interface, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        self.address = (interface, int(self._listener.getsockname()[1]))
        self._addresses: dict[int, tuple[str, int]] = {}
        self._queues: dict[int, deque[bytes]] = {}
        self._lock = threading.Lock()
        self._incoming: dict[socket.socket, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._sent: dict[int, SentFrames] = {}
        self._taken: dict[int, int] = {}  # frames of each peer so far
        self._watched = Watch()
        self._again: dict[int, float] = {}  # ranks whose connection was lost, and when to make it anew
        with naming("epoll_create1 for the agreement service"):
            self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._closing, self._linger_until = False, 0.0
        self._ended, self._pid = threading.Event(), ownership.here
        self._board = switchboard.join(self)

    def meet(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where the peers listen."""
        with self._lock:
            self._addresses = {rank: address for rank, address in addresses.items() if rank != self.rank}

    def watch(self, ranks: Collection[int], on_death: Callable[[int], None]) -> None:
        """Holds connections to these ranks from now on, and to no others that were watched before.

        `on_death` is called with each of them that ends without a goodbye (death_notices.py).
        """
        with self._lock:
            self._watched = Watch(ranks, on_death)
        self._board.ring(self)

    def send(self, rank: int, message: Message) -> None:
        """Queues a message for a peer; one that cannot be reached is told to on_gone. Never blocks."""
        body: bytes = msgpack.packb(message, use_bin_type=True)
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(body)} bytes: at most {MAX_FRAME_BYTES} may be sent")
        with self._lock:
            if self._closing or rank not in self._addresses:
                return
            queue = self._queues.setdefault(rank, deque())
            queue.append(body)
            while len(queue) > MAX_QUEUED_FRAMES:
                queue.popleft()
        self._board.ring(self)

    def close(self) -> None:
        """Sends what is queued, if that takes no longer than a moment; closes every socket.

        Idempotent; not from a callback. In a child of fork() it does nothing: the thread is the parent's. Nor when
        Python has stopped its threads, as it does when the process ends: the system closes the sockets then.
        """
        with self._lock:
            if self._closing or self._pid != ownership.here:
                return
            self._closing, self._linger_until = True, time.monotonic() + _LINGER_S
        if sys.is_finalizing():
            return
        self._board.ring(self)
        self._ended.wait()
        self._board.settle()

    # ---- on the switchboard's thread -------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when there is something to do."""
        return self._selector.fileno()

    def turn(self) -> float | None:
        """Does what there is to do; the seconds until the next turn (switchboard.Client)."""
        for key, mask in self._selector.select(0):
            key.data(key.fileobj, mask)
        self._dial()
        self._drop_silent_strangers()
        if self._closing:
            return _SOON_S if self._lingers() else -1.0
        if self._again:
            return _SOON_S
        return 1.0 if any(c.rank < 0 for c in self._incoming.values()) else None

    def finish(self) -> None:
        """Closes every socket."""
        for connection in self._incoming.values():
            if connection.key:
                with contextlib.suppress(OSError):  # 32 bytes into an empty buffer, or the peer has gone
                    connection.sock.send(goodbye(connection.key))
            connection.sock.close()
        for out in self._outgoing.values():
            out.sock.close()
        self._listener.close()
        self._selector.close()
        self._ended.set()

    def _lingers(self) -> bool:
        """Whether something is still to be sent, and there is time for it."""
        with self._lock:
            queued = any(self._queues.values())
        queued = queued or any(out.unsent for out in self._outgoing.values())
        return queued and time.monotonic() < self._linger_until

    # ---- accepting -------------------------------------------------------------------------------------------------

    def _accept(self, listener: Any, mask: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # it has gone again, or there is no descriptor left: the next one may find one
        sock.setblocking(False)
        strangers = [c for c in self._incoming.values() if c.rank < 0]
        if len(strangers) >= _MAX_STRANGERS:
            self._drop_stranger(strangers[0])
        connection = Incoming(sock, secrets.token_bytes(NONCE), time.monotonic())
        self._incoming[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, self._read)
        try:
            sock.send(connection.nonce)  # 32 bytes into an empty buffer: all or an error
        except OSError:
            self._drop_stranger(connection)

    def _drop_silent_strangers(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._incoming.values() if c.rank < 0 and now - c.since > _HELLO_S]:
            self._drop_stranger(connection)

    def _drop_stranger(self, connection: Incoming) -> None:
        self.strangers += 1
        self._drop(connection)

    def _drop(self, connection: Incoming) -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()
        del self._incoming[connection.sock]

    def _read(self, sock: Any, mask: int) -> None:
        connection = self._incoming.get(sock)
        if connection is None:
            return  # it gave way to another stranger a moment ago
        wanted = _HELLO - len(connection.received) if connection.rank < 0 else 1 << 16
        try:
            data = sock.recv(wanted)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_stranger(connection) if connection.rank < 0 else self._drop(connection)
            return
        connection.received += data
        try:
            while self._take(connection):
                pass
        except (ValueError, TypeError, KeyError):
            self._drop_stranger(connection)

    def _take(self, connection: Incoming) -> bool:
        """Takes a hello or a frame off what was received; False when there is no whole one. Raises ValueError."""
        received = connection.received
        if connection.rank < 0:
            if len(received) < _HELLO:
                return False
            self._welcome(connection, bytes(received[:_HELLO]))
            del received[:_HELLO]
            return True
        if len(received) < _LENGTH + MAC:
            return False
        length = int.from_bytes(received[:_LENGTH], "little")
        if length > MAX_FRAME_BYTES:
            raise ValueError("a frame beyond its limit")
        if len(received) < _LENGTH + MAC + length:
            return False
        body = bytes(received[_LENGTH + MAC : _LENGTH + MAC + length])
        number = self._taken.get(connection.rank, 0)
        compare(seal(connection.key, number, body), bytes(received[_LENGTH : _LENGTH + MAC]))
        del received[: _LENGTH + MAC + length]
        self._taken[connection.rank] = number + 1
        try:
            message = msgpack.unpackb(body, raw=False, strict_map_key=True)
        except Exception as error:
            raise ValueError("not msgpack") from error
        if not isinstance(message, dict):
            raise ValueError("not a map")
        self._on_message(connection.rank, message)
        return True

    def _welcome(self, connection: Incoming, hello: bytes) -> None:
        """Checks a hello and answers it. Raises ValueError."""
        rank = int.from_bytes(hello[:RANK], "little")
        talk = Talk(self._key, rank, self.rank, hello[RANK : RANK + NONCE], connection.nonce)
        compare(talk.proof(b"connector"), hello[RANK + NONCE :])
        for older in [c for c in self._incoming.values() if c.rank == rank]:
            self._drop(older)  # what it holds unread will be sent again
        connection.rank, connection.key = rank, talk.proof(b"frames")
        taken = self._taken.get(rank, 0).to_bytes(COUNT, "little")
        try:
            connection.sock.send(taken + talk.proof(b"acceptor", taken))  # all or an error, as the nonce
        except OSError as error:
            raise ValueError("a hello whose sender has gone") from error

    # ---- connecting ------------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        """Opens what messages are waiting for, and hands them to what is open."""
        with self._lock:
            due = {rank for rank, queue in self._queues.items() if queue} | self._again.keys() | self._watched.unreached
            addresses = {rank: self._addresses.get(rank) for rank in due}
        for rank, address in addresses.items():
            out = self._outgoing.get(rank)
            if out is not None and out.key:
                self._watched.reach(rank)
                self._fill(out)
            elif out is None and time.monotonic() >= self._again.get(rank, 0.0):
                self._again.pop(rank, None)
                if address is not None:
                    self._open(rank, address)
                else:
                    self._watched.drop(rank)

    def _open(self, rank: int, address: tuple[str, int]) -> None:
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return  # no descriptor is left: tried again with what is sent next
        sock.setblocking(False)
        error = sock.connect_ex(address)  # else: what came of it is read when the socket becomes writable
        self._outgoing[rank] = out = Outgoing(rank, sock, secrets.token_bytes(NONCE))
        self._selector.register(sock, selectors.EVENT_WRITE, lambda _, mask: self._advance(out, mask))
        if error not in (0, errno.EINPROGRESS):
            self._lose(out, error)

    def _advance(self, out: Outgoing, mask: int) -> None:
        if not out.connected:
            if (error := out.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                self._lose(out, error)
                return
            out.connected = True
            out.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._watch(out)
            return
        try:
            if mask & selectors.EVENT_READ:
                wanted = NONCE if len(out.received) < NONCE else NONCE + _ANSWER + (MAC if out.key else 0)
                data = out.sock.recv(wanted - len(out.received) or 1)  # after a goodbye there is nothing more to say
                if not data:
                    raise ConnectionResetError
                out.received += data
                if len(out.received) >= wanted:
                    self._greet(out)
            if out.unsent:
                del out.unsent[: out.sock.send(out.unsent)]
        except BlockingIOError:
            pass
        except (ValueError, OSError) as failure:
            self.strangers += isinstance(failure, ValueError)
            self._lose(out, 0)
            return
        if out.key:
            self._fill(out)

    def _greet(self, out: Outgoing) -> None:
        """Says who this is, checks who answers, or takes a goodbye. Raises ValueError."""
        if out.key:
            compare(goodbye(out.key), bytes(out.received[NONCE + _ANSWER :]))
            self._watched.drop(out.rank)
            return
        nonce, answer = bytes(out.received[:NONCE]), bytes(out.received[NONCE:])
        talk = Talk(self._key, self.rank, out.rank, out.nonce, nonce)
        if not answer:
            out.unsent += self.rank.to_bytes(RANK, "little") + out.nonce + talk.proof(b"connector")
            self._watch(out)
            return
        taken = answer[:COUNT]
        compare(talk.proof(b"acceptor", taken), answer[COUNT:])
        number = int.from_bytes(taken, "little")
        missing = self._sent.setdefault(out.rank, SentFrames()).since(number)
        out.key, out.number = talk.proof(b"frames"), number
        for body in missing:
            self._put(out, body)
        self._watched.reach(out.rank)

    @staticmethod
    def _put(out: Outgoing, body: bytes) -> None:
        out.unsent += len(body).to_bytes(_LENGTH, "little") + seal(out.key, out.number, body) + body
        out.number += 1

    def _fill(self, out: Outgoing) -> None:
        with self._lock:
            queue = self._queues.get(out.rank, deque())
            while queue and len(out.unsent) < MAX_FRAME_BYTES:
                body = queue.popleft()
                self._sent[out.rank].add(body)
                self._put(out, body)
        self._watch(out)

    def _watch(self, out: Outgoing) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if out.unsent else 0)
        key = self._selector.get_key(out.sock)
        if key.events != wanted:
            self._selector.modify(out.sock, wanted, key.data)

    def _lose(self, out: Outgoing, error: int) -> None:
        """Ends a connection that broke (0) or could not be made (errno)."""
        self._selector.unregister(out.sock)
        out.sock.close()
        del self._outgoing[out.rank]
        if error == 0:  # dialled again: its messages are kept
            self._again[out.rank] = time.monotonic() + (0.0 if out.key else _PAUSE_S)
            return
        with self._lock:
            queued = self._queues.pop(out.rank, None)
        if error == errno.ECONNREFUSED:
            self._on_gone(out.rank)
            self._watched.refuse(out.rank)
            return
        if queued or self._sent.get(out.rank, SentFrames()).end:  # somebody wants to know
            self._on_gone(out.rank)
        if self._watched.holds(out.rank):
            self._again[out.rank] = time.monotonic() + _FLAP_S
        else:
            self._watched.drop(out.rank)
