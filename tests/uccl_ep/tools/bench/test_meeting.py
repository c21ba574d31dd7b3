"""A barrier that nobody leaves before all have come, that takes no CPU time, and that ends when a rank has gone."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from uccl_ep.tools.bench.meeting import Meeting


def meet(ranks: int, body: Callable[[int, Meeting], None]) -> None:
    """Runs `body(rank, meeting)` on a thread a rank; the first error is raised here."""
    ports: dict[int, queue.Queue[Any]] = {rank: queue.Queue() for rank in range(1, ranks)}
    errors: list[BaseException] = []

    def share(rank: int) -> Callable[[Any], Any]:
        def give(value: Any) -> Any:
            for one in ports.values():
                one.put(value)

        return give if rank == 0 else lambda value: ports[rank].get(timeout=30.0)

    def run(rank: int) -> None:
        try:
            meeting = Meeting(rank, ranks, share(rank))
            try:
                body(rank, meeting)
            finally:
                meeting.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40.0)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_bench_meeting_holds_everybody_until_all_have_come(ranks: int) -> None:
    come = [0] * ranks

    def body(rank: int, meeting: Meeting) -> None:
        for number in range(1, 101):
            come[rank] = number
            meeting.wait()
            assert min(come) >= number
            meeting.wait()  # so that nobody counts on before all have looked
            assert max(come) <= number + 1

    meet(ranks, body)


def test_bench_meeting_takes_no_cpu_time_from_those_who_work() -> None:
    waited: list[float] = []

    def body(rank: int, meeting: Meeting) -> None:
        meeting.wait()
        if rank == 2:  # the last to come
            time.sleep(0.5)
        used = time.thread_time()
        meeting.wait()
        waited.append(time.thread_time() - used)

    meet(3, body)
    assert len(waited) == 3
    assert max(waited) < 0.25  # who polls takes all of the half second


def test_bench_meeting_ends_when_a_rank_has_gone() -> None:
    def body(rank: int, meeting: Meeting) -> None:
        if rank != 1:
            meeting.wait()

    with pytest.raises(OSError, match="another rank of the measurement has ended|reset"):
        meet(3, body)
