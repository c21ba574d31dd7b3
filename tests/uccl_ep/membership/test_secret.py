"""The session's secret: the same on all ranks, and nowhere in what the group carried."""

from __future__ import annotations

import re
from typing import Any

import pytest

from uccl_ep import Buffer, UcclEpError, run_ranks
from uccl_ep.group.handshake import Hello
from uccl_ep.membership import secret
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.secret import KeyPair, deal
from uccl_ep.session import session as session_module
from uccl_ep.session.session import Session


def hello(rank: int, public: bytes) -> Hello:
    return Hello(rank, "h", "h", "p", 1, "", {}, 0, public)


class Overheard:
    """A group, and all that it carries."""

    def __init__(self, group: Any) -> None:
        self._group, self.carried = group, b""
        self.rank, self.size = group.rank, group.size

    def all_gather_object(self, value: Any) -> list[Any]:
        values: list[Any] = self._group.all_gather_object(value)
        self.carried += b"".join(values)
        return values


def test_secret_prime_is_a_safe_one() -> None:
    """Fermat's test to a few bases, of it and of its half: what a slip of the pen would not pass."""
    for number in (secret._PRIME, secret._PRIME // 2):
        assert all(pow(base, number - 1, number) == 1 for base in (3, 5, 7))
    assert secret._PRIME.bit_length() == 2048


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_secret_is_everybodys_and_never_seen(ranks: int) -> None:
    def body(group: Any) -> tuple[bytes, bytes]:
        heard, pair = Overheard(group), KeyPair()
        present = [hello(r, public) for r, public in enumerate(group.all_gather_object(pair.public()))]
        return deal(heard, pair, present), heard.carried

    found = run_ranks(ranks, body)
    secrets = {one for one, _ in found}
    assert len(secrets) == 1 and len(next(iter(secrets))) == secret.SECRET_BYTES
    assert all(one not in carried for one, carried in found)
    assert run_ranks(ranks, body)[0][0] not in secrets


def test_secret_is_hidden_from_the_third() -> None:
    a, b, c = KeyPair(), KeyPair(), KeyPair()
    box = a.hide(b"s" * 32, hello(1, b.public()), 5)
    assert b.hide(box, hello(0, a.public()), 5) == b"s" * 32
    assert c.hide(box, hello(0, a.public()), 5) != b"s" * 32 != box


def test_secret_of_another_session_is_hidden_in_another_way() -> None:
    """Else whoever sees both boxes, and later one secret, had the other."""
    a, b = KeyPair(), KeyPair()
    boxes = {a.hide(b"s" * 32, hello(1, b.public()), session) for session in (0, 5, 6, -1, 1 << 64)}
    assert len(boxes) == 5


def test_secret_public_value_is_computed_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what two processes have in common once for all sessions of theirs."""
    computed: list[int] = []
    compute = KeyPair._compute

    def counted(pair: KeyPair, base: int) -> bytes:
        computed.append(base)
        return compute(pair, base)

    monkeypatch.setattr(KeyPair, "_compute", counted)
    monkeypatch.setattr(session_module, "OWN_PAIR", KeyPair())
    run_ranks(3, lambda group: Buffer(group, 1 << 20).destroy())
    assert set(computed) == {2, pow(2, session_module.OWN_PAIR._exponent, secret._PRIME)}
    before = len(computed)
    assert before <= 2 * 3, "threads that begin at once may each compute it"
    run_ranks(3, lambda group: Buffer(group, 1 << 20).destroy())
    assert len(computed) == before


@pytest.mark.parametrize("public", [b"", b"\0" * 256, b"\0" * 255 + b"\1", b"\xff" * 256, b"\2" * 257])
def test_secret_public_value_that_is_none_is_refused_on_every_rank(public: bytes) -> None:
    def body(group: Any) -> str:
        pair = KeyPair()
        present = [hello(0, pair.public()), hello(1, public)]
        with pytest.raises(UcclEpError) as caught:
            deal(group, pair, present)
        return str(caught.value)

    assert all(re.search("rank 1 says no public value", text) for text in run_ranks(2, body))


def test_secret_of_a_buffer_never_travels() -> None:
    """Neither at its start nor when survivors begin a new life, whose secret is another."""

    def body(group: Any) -> list[tuple[bytes, bytes]]:
        heard = Overheard(group)
        buffer = Buffer(heard, 1 << 20)
        seen = []
        for _ in range(2):
            session = buffer.runtime
            assert isinstance(session, Session) and isinstance(session.agreement_service, AgreementService)
            given = b"".join(v for one in session.agreement_service._given.values() for v in one.values())
            seen.append((session._secret, heard.carried + given))
            if len(seen) == 1:
                buffer.recover()
        buffer.destroy()
        return seen

    lives = list(zip(*run_ranks(2, body), strict=True))
    keys = [{key for key, _ in life} for life in lives]
    assert [len(life) for life in keys] == [1, 1] and keys[0] != keys[1]
    everything = b"".join(carried for life in lives for _, carried in life)
    assert b"public" in everything and all(key not in everything for life in keys for key in life)
