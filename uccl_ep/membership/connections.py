"""The two ends of a connection between messengers, and the frames that a broken one may have lost."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field

MAX_QUEUED_FRAMES = 256  # to one peer that does not read: states repeat what older ones said; sent ones, as many again


@dataclass
class Incoming:
    """A connection that a peer has opened: its first message must prove that it knows the secret."""

    sock: socket.socket
    nonce: bytes
    since: float
    rank: int = -1  # until its hello
    key: bytes = b""
    received: bytearray = field(default_factory=bytearray)


@dataclass
class Outgoing:
    """A connection that this rank has opened to a peer."""

    rank: int
    sock: socket.socket
    nonce: bytes
    received: bytearray = field(default_factory=bytearray)  # the peer's nonce, then its answer
    connected: bool = False
    key: bytes = b""  # once the peer has proven itself
    unsent: bytearray = field(default_factory=bytearray)
    number: int = 0  # of the next frame


class SentFrames:
    """The last frames that were sent to a peer, over all of its connections: the peer may not have received them."""

    def __init__(self) -> None:
        self.end = 0  # frames so far
        self._last: deque[bytes] = deque(maxlen=MAX_QUEUED_FRAMES)

    def add(self, body: bytes) -> None:
        """Keeps a frame that is sent now."""
        self._last.append(body)
        self.end += 1

    def since(self, number: int) -> list[bytes]:
        """The frames from that number on. Raises OSError when they are kept no longer."""
        missing = self.end - number
        if not 0 <= missing <= len(self._last):
            raise OSError(f"{missing} frames are missing")
        return list(self._last)[len(self._last) - missing :]
