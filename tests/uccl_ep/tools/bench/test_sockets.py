"""Rows that cross nodes, counted by hand; bytes that go round memory; the probe itself, and a rank that has gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from uccl_ep.tools.bench import sockets
from uccl_ep.tools.bench.inputs import make_inputs
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.sockets import SocketProbe, crossing_rows

OPTIONS = BenchOptions(ranks=5, ranks_per_node=2, tokens=40, hidden=128, topk=3, experts=10)


@pytest.mark.parametrize("rank", range(5))
def test_bench_crossing_rows_are_one_a_token_and_node(rank: int) -> None:
    inputs = make_inputs(OPTIONS, rank)
    own = rank // 2
    wanted = sum(len({e // 2 // 2 for e in row} - {own}) for row in inputs.ids.tolist())
    assert 0 < crossing_rows(OPTIONS, inputs, rank) == wanted


def test_bench_no_row_crosses_on_one_node() -> None:
    one = BenchOptions(ranks=4, ranks_per_node=4, tokens=9, experts=8)
    assert crossing_rows(one, make_inputs(one, 1), 1) == 0


def test_bench_pieces_go_round_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PIECE_BYTES", 4)
    monkeypatch.setattr(sockets, "MEMORY_BYTES", 8)
    assert sockets._pieces(18) == [(0, 4), (4, 4), (0, 4), (4, 4), (0, 2)]
    assert sockets._pieces(0) == []


class _Gather:
    """all_gather between threads."""

    def __init__(self, ranks: int) -> None:
        self.given: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=30.0)

    def of(self, rank: int) -> Any:
        def gather(value: Any) -> list[Any]:
            self.given[rank] = value
            self.barrier.wait()
            return self.given

        return gather


def _probe_on_threads(body: Any) -> list[Any]:
    gather, found = _Gather(5), [None] * 5

    def run(rank: int) -> None:
        probe = SocketProbe(OPTIONS, rank, make_inputs(OPTIONS, rank), gather.of(rank))
        try:
            found[rank] = body(rank, probe, gather.barrier)
        finally:
            probe.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40.0)
        assert not thread.is_alive()
    return found


def test_bench_sockets_carry_all_that_crosses() -> None:
    def body(rank: int, probe: SocketProbe, barrier: threading.Barrier) -> tuple[int, int]:
        sent, received = [], []
        send, receive = probe._to.sendall, probe._from.recv_into

        class To:
            def sendall(self, data: memoryview) -> None:
                sent.append(len(data))
                send(data)

            def close(self) -> None: ...

        class From:
            def recv_into(self, data: memoryview) -> int:
                received.append(receive(data))
                return received[-1]

            def close(self) -> None: ...

        probe._to, probe._from = To(), From()  # type: ignore[assignment]
        for _ in range(2):
            barrier.wait()
            assert probe.seconds() > 0.0
        return sum(sent), sum(received)

    found = _probe_on_threads(body)
    owed = [crossing_rows(OPTIONS, make_inputs(OPTIONS, rank), rank) * OPTIONS.row_bytes for rank in range(5)]
    assert [sent for sent, _ in found] == [2 * of for of in owed]
    assert [received for _, received in found] == [2 * owed[(rank - 2) % 5] for rank in range(5)]


def test_bench_sockets_end_when_a_rank_has_gone() -> None:
    def body(rank: int, probe: SocketProbe, barrier: threading.Barrier) -> str:
        if rank == 2:  # rank 4 is owed its rows
            probe.close()
            return "gone"
        try:
            if rank == 4:
                probe._receive()
        except OSError as error:
            return str(error)
        return ""

    assert _probe_on_threads(body)[4] == "another rank of the measurement has ended"
