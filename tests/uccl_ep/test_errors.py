"""Errors: the hierarchy that integrators catch, messages that name everything, and pickling."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable

import numpy as np
import pytest
import torch

from uccl_ep import BucketBuffer, Buffer, ElasticBuffer, EPBuffer, HybridEPBuffer, ThreadGroup
from uccl_ep.errors import (
    Described,
    InvalidArgument,
    NotSupported,
    PeerLost,
    PeerTimeout,
    SettingsMismatch,
    TransportError,
    UcclEpError,
    one_of,
    refuse,
    shown,
)
from uccl_ep.recorder.calls import recorded


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
    assert str(caught.value) == "top_k must be 1 to 32; got 33. Use fewer experts."
    error = caught.value
    assert (error.argument, error.value, error.allowed, error.hint) == ("top_k", 33, "1 to 32", "Use fewer experts.")


def test_refuse_without_hint_quotes_text_and_cuts_long_values() -> None:
    with pytest.raises(InvalidArgument) as caught:
        refuse("transport", "ib", "tcp")
    assert str(caught.value) == "transport must be tcp; got 'ib'."
    with pytest.raises(InvalidArgument) as caught:
        refuse("ids", list(range(1000)), "fewer")
    assert len(str(caught.value)) < 250
    assert str(caught.value).startswith("ids must be fewer; got [0, 1, 2, ") and str(caught.value).endswith("....")
    assert caught.value.value == list(range(1000))
    with pytest.raises(InvalidArgument) as caught:
        refuse("ids", torch.tensor([[1, 2], [3, 4]]), "fewer")
    assert str(caught.value) == "ids must be fewer; got a tensor of shape (2, 2), torch.int64."


ROWS = torch.zeros(3, 4)


@pytest.mark.parametrize(
    "value, words",
    [
        (ROWS, "a tensor of shape (3, 4), torch.float32"),
        (ROWS.bfloat16(), "a tensor of shape (3, 4), torch.bfloat16"),
        (ROWS.T, "a tensor of shape (4, 3), torch.float32, strides (1, 4): call .contiguous() on it"),
        (ROWS[:, :2], "a tensor of shape (3, 2), torch.float32, strides (4, 1): call .contiguous() on it"),
        (ROWS.to_sparse(), "a tensor of shape (3, 4), torch.float32, torch.sparse_coo"),
        (torch.tensor(7), "a tensor of shape (), torch.int64"),
        (torch.empty(2, 3, device="meta"), "a tensor of shape (2, 3), torch.float32"),
        (np.zeros((2, 3), np.float16), "an array of shape (2, 3), float16"),
        ((ROWS, None, "s"), "(a tensor of shape (3, 4), torch.float32, None, 's')"),
        ([ROWS, None], "(a tensor of shape (3, 4), torch.float32, None)"),
        ((1, 2), "(1, 2)"),
        ("one\ntwo", "'one\\ntwo'"),
        (Described("both True"), "both True"),
        (torch.float32, "torch.float32"),
        (None, "None"),
    ],
)
def test_shown(value: object, words: str) -> None:
    assert shown(value) == words


def test_shown_is_one_line_of_200_characters_at_most() -> None:
    class Tall:
        def __repr__(self) -> str:
            return "a\n   b"

    assert shown(Tall()) == "a b"
    for value in ("x" * 1000, list(range(1000)), Described("y" * 1000), (ROWS,) * 20):
        assert len(shown(value)) == 200 and shown(value).endswith("...") and "\n" not in shown(value)
    assert shown("x" * 198) == repr("x" * 198)


def test_described_is_text_that_an_error_keeps_as_its_value() -> None:
    with pytest.raises(InvalidArgument) as caught:
        refuse("a and b", Described("both given"), "given one at a time")
    assert str(caught.value) == "a and b must be given one at a time; got both given."
    assert caught.value.value == "both given"


def test_one_of() -> None:
    assert one_of(["a", "b", "c"]) == "a, b or c"
    assert one_of(("a", "b")) == "a or b"
    assert one_of(iter([8])) == "8"


class Called:
    """Calls that are recorded, one inside the other."""

    @recorded("inner")
    def inner(self, x: int) -> int:
        return x if x else refuse("x", x, "above 0")

    @recorded("outer")
    def outer(self, x: int) -> int:
        return self.inner(x) if x < 9 else refuse("x", x, "below 9")


@pytest.mark.parametrize(
    "method, x, message",
    [
        ("inner", 0, "inner: x must be above 0; got 0."),
        ("outer", 0, "inner: x must be above 0; got 0."),  # whose argument it is
        ("outer", 9, "outer: x must be below 9; got 9."),
    ],
)
def test_an_error_of_a_call_names_the_call_once(method: str, x: int, message: str) -> None:
    called = Called()
    with pytest.raises(InvalidArgument) as caught:
        getattr(called, method)(x)
    error = caught.value
    assert str(error) == message and error.call == message.partition(":")[0]
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(again) == message and again.call == error.call
    assert called.outer(5) == 5


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g: ElasticBuffer(g, num_bytes=5), "ElasticBuffer: num_bytes must be"),
        (lambda g: ElasticBuffer(None, 2 << 20), "ElasticBuffer: group must be"),  # found by the Buffer inside
        (lambda g: HybridEPBuffer(g, 30, 8, 4), "HybridEPBuffer: hidden_dim must be"),
        (lambda g: HybridEPBuffer(g, 256, 0, 4), "HybridEPBuffer: max_num_of_tokens_per_rank must be"),
        (lambda g: EPBuffer(g, lb_allocation_plan_or_num_bytes=5), "EPBuffer: lb_allocation_plan_or_num_bytes must be"),
        (lambda g: EPBuffer(g, hidden=31), "EPBuffer: hidden must be"),
        (lambda g: BucketBuffer(g, 0), "BucketBuffer: allocation_plan_or_num_bytes must be"),
        (lambda g: Buffer(g, 5), "Buffer: num_nvl_bytes must be"),
        (
            lambda g: ElasticBuffer.get_buffer_size_hint(g, 0, 3),
            "get_buffer_size_hint: num_max_tokens_per_rank must be",
        ),
    ],
)
def test_an_error_names_the_constructor_or_helper_that_the_user_called(
    call: Callable[[ThreadGroup], object], message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call(ThreadGroup.create(1)[0])
    assert str(caught.value).startswith(message), caught.value


def test_an_error_of_a_buffers_call_names_it() -> None:
    buffer = Buffer(ThreadGroup.create(1)[0], 1 << 20)
    try:
        with pytest.raises(InvalidArgument) as caught:
            buffer.get_dispatch_layout(torch.zeros(3, 2), 4)
        assert str(caught.value) == (
            "get_dispatch_layout: topk_idx must be a contiguous 2-D tensor of torch.int64 or torch.int32; "
            "got a tensor of shape (3, 2), torch.float32."
        )
    finally:
        buffer.destroy()


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
