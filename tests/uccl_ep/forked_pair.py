"""Two ranks as forked processes that first become what a test wants: another user, or one with a limit.

    python -m tests.uccl_ep.forked_pair CHANGE_OF_RANK_0 CHANGE_OF_RANK_1

A change is "same", "user=UID", "undumpable", "address_space=BYTES" or "files=FREE" (descriptors that are left). Each
rank prints its rank, nodes and checksum, or the error, and its seconds.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import gc
import multiprocessing
import os
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

import uccl_ep.low_latency.launch
import uccl_ep.observe.publish
import uccl_ep.plan.start
import uccl_ep.session.session  # noqa: F401 - another user may not be able to read the files
from uccl_ep import Buffer, UcclEpError

_PR_SET_DUMPABLE = 4


class Pair:
    """A group of two over a pipe."""

    def __init__(self, rank: int, pipe: Connection) -> None:
        self._rank, self._pipe = rank, pipe

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return 2

    def all_gather_object(self, value: Any) -> list[Any]:
        self._pipe.send(value)
        other = self._pipe.recv()
        return [other, value] if self._rank else [value, other]


def limit_for(free: int) -> int:
    """The limit of open files under which this process can open `free` more."""
    # Taken, not looked for: a thread that blocks in accept() holds a number that /proc does not show.
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(free + 1)]
    for fd in taken:
        os.close(fd)
    return taken[-1]


@contextlib.contextmanager
def free_descriptors(free: int) -> Any:
    """This process can open `free` more, unless it raises its limit."""
    gc.collect()  # what a collection closed meanwhile could be opened too
    gc.disable()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(free), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        gc.enable()


def change(what: str) -> None:
    name, _, value = what.partition("=")
    if name == "user":
        os.setgroups([])
        os.setgid(int(value))
        os.setuid(int(value))
    elif name == "undumpable":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    elif name == "address_space":
        resource.setrlimit(resource.RLIMIT_AS, (int(value), int(value)))
    elif name == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(int(value)),) * 2)  # a Buffer would raise the soft one


def one_rank(rank: int, pipes: tuple[Connection, Connection], what: str) -> None:
    group, began = Pair(rank, pipes[rank]), 0.0
    pipes[1 - rank].close()  # so that the other's end is seen
    change(what)
    began = time.monotonic()
    try:
        hint = Buffer.get_low_latency_rdma_size_hint(4, 128, 2, 2)
        buffer = Buffer(group, 1 << 20, hint, low_latency_mode=True, explicitly_destroy=True)
        x, ids = torch.ones(4, 128).bfloat16(), torch.tensor([[0, 1]] * 4)
        rows, _, handle, *_ = buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
        sums = buffer.low_latency_combine(rows, ids, torch.ones(4, 2), handle)[0]
        told = f"nodes {buffer.runtime.topology.num_nodes} sum {float(sums.float().sum())}"
        group.all_gather_object(None)
        buffer.destroy()
    except (UcclEpError, OSError) as error:
        told = f"{type(error).__name__}: {error}"
    # One write: two processes share the pipe.
    os.write(1, f"rank {rank}: {told} | {time.monotonic() - began:.2f}\n".encode())


def main(changes: list[str]) -> None:
    codecs.lookup("ascii")
    context = multiprocessing.get_context("fork")
    pipes = context.Pipe()
    ranks = [context.Process(target=one_rank, args=(rank, pipes, what)) for rank, what in enumerate(changes)]
    for process in ranks:
        process.start()
    for pipe in pipes:
        pipe.close()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main(sys.argv[1:])
