"""Buffer.barrier: nobody passes early, rounds never mix, and a missing rank ends it with its name."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.uccl_ep.ranks import MIB, throughput
from uccl_ep import Buffer, PeerTimeout, ThreadGroup, run_ranks

WORLDS = [
    pytest.param(4, 0, "auto", id="one node"),
    pytest.param(4, 2, "loopback", id="two nodes, loopback"),
    pytest.param(3, 1, "tcp", id="three nodes, tcp"),
    pytest.param(3, 1, "shared_memory", id="three nodes, shared memory"),
]


@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_collective_barrier_lets_nobody_pass_early(variables: Any, ranks: int, per_node: int, transport: str) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport)
    rounds = 30
    entered = [0] * ranks

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        wait = random.Random(rank)
        with throughput(group) as buffer:
            for turn in range(1, rounds + 1):
                if wait.random() < 0.1:
                    time.sleep(0.005)  # this rank is late
                entered[rank] = turn
                buffer.barrier()
                assert min(entered) >= turn
                assert max(entered) <= turn + 1  # nobody is two rounds ahead

    run_ranks(ranks, body)


def test_collective_barrier_names_the_rank_that_does_not_come(variables: Any) -> None:
    variables(TIMEOUT_S=0.4)

    def body(group: ThreadGroup) -> str | None:
        buffer = Buffer(group, MIB)
        try:
            if group.rank() == 2:
                group.barrier()
                return None
            with pytest.raises(PeerTimeout) as caught:
                buffer.barrier()
            with pytest.raises(PeerTimeout):
                buffer.barrier()  # the buffer is unusable from here on
            group.barrier()
            assert caught.value.peer == 2 and caught.value.phase == "a barrier"
            return str(caught.value)
        finally:
            buffer.destroy()

    texts = run_ranks(3, body)
    for rank in (0, 1):
        assert "rank 2" in str(texts[rank]) and f"reported by rank {rank}" in str(texts[rank])


def test_collective_barrier_of_one_rank() -> None:
    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            for _ in range(3):
                buffer.barrier()

    run_ranks(1, body)
