"""Turns of the networks, and two workers as threads: what is there is measured, what is not is named."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from typing import Any

import pytest

from uccl_ep.tools.bench.transport_options import NETWORKS, Network, TransportOptions
from uccl_ep.tools.bench.transport_worker import Part, order, run_part


def test_bench_transport_every_network_is_first_equally_often() -> None:
    networks = list(NETWORKS)
    rounds = [order(TransportOptions(), networks, number) for number in range(2 * len(networks))]
    assert all(sorted(n.name for n in one) == sorted(n.name for n in networks) for one in rounds)
    for network in networks:
        assert sum(one[0] == network for one in rounds) == 2


def run_both(options: TransportOptions) -> dict[int, Any]:
    ends = multiprocessing.Pipe()
    results: Any = queue.Queue()
    parts = [Part(rank, options, b"s" * 32, ends[rank]) for rank in range(2)]
    threads = [threading.Thread(target=run_part, args=(part, results), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    found = {}
    while not results.empty():
        message = results.get()
        if message[0] == "done":
            assert message[3] == ""
            found[message[1]] = message[2]
    return found


@pytest.mark.timeout(90)
def test_bench_transport_measures_both_ways() -> None:
    options = TransportOptions(networks=("shared_memory", "tcp"), sizes=(8, 7168), rounds=2, megabytes=1)
    found = run_both(options)
    assert sorted(found) == [0, 1] and found[0]["absent"] == {}
    times = found[0]["times"]
    assert set(times) == {"shared_memory", "tcp"}
    for by_size in times.values():
        assert set(by_size) == {8, 7168}
        assert all(len(rounds) == 2 and all(s > 0 and t > 0 for s, t in rounds) for rounds in by_size.values())


@pytest.mark.timeout(90)
def test_bench_transport_names_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(self: TransportOptions) -> list[Network]:
        return [Network("tcp", "tcp"), Network("strange", "libfabric", "no-such-provider")]

    monkeypatch.setattr(TransportOptions, "chosen", chosen)
    found = run_both(TransportOptions(networks=("tcp",), sizes=(8,), rounds=1, megabytes=1))
    assert set(found[0]["times"]) == {"tcp"}
    assert "libfabric" in found[0]["absent"]["strange"] and found[0]["absent"] == found[1]["absent"]
