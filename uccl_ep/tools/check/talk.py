"""One conversation between two hosts: a connection that both ends prove to be meant, then maps, one way and the other.

Whoever listens prints a code. Both ends show a keyed hash of it and of both nonces, never the code; every message
carries the keyed hash of its number and its bytes. The networks' own secret comes from the same.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from uccl_ep.errors import UcclEpError
from uccl_ep.membership.proof import MAC, NONCE, compare, keyed, seal

_HELLO_S = 5.0  # for a stranger to show what it is
_ANSWER_S = 120.0  # between two messages: a measurement lies between them
_MOST_BYTES = 1 << 20
_SIDES = (b"listens", b"calls")


def new_code() -> str:
    """What the other end has to be told."""
    return secrets.token_hex(8)


class Talk:
    """One end. A context manager.

    Attributes:
        rank: 0 who calls, 1 who listens. secret: 32 bytes that only these two ends have.
    """

    def __init__(self, connection: socket.socket, code: str, rank: int) -> None:
        """Raises ValueError or OSError when the other end is a stranger, or silent."""
        self.rank, self._socket, self._sent, self._heard = rank, connection, 0, 0
        connection.settimeout(_HELLO_S)
        key, mine = code.encode(), os.urandom(NONCE)
        connection.sendall(mine)
        theirs = self._read(NONCE)
        both = mine + theirs if rank == 0 else theirs + mine
        connection.sendall(keyed(key, _SIDES[1 - rank] + both))
        compare(keyed(key, _SIDES[rank] + both), self._read(MAC))
        self.secret = keyed(key, b"secret" + both)
        connection.settimeout(_ANSWER_S)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def exchange(self, value: Any) -> Any:
        """Sends a value of plain data and returns the other end's.

        Raises:
            UcclEpError: the other end has gone, is silent, or says what no end says.
        """
        try:
            body = msgpack.packb(value, use_bin_type=True)
            self._socket.sendall(struct.pack("<I", len(body)) + self._seal(self.rank, self._sent, body) + body)
            self._sent += 1
            (size,) = struct.unpack("<I", self._read(4))
            if size > _MOST_BYTES:
                raise ValueError(f"a message of {size} bytes")
            mac, theirs = self._read(MAC), self._read(size)
            compare(self._seal(1 - self.rank, self._heard, theirs), mac)
            self._heard += 1
            return msgpack.unpackb(theirs, raw=False)
        except (OSError, ValueError, msgpack.UnpackException) as error:
            raise UcclEpError(f"check: the other end has gone, or said nothing that is known here: {error}") from error

    def _seal(self, rank: int, number: int, body: bytes) -> bytes:
        return seal(keyed(self.secret, _SIDES[1 - rank]), number, body)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the connection has ended")
            data += more
        return data


def listen(address: str, port: int, code: str, ready: Callable[[str, int], None]) -> Talk:
    """The end that waits for the other one; strangers are dropped.

    Args:
        ready: called with the address and port, once the other end may call.

    Raises:
        UcclEpError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, port), family=family)
    except OSError as error:
        raise UcclEpError(f"check: cannot listen on {address}, port {port}: {error.strerror or error}") from error
    with server:
        ready(address, server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            try:
                return Talk(connection, code, 1)
            except (OSError, ValueError):
                connection.close()


def call(address: str, port: int, code: str) -> Talk:
    """The end that calls.

    Raises:
        UcclEpError: nobody listens there, or with another code.
    """
    where = f"{address}, port {port}"
    try:
        connection = socket.create_connection((address, port), _HELLO_S)
    except OSError as error:
        raise UcclEpError(
            f"check: {where} does not answer: {error.strerror or error}; does `uccl-ep check` run there?"
        ) from error
    try:
        return Talk(connection, code, 0)
    except (OSError, ValueError) as error:
        connection.close()
        raise UcclEpError(f"check: {where} has another code, or is no uccl-ep check: {error}") from error
