"""Errors: the hierarchy that integrators catch, messages that name everything, and pickling."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
import torch

from uccl_ep.errors import (
    InvalidArgument,
    NotSupported,
    PeerLost,
    PeerTimeout,
    SettingsMismatch,
    TransportError,
    UcclEpError,
    refuse,
)


@pytest.mark.parametrize(
    "kind", [InvalidArgument, SettingsMismatch, PeerTimeout, PeerLost, TransportError, NotSupported]
)
def test_every_error_is_one_family(kind: type[Exception]) -> None:
    assert issubclass(kind, UcclEpError)
    assert issubclass(kind, RuntimeError)
    assert kind.__doc__


def test_builtin_families() -> None:
    assert issubclass(InvalidArgument, ValueError)
    assert not issubclass(PeerLost, PeerTimeout) and not issubclass(PeerTimeout, PeerLost)


def test_refuse_names_argument_value_allowed_and_hint() -> None:
    with pytest.raises(InvalidArgument) as caught:
        refuse("top_k", 33, "1 to 32", "Use fewer experts.")
    assert str(caught.value) == "top_k=33 is refused: allowed is 1 to 32. Use fewer experts."
    error = caught.value
    assert (error.argument, error.value, error.allowed, error.hint) == ("top_k", 33, "1 to 32", "Use fewer experts.")


def test_refuse_without_hint_quotes_text_and_cuts_long_values() -> None:
    with pytest.raises(InvalidArgument) as caught:
        refuse("transport", "ib", "tcp")
    assert str(caught.value) == "transport='ib' is refused: allowed is tcp."
    with pytest.raises(InvalidArgument) as caught:
        refuse("ids", list(range(1000)), "fewer")
    assert len(str(caught.value)) < 250
    assert "... is refused: allowed is fewer." in str(caught.value)
    assert caught.value.value == list(range(1000))
    with pytest.raises(InvalidArgument, match=r"ids=tensor\(\[\[1, 2\], \[3, 4\]\]\) is refused"):
        refuse("ids", torch.tensor([[1, 2], [3, 4]]), "fewer")


def test_peer_lost_message() -> None:
    error = PeerLost(peer=37, host="b", phase="dispatch", expected=128, seen=96, last_seen_s=2.14)
    assert str(error) == "rank 37 (host b) lost in dispatch: 96 of 128 arrivals, last seen 2.1 s ago"
    assert error.rank is None and error.waited_s is None


def test_peer_lost_says_what_the_network_said() -> None:
    error = PeerLost(peer=37, host="b", phase="dispatch", expected=128, seen=96, reason="transport retry exceeded")
    assert str(error) == "rank 37 (host b) lost in dispatch: transport retry exceeded, 96 of 128 arrivals"


def test_peer_timeout_message_with_everything_and_with_nothing() -> None:
    error = PeerTimeout(
        rank=3, peer=0, host="a", phase="combine", expected=5, seen=0, waited_s=100.0, last_seen_s=100.04
    )
    assert str(error) == (
        "rank 0 (host a) timed out in combine: 0 of 5 arrivals, "
        "last seen 100.0 s ago, waited 100.0 s, reported by rank 3"
    )
    assert str(PeerTimeout()) == "an unknown rank timed out"
    assert str(PeerTimeout(peer=1, seen=0)) == "rank 1 timed out: 0 of an unknown number arrivals"
    assert "unknown of 4 arrivals" in str(PeerTimeout(peer=1, expected=4))


@pytest.mark.parametrize(
    "error",
    [
        PeerLost(rank=1, peer=2, host="b", phase="dispatch", expected=8, seen=3, waited_s=1.5, last_seen_s=0.25),
        PeerLost(peer=2, reason="remote access error"),
        PeerTimeout(peer=0),
        InvalidArgument("m", argument="a", value=[1], allowed="b", hint="c"),
        TransportError("no route"),
        NotSupported("overlap"),
    ],
)
def test_errors_cross_processes(error: UcclEpError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_raised_error_keeps_its_notes_and_text_in_a_traceback() -> None:
    error = PeerLost(peer=4, phase="dispatch")
    error.step = 12  # type: ignore[attr-defined]  # what a caller adds stays
    assert pickle.loads(pickle.dumps(error)).step == 12
    assert "rank 4 lost in dispatch" in traceback.format_exception_only(type(error), error)[-1]
