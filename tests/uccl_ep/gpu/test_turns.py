"""Buffers of a rank take turns: their kernels that take all processors wait for each other, and for nothing else."""

from __future__ import annotations

import threading

from tests.uccl_ep.gpu.test_streams import Spy, call, driver
from uccl_ep.gpu.streams import CallOrder

__all__ = ["driver"]


def take_all(order: CallOrder) -> int:
    """Half a call that takes all processors of the rank's share; key of its stream."""
    order.begin(True)
    return int(order.behind_neighbours().key)


def test_turns_buffers_of_a_rank_take_all_processors_in_turn(driver: Spy) -> None:
    """Placed at once, kernels of both might each have half of their blocks, which wait for the others for ever."""
    first = CallOrder(driver, (1, 0))  # type: ignore[arg-type]
    assert first.neighbours.alone
    mine, side = driver.current_stream().key, driver.new_stream()
    call(first, on_caller=True)  # before there is another one
    second = CallOrder(driver, (2, 0))  # type: ignore[arg-type]
    assert second.neighbours is first.neighbours and not first.neighbours.alone
    for _ in range(2):
        with driver.on(side):
            assert take_all(second) == side.key and set(driver.waits()) == {(side.key, mine)}
            second.end()
        assert take_all(first) == mine and set(driver.waits()) == {(mine, side.key)}
        first.end()
        assert take_all(second) == mine and driver.waits() == [(mine, side.key)]  # its own last call, on that stream
        second.end()
        assert take_all(first) == mine and driver.waits() == []  # one stream has an order
    with driver.on(side):
        assert take_all(second) == side.key and (side.key, mine) in driver.waits()  # `first` has not ended its call
        second.end()
    first.end()
    first.close()
    assert second.neighbours.alone
    second.close()


def test_turns_wait_for_no_other_rank_and_for_nothing_outside_of_a_capture(driver: Spy) -> None:
    made: list[CallOrder] = []
    here = CallOrder(driver, (1, 0), threads=2)  # type: ignore[arg-type]
    other_rank = threading.Thread(target=lambda: made.append(CallOrder(driver, (1, 1), threads=2)))  # type: ignore[arg-type]
    other_rank.start()
    other_rank.join()
    assert here.neighbours.alone and made[0].neighbours.alone and here.neighbours is not made[0].neighbours
    second, side = CallOrder(driver, (2, 0), threads=2), driver.new_stream()  # type: ignore[arg-type]
    assert not here.neighbours.alone
    take_all(here)
    here.end()
    with driver.on(side), driver.capture():
        take_all(second)
        second.end()
    assert (side.key, driver.current_stream().key) not in driver.waits()
    for order in (here, second, *made):
        order.close()
