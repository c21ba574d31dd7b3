"""`python -m tests.faults.forked RANKS PROXY`: ranks as threads of this process, which goes on while children of its
fork() end in every way. Prints how each child ended, then "exact"."""

from __future__ import annotations

import gc
import os
import sys
import threading

import torch

from tests.uccl_ep.forks import end
from tests.uccl_ep.ranks import MIB, layout_arguments
from uccl_ep import Buffer, ThreadGroup, run_ranks
from uccl_ep.settings import PREFIX

ENDS = ("leave", "sys.exit", "falls", "drop", "destroy", "interpreter", "unseen")
X = torch.arange(4 * 256).reshape(4, 256).bfloat16()


def step(ranks: int, buffer: Buffer) -> None:
    """Both modes, exact: each token goes to one expert of every rank, and comes back as often."""
    experts = torch.arange(ranks).repeat(4, 1)
    rows, *_, handle, _ = buffer.dispatch(X, **layout_arguments(buffer, experts, ranks))
    wanted = (ranks * X.float()).bfloat16()
    assert torch.equal(buffer.combine(rows, handle)[0], wanted)
    packed, _, ll, _, _ = buffer.low_latency_dispatch(X, experts, 8, ranks, use_fp8=False)
    assert torch.equal(buffer.low_latency_combine(packed, experts, torch.ones(4, ranks), ll)[0], wanted)


def steps(ranks: int, buffer: Buffer) -> None:
    for _ in range(10):
        step(ranks, buffer)


def child(how: str, buffers: list[Buffer]) -> None:
    """What a child does. Returns where it goes on to the end of the program."""
    if how == "leave":
        os._exit(0)
    if how == "sys.exit":
        sys.exit(0)
    if how == "destroy":
        for buffer in buffers:
            buffer.destroy()
        os._exit(0)
    if how in ("drop", "interpreter"):
        buffers.clear()
        gc.collect()
        if how == "drop":
            os._exit(0)
    if how == "unseen":  # the parts, without what guards them
        for buffer in buffers:
            assert buffer.runtime is not None
            device, proxy, guard = buffer._life.device, buffer.runtime._proxy, buffer.runtime._guard
            buffer.runtime.regions.say_departed(2)
            own = buffer.runtime.regions.control.numpy()  # the parent's ranks would take all others for gone
            own[buffer.runtime.plan.control.SOME_DEPARTED] = 1
            for rank in range(buffer.group_size):
                own[buffer.runtime.plan.control.departed(rank)] = 2
            buffer.__dict__.clear()
            del device, proxy, guard
        buffers.clear()
        gc.collect()


def make(group: ThreadGroup) -> Buffer:
    hint = Buffer.get_low_latency_rdma_size_hint(8, 256, group.size(), group.size())
    return Buffer(group, 2 * MIB, hint, low_latency_mode=True, explicitly_destroy=True)


def main() -> None:
    ranks, proxy = int(sys.argv[1]), sys.argv[2]
    os.environ.update(
        {PREFIX + "PROXY": proxy, PREFIX + "TIMEOUT_S": "10", PREFIX + "DEVICE": "cpu", PREFIX + "RANKS_PER_NODE": "2"}
    )
    if ranks > 1:
        os.environ[PREFIX + "TRANSPORT"] = "tcp"
    buffers = run_ranks(ranks, make)
    for how in ENDS:
        number = os.fork()
        if number == 0:
            child(how, buffers)
            return
        print(how, end(number), flush=True)
        run_ranks(ranks, lambda group: step(ranks, buffers[group.rank()]))
    busy = threading.Thread(target=run_ranks, args=(ranks, lambda group: steps(ranks, buffers[group.rank()])))
    busy.start()
    while busy.is_alive():  # while every rank is somewhere in a call, and its stream, proxy and events are at work
        number = os.fork()
        if number == 0:
            child("drop", buffers)
            return
        assert end(number) == 0, "a child that was forked in the middle of calls"
    busy.join()
    for buffer in buffers:
        buffer.destroy()
    print("exact", flush=True)


if __name__ == "__main__":
    main()
