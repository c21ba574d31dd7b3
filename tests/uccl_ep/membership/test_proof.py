"""The challenge between messengers: a published vector, and that every part of it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.membership.proof import Talk, compare, keyed, seal


def test_proof_is_hmac_sha256() -> None:
    """Case 2 of RFC 4231."""
    wanted = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert keyed(b"Jefe", b"what do ya want for nothing?").hex() == wanted


def test_proof_depends_on_everything() -> None:
    talk = Talk(b"k", 1, 0, b"a" * 32, b"b" * 32)
    others = [
        replace(talk, key=b"l"),
        replace(talk, sender=2),
        replace(talk, receiver=2),
        replace(talk, sender=0, receiver=1),
        replace(talk, senders=b"c" * 32),
        replace(talk, receivers=b"c" * 32),
        replace(talk, senders=talk.receivers, receivers=talk.senders),
    ]
    proofs = {one.proof(b"connector") for one in [talk, *others]} | {talk.proof(b"acceptor")}
    proofs |= {talk.proof(b"connector", b"m"), seal(b"k", 0, b"x"), seal(b"k", 1, b"x"), seal(b"l", 0, b"x")}
    assert len(proofs) == len(others) + 6


def test_proof_that_differs_is_refused() -> None:
    compare(b"ab", b"ab")
    for other in (b"", b"a", b"ac", b"abc"):
        with pytest.raises(ValueError, match="stranger"):
            compare(b"ab", other)
