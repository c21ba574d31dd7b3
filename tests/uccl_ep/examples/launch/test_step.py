"""uccl_ep.examples.launch.step: rows come back right; a wrong one is seen; no launcher's variable decides the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.examples.launch import step
from uccl_ep.settings import settings

RANKS = 4


class MpiLike:
    """A ThreadGroup as mpi4py shows a communicator."""

    def __init__(self, group: ThreadGroup) -> None:
        self.Get_rank, self.Get_size, self.allgather = group.rank, group.size, group.all_gather_object


def test_examples_launch_step_takes_a_group_or_a_communicator() -> None:
    def body(group: ThreadGroup) -> tuple[step.Seen, step.Seen]:
        return step.run(group), step.run(comm=MpiLike(group))

    for rank, pair in enumerate(run_ranks(RANKS, body)):
        for seen in pair:
            assert (seen.rank, seen.ranks, seen.node, seen.nodes) == (rank, RANKS, 0, 1)
            assert str(seen).startswith(f"rank {rank} of {RANKS} on ")


def test_examples_launch_step_counts_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "TOPK", 1)  # each token visits one rank
    seen = run_ranks(3, step.run)
    assert sum(one.received for one in seen) == 3 * step.TOKENS


def test_examples_launch_step_sees_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> str:
        buffer = step.make_buffer(group)
        combine = buffer.combine

        def off_by_one(rows: Any, handle: Any) -> Any:
            combined, *rest = combine(rows, handle)
            combined[5] += 1
            return combined, *rest

        buffer.combine = off_by_one  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError) as raised:
            step.exchange(buffer)
        buffer.barrier()
        buffer.destroy()
        return str(raised.value)

    assert run_ranks(2, body) == [f"rank {rank}: 1 tokens came back wrong" for rank in range(2)]


@pytest.mark.parametrize("ranks_per_node", [0, 2])
def test_examples_launch_topology_is_the_groups_whatever_launchers_say(
    monkeypatch: pytest.MonkeyPatch, ranks_per_node: int
) -> None:
    """Variables of every launcher, all wrong: a Buffer believes none. Our own setting may split a host into nodes."""
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.setenv(name, "6")
    for name in (
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "SLURM_NTASKS",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "elsewhere[1-7]")
    monkeypatch.setenv("UCCL_EP_RANKS_PER_NODE", str(ranks_per_node))
    settings.cache_clear()
    try:
        seen = run_ranks(RANKS, step.run)
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert [one.rank for one in seen] == list(range(RANKS)) and {one.ranks for one in seen} == {RANKS}
    assert [one.node for one in seen] == ([0, 0, 1, 1] if ranks_per_node else [0, 0, 0, 0])
