"""The proof of identity between messengers: a challenge, as the networks' own (`proxy/transport/proof.h`).

Nobody shows the secret. Each side of a connection shows a keyed hash of both ranks, both nonces and the side that
speaks; from the same comes the key of the connection's frames.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

NONCE, MAC, RANK, COUNT = 32, 32, 2, 8  # bytes


def keyed(key: bytes, text: bytes) -> bytes:
    """HMAC-SHA-256."""
    return hmac.new(key, text, hashlib.sha256).digest()


def seal(key: bytes, number: int, body: bytes) -> bytes:
    """What a frame carries: it fits no other connection's key, no other number and no other body."""
    return keyed(key, number.to_bytes(COUNT, "little") + body)


def goodbye(key: bytes) -> bytes:
    """What who takes frames says when it closes the connection in good order: no frame's number is as high."""
    return seal(key, (1 << 8 * COUNT) - 1, b"goodbye")


def compare(wanted: bytes, seen: bytes) -> None:
    """Raises ValueError when they differ, after the same time wherever they do."""
    if not hmac.compare_digest(wanted, seen):
        raise ValueError("a stranger's key")


@dataclass(frozen=True)
class Talk:
    """One connection: its two ranks and the nonce of each."""

    key: bytes
    sender: int
    receiver: int
    senders: bytes  # nonce
    receivers: bytes

    def proof(self, label: bytes, more: bytes = b"") -> bytes:
        """What only who has the key can say, and only in this connection; `label` says which side speaks."""
        names = self.sender.to_bytes(RANK, "little") + self.receiver.to_bytes(RANK, "little")
        return keyed(self.key, label + b"\0" + names + self.senders + self.receivers + more)
