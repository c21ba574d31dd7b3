"""Both ends of a real measurement over tcp, in two threads; what one cannot do, both are told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.uccl_ep.tools.check.test_talk import served
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.settings import Settings
from uccl_ep.tools.check import measure as module
from uccl_ep.tools.check.measure import SIZES, Effort, Measured, measure
from uccl_ep.tools.check.talk import call, new_code

LITTLE = Effort(rounds=1, writes=64, megabytes=1, trips=8)


def both(settings: Settings) -> tuple[Measured, Measured]:
    code, steps = new_code(), []
    port, thread, results = served(code, lambda talk: measure(talk, settings, LITTLE, steps.append))
    with call("127.0.0.1", port, code) as talk:
        mine = measure(talk, settings, LITTLE, steps.append)
    thread.join(60.0)
    assert len([words for words in steps if "writes to" in words]) == 4
    return mine, results[0]


def test_measure_both_ends_know_the_same() -> None:
    first, second = both(Settings())
    assert (first.rank, second.rank) == (0, 1) and first.sides == second.sides
    assert first.family == "tcp" and "both ends are on one host" in first.reason
    for side in first.sides:
        assert [speed.size for speed in side.speeds] == list(SIZES)
        assert all(s.writes_per_s > 0 and s.round_trip_us > 0 for s in side.speeds)
        assert side.speeds[0].bytes_per_s == 0 and side.speeds[-1].bytes_per_s > 0


def test_measure_a_network_that_is_not_there_is_said_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    code, errors = new_code(), []

    def fails(talk: Any) -> None:
        with pytest.raises(UcclEpError) as caught:
            measure(talk, Settings(transport="efa"), LITTLE, lambda words: None)
        errors.append(str(caught.value))

    port, thread, _ = served(code, fails)
    with call("127.0.0.1", port, code) as talk:
        fails(talk)
    thread.join(60.0)
    assert len(errors) == 2 and all("UCCL_EP_TRANSPORT=efa cannot reach all ranks" in text for text in errors)


def test_measure_what_one_end_lacks_the_other_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    code, errors = new_code(), []
    real = module._native.TransportProbe
    caller = threading.get_ident()

    def probe(settings: Any) -> Any:
        if threading.get_ident() == caller:
            raise RuntimeError("tcp: no port is free")
        return real(settings)

    def fails(talk: Any) -> None:
        with pytest.raises(UcclEpError) as caught:
            measure(talk, Settings(), LITTLE, lambda words: None)
        errors.append(str(caught.value))

    monkeypatch.setattr(module._native, "TransportProbe", probe)
    port, thread, _ = served(code, fails)
    with call("127.0.0.1", port, code) as talk:
        fails(talk)
    thread.join(60.0)
    assert sorted(errors) == ["check: tcp: no port is free", "check: the other end: tcp: no port is free"]


def test_measure_refuses_what_stays_inside_a_host() -> None:
    code = new_code()

    def fails(talk: Any) -> None:
        with pytest.raises(InvalidArgument, match="UCCL_EP_TRANSPORT must be a network between hosts, or auto"):
            measure(talk, Settings(transport="shared_memory"), LITTLE, lambda words: None)

    port, thread, _ = served(code, fails)
    with call("127.0.0.1", port, code) as talk:
        fails(talk)
    thread.join(60.0)


def test_measure_effort_is_bounded_by_writes_and_bytes() -> None:
    assert Effort().count(0) == 20000 and Effort().count(1 << 20) == 244 and Effort(megabytes=1).count(1 << 20) == 16
