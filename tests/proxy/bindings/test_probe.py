"""The probe from Python: settings arrive, errors are Python's, and a pair of threads measures."""

from __future__ import annotations

import threading

import pytest

from uccl_ep import _native


def settings(family: str, rank: int) -> _native.ProbeSettings:
    s = _native.ProbeSettings()
    s.family, s.rank, s.session, s.secret, s.most_bytes = family, rank, 4242, b"\x00\xff" * 16, 4096
    return s


def test_bindings_probe_settings_hold_bytes() -> None:
    assert settings("tcp", 1).secret == b"\x00\xff" * 16


def test_bindings_probe_refuses_an_unknown_family() -> None:
    with pytest.raises(ValueError, match="'ucx'"):
        _native.TransportProbe(settings("ucx", 0))


@pytest.mark.timeout(60)
def test_bindings_probe_measures_without_holding_python() -> None:
    probes = [_native.TransportProbe(settings("shared_memory", rank)) for rank in range(2)]
    addresses = [probe.local_address() for probe in probes]
    seconds: list[float] = []

    def run(rank: int) -> None:
        probes[rank].connect(addresses)
        times = (probes[rank].stream(4096, 300), probes[rank].round_trips(8, 50))
        if rank == 0:
            seconds.extend(times)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seconds) == 2 and all(0.0 < s < 30.0 for s in seconds)
    assert probes[0].notes() == []
    with pytest.raises(ValueError, match="most_bytes"):
        probes[0].stream(4097, 1)
