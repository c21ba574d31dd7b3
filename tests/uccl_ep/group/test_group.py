"""What callers pass as a group: torch process groups, MPI communicators, threads; and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, InvalidArgument, ThreadGroup, reference, run_ranks
from uccl_ep.group.group import as_group
from uccl_ep.settings import PREFIX, settings


class Communicator:
    """What Buffer uses of mpi4py's, over a group of threads."""

    def __init__(self, group: ThreadGroup) -> None:
        self._group = group
        self.barrier = group.barrier

    def Get_rank(self) -> int:  # noqa: N802 - MPI's names
        return self._group.rank()

    def Get_size(self) -> int:  # noqa: N802
        return self._group.size()

    def allgather(self, value: Any) -> tuple[Any, ...]:
        return tuple(self._group.all_gather_object(value))


def test_group_of_threads_is_taken_as_it_is() -> None:
    group = ThreadGroup.create(1)[0]
    assert as_group(group) is group


def test_group_of_mpi() -> None:
    def body(group: ThreadGroup) -> list[Any]:
        adapted = as_group(None, Communicator(group))
        assert (adapted.rank(), adapted.size()) == (group.rank(), 3)
        gathered = adapted.all_gather_object(group.rank() * 2)
        assert type(gathered) is list
        return gathered

    assert run_ranks(3, body) == [[0, 2, 4]] * 3


def test_group_goes_before_communicator() -> None:
    group = ThreadGroup.create(1)[0]
    assert as_group(group, Communicator(ThreadGroup.create(2)[1])) is group


def test_group_missing_is_a_value_error_as_upstreams() -> None:
    with pytest.raises(ValueError, match="group must be a torch.distributed.ProcessGroup or .*; got None. .* as comm="):
        as_group(None)
    with pytest.raises(ValueError, match="group must be .*; got None."):
        Buffer()


@pytest.mark.parametrize("group", [7, "world", object()])
def test_group_of_another_kind_is_named(group: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        as_group(group)
    assert repr(group) in str(caught.value) and "ProcessGroup or a uccl_ep.ThreadGroup" in str(caught.value)


def test_group_communicator_carries_a_buffer(variables: Any) -> None:
    c = case(5, num_ranks=2)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        communicator = Communicator(group)
        with low_latency(None, c.shape, comm=communicator) as buffer:
            assert buffer.group is communicator and (buffer.rank, buffer.group_size) == (rank, 2)
            x, count, handle, _, _ = buffer.low_latency_dispatch(
                c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, use_fp8=False
            )
            assert_low_latency((x, count, handle), wanted[rank])

    run_ranks(2, body)


CHOICES = ({"PROXY": "thread"}, {"PROXY": "process", "TRANSPORT": "tcp", "RANKS_PER_NODE": "1"})


def gloo(rank: int, size: int, store: str, out: str) -> None:
    """One rank of the test below, in a process of its own."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for turn, choices in enumerate(CHOICES):
        os.environ.update({PREFIX + name: value for name, value in choices.items()})
        settings.cache_clear()
        both_calls(rank, size, dist.new_group(list(range(size)), backend="gloo"))
        Path(out, f"{turn}.{rank}.done").write_text("")
    dist.destroy_process_group()


def both_calls(rank: int, size: int, group: Any) -> None:
    """A dispatch and a combine over a new Buffer."""
    c = case(6, num_ranks=size, hidden=128)
    wanted = reference_of(c)
    hint = Buffer.get_low_latency_rdma_size_hint(c.shape.max_tokens, 128, size, c.shape.num_experts)
    buffer = Buffer(group, 1 << 20, hint, low_latency_mode=True)
    x, count, handle, _, _ = buffer.low_latency_dispatch(
        c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, use_fp8=False
    )
    assert_low_latency((x, count, handle), wanted[rank])
    rows = expert_rows(rank, c.shape)
    combined, _, _ = buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle)
    sums = reference.low_latency_combine(
        [expert_rows(r, c.shape) for r in range(size)], c.topk_idx, c.topk_weights, wanted
    )
    assert same(combined, sums[rank])
    buffer.barrier()
    buffer.destroy()


def test_group_of_torch_across_processes(tmp_path: Path, variables: Any) -> None:
    size = 2
    code = (
        "import sys; from tests.uccl_ep.group.test_group import gloo; gloo(int(sys.argv[1]), *map(eval, sys.argv[2:]))"
    )
    command = [sys.executable, "-c", code]
    arguments = [str(size), repr(str(tmp_path / "store")), repr(str(tmp_path))]
    started = [
        subprocess.Popen(
            [*command, str(r), *arguments], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        )
        for r in range(size)
    ]
    try:
        errors = [process.communicate(timeout=50)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * size, "\n".join(errors)
    assert len(list(tmp_path.glob("*.done"))) == len(CHOICES) * size
