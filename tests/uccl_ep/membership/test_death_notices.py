"""Whom a rank watches on other hosts, and when the end of a connection is a death."""

from __future__ import annotations

import socket

import pytest

from tests.uccl_ep.membership.test_messenger import End, ends, eventually
from uccl_ep.membership import messenger
from uccl_ep.membership.death_notices import Watch, watched_by


@pytest.mark.parametrize("hosts", ["aabb", "abababab", "aaabbc", "abbb", "a", "aaaa", "abcdefgh"])
@pytest.mark.parametrize("absent", [(), (0,), (1, 2)])
def test_every_rank_is_watched_once_by_each_other_host(hosts: str, absent: tuple[int, ...]) -> None:
    members = [rank for rank in range(len(hosts)) if rank not in absent]
    watched = {rank: watched_by(rank, list(hosts), members) for rank in members}
    for rank in members:
        watchers = sorted(hosts[by] for by, whom in watched.items() if rank in whom)
        assert watchers == sorted({hosts[other] for other in members} - {hosts[rank]})
    shares = [len(watched[rank]) for rank in members if hosts[rank] == hosts[members[-1]]] if members else [0]
    assert max(shares) - min(shares) <= len(set(hosts))


def test_watch_takes_a_refusal_after_a_connection_for_a_death() -> None:
    deaths: list[int] = []
    watch = Watch([1, 2, 3], deaths.append)
    for rank in (1, 2, 9):
        watch.reach(rank)
    assert watch.unreached == {3} and watch.holds(1) and not watch.holds(9)
    watch.drop(2)  # it says goodbye
    for rank in (1, 2, 3, 9, 1):
        watch.refuse(rank)
    assert deaths == [1] and not watch.unreached and not watch.holds(1)


def test_watch_tells_of_a_rank_that_was_killed_and_of_no_other() -> None:
    """A killed process says nothing; here its sockets are closed as its kernel would close them."""
    a, killed, leaver = End(0), End(1), End(2)
    deaths: list[int] = []
    with ends(a, killed, leaver):
        a.board.watch([1, 2], deaths.append)
        assert eventually(lambda: connected(killed) and connected(leaver))
        assert eventually(lambda: connections_of(a) == {1, 2})
        leaver.board.close()
        assert eventually(lambda: a.gone == [2])
        assert deaths == []
        kill(killed)
        assert eventually(lambda: deaths == [1])
        assert a.gone == [2, 1] and not a.board.strangers
    assert deaths == [1]


def test_watch_takes_no_broken_connection_for_a_death() -> None:
    """A link that flaps may end a connection; whoever still listens lives, and is watched on."""
    a, b = End(0), End(1)
    deaths: list[int] = []
    with ends(a, b):
        a.board.watch([1], deaths.append)
        for _ in range(3):
            assert eventually(lambda: connected(b) and connections_of(a) == {1})
            (incoming,) = b.board._incoming.values()
            incoming.sock.shutdown(socket.SHUT_RDWR)
            assert eventually(lambda ended=incoming: ended.sock.fileno() < 0)  # type: ignore[misc]
        assert eventually(lambda: connected(b) and connections_of(a) == {1})
        assert (deaths, a.gone) == ([], [])
        kill(b)
        assert eventually(lambda: deaths == [1])


def test_watch_watches_nobody_whom_it_never_reached() -> None:
    a, b = End(0), End(1)
    deaths: list[int] = []
    b.board.close()  # before anybody could hear a goodbye
    with ends(a, b):
        a.board.watch([1, 2], deaths.append)  # nobody knows where rank 2 is
        assert eventually(lambda: a.gone == [1])
        assert eventually(lambda: not a.board._watched.unreached)
        assert deaths == []


def test_watch_dials_on_while_the_host_of_a_watched_rank_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = End(0), End(1)
    deaths: list[int] = []
    monkeypatch.setattr(messenger, "_FLAP_S", 0.01)
    tried = []
    with ends(a, b):
        a.board.watch([1], deaths.append)
        assert eventually(lambda: connected(b) and connections_of(a) == {1})
        real = a.board._open

        def unreachable(rank: int, address: tuple[str, int]) -> None:
            tried.append(rank)
            real(rank, ("255.255.255.255", 1) if len(tried) < 4 else address)  # ENETUNREACH, as a link that is down

        a.board._open = unreachable  # type: ignore[method-assign]
        (incoming,) = b.board._incoming.values()
        incoming.sock.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: len(tried) == 4 and connections_of(a) == {1})
        assert (deaths, a.gone) == ([], [])


def connected(end: End) -> bool:
    """One peer has proven itself here."""
    return [c.rank >= 0 for c in list(end.board._incoming.values())] == [True]


def connections_of(end: End) -> set[int]:
    """The peers that have proven themselves to this end."""
    return {rank for rank, out in list(end.board._outgoing.items()) if out.key}


def kill(end: End) -> None:
    """Ends its sockets without a word."""
    for connection in list(end.board._incoming.values()):
        connection.key = b""
    end.board.close()
