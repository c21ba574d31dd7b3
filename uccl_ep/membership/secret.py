"""How a session's ranks come to share a secret over a group whose messages others may read.

Each rank says a public value (Diffie-Hellman, group 14 of RFC 3526); the first one draws the secret and hands it to
every other, hidden by what only those two can compute. Who reads all of it learns nothing. Who can change the group's
messages is believed, as in whatever else the group says. A later life's secret does not travel at all: it is derived.

A process keeps its public value, since to compute with numbers of 2048 bits takes milliseconds a peer: its second
Buffer starts without. What hides a secret depends on the session too, so no two secrets are hidden alike. Whoever reads
the process's memory can then open what was dealt before: secrets of sessions that have ended, which prove nothing now.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Sequence

from uccl_ep.errors import UcclEpError
from uccl_ep.group.group import Group
from uccl_ep.group.handshake import Deal, Hello, exchange
from uccl_ep.membership.proof import keyed

SECRET_BYTES = 32
_PUBLIC_BYTES = 256
_KEPT = 4096  # powers, of 256 bytes each: at least a peer's each
_PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)


class KeyPair:
    """A secret exponent, and the powers that were computed with it. Threads may share it."""

    def __init__(self) -> None:
        self._exponent = secrets.randbits(256) | 1 << 255
        self._power = functools.lru_cache(_KEPT)(self._compute)

    def _compute(self, base: int) -> bytes:
        return pow(base, self._exponent, _PRIME).to_bytes(_PUBLIC_BYTES, "big")

    def public(self) -> bytes:
        """What the others may see."""
        return self._power(2)

    def hide(self, text: bytes, other: Hello, session: int) -> bytes:
        """A secret for, or what was hidden by, the rank of that hello: the same function both ways.

        Args:
            text: of SECRET_BYTES.
            other: what that rank has said of itself.
            session: its name, so that the same two processes hide each secret in another way.

        Raises:
            UcclEpError: the rank's public value is none.
        """
        value = int.from_bytes(other.public, "big")
        if len(other.public) != _PUBLIC_BYTES or not 1 < value < _PRIME - 1:
            raise UcclEpError(f"rank {other.rank} says no public value: is it another version of uccl_ep?")
        mask = keyed(hashlib.sha256(self._power(value)).digest(), b"uccl-ep secret of session %d" % session)
        return bytes(a ^ b for a, b in zip(text, mask, strict=True))


OWN_PAIR = KeyPair()
"""This process's; ranks that are its threads have it in common. A forked process has its parent's."""


def deal(group: Group, pair: KeyPair, present: Sequence[Hello]) -> bytes:
    """The session's secret: the first rank's. Collective.

    Raises:
        UcclEpError, PeerLost: as `exchange` does; or a rank's public value is none.
    """
    rank, first = group.rank(), present[0]
    secret, boxes, error = secrets.token_bytes(SECRET_BYTES), b"", ""
    try:
        if rank == first.rank:
            boxes = b"".join(pair.hide(secret, other, first.session) for other in present[1:])
    except UcclEpError as failure:
        error = str(failure)
    dealt = exchange(group, Deal(rank, boxes, error))[first.rank].boxes
    if rank == first.rank:
        return secret
    if len(dealt) != SECRET_BYTES * (len(present) - 1):
        raise UcclEpError(f"rank {first.rank} dealt no secret: is it another version of uccl_ep?")
    at = SECRET_BYTES * [other.rank for other in present[1:]].index(rank)
    return pair.hide(dealt[at : at + SECRET_BYTES], first, first.session)
