"""uccl_ep.examples.launch.rendezvous: numbers that are none are refused, and ranks that name one place meet."""

from __future__ import annotations

import multiprocessing
import socket

import pytest

from uccl_ep.examples.launch.rendezvous import Place, number


def test_examples_launch_number_reads_and_refuses() -> None:
    assert number({"PODS": "12"}, "PODS", 1, "a job") == 12
    assert number({"INDEX": "0"}, "INDEX", 0, "a job") == 0
    for text in ("", "-1", "two", "1.0", "0"):
        with pytest.raises(ValueError, match="PODS=.*from 1 on is needed.*a job"):
            number({"PODS": text}, "PODS", 1, "a job")
    with pytest.raises(ValueError, match="PODS=''"):
        number({}, "PODS", 1, "a job")


def _join(rank: int, address: str, port: int, told: multiprocessing.Queue[tuple[int, int]]) -> None:
    from torch import distributed

    group = Place(rank, 2, address, port).join()
    gathered = [None, None]
    distributed.all_gather_object(gathered, rank, group=group)
    told.put((group.rank(), gathered == [0, 1]))
    distributed.destroy_process_group()


@pytest.mark.slow  # two processes that import torch
@pytest.mark.timeout(300)
def test_examples_launch_place_joins_ranks() -> None:
    address = "::1"
    try:
        probe = socket.create_server((address, 0), family=socket.AF_INET6)
    except OSError:
        address = "127.0.0.1"  # a machine without IPv6
        probe = socket.create_server((address, 0))
    with probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    ranks = [context.Process(target=_join, args=(rank, address, port, told)) for rank in range(2)]
    for process in ranks:
        process.start()
    assert sorted(told.get(timeout=240) for _ in ranks) == [(0, True), (1, True)]
    for process in ranks:
        process.join(20)
        assert process.exitcode == 0
