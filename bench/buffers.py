"""What a Buffer takes of its process: descriptors, threads and time to make, for many Buffers and for many ranks.

Counted, since counts do not drift: ranks are processes of this machine, on nodes of `--per-node`. Descriptors of a rank
grow by a fixed number a remote peer and a peer of its host; `--grow` counts several sizes, takes the law from the first
ones, holds it against the last, and says what it gives for up to 1,024 ranks.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

LARGEST = 1024
_HIDDEN, _TOKENS = 128, 4


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1  # the one that lists them


def threads() -> Counter[str]:
    """Threads of this process by name."""
    names = []
    for task in os.listdir("/proc/self/task"):
        names.append(Path("/proc/self/task", task, "comm").read_text(encoding="utf-8").strip())
    return Counter(names)


def one_rank(
    rank: int, ranks: int, per_node: int, transport: str, wanted: tuple[int, ...], store: str, pipe: Any
) -> None:
    """Makes Buffers; sends (Buffers so far, descriptors, threads, seconds) beyond what was there before."""
    os.environ.update(UCCL_EP_RANKS_PER_NODE=str(per_node), UCCL_EP_TRANSPORT=transport)
    import torch
    import torch.distributed as dist

    from uccl_ep import Buffer

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    group: Any = dist.group.WORLD
    hint = Buffer.get_low_latency_rdma_size_hint(_TOKENS, _HIDDEN, ranks, ranks)
    before, before_threads, buffers, began, told = descriptors(), threads(), [], time.perf_counter(), []
    for number in range(1, max(wanted) + 1):
        buffers.append(Buffer(group, 1 << 20, hint, low_latency_mode=True, explicitly_destroy=True))
        if number in wanted:
            more = threads()
            more.subtract(before_threads)
            told.append((number, descriptors() - before, dict(+more), time.perf_counter() - began))
    x, ids = torch.ones(_TOKENS, _HIDDEN).bfloat16(), torch.arange(_TOKENS).view(-1, 1) % ranks
    for buffer in (buffers[0], buffers[-1]):  # they work
        rows, _, handle, *_ = buffer.low_latency_dispatch(x, ids, _TOKENS, ranks, use_fp8=False)
        sums = buffer.low_latency_combine(rows, ids, torch.ones(_TOKENS, 1), handle)[0]
        assert bool((sums == 1).all())
    dist.barrier(group)
    for buffer in buffers:
        buffer.destroy()
    if rank == 0:
        pipe.send(told)
    dist.destroy_process_group()


def measure(ranks: int, per_node: int, transport: str, wanted: tuple[int, ...]) -> list[Any]:
    """What rank 0 tells."""
    import torch.multiprocessing as multiprocessing

    here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, per_node, transport, wanted, os.path.join(folder, "store"), there)
        multiprocessing.spawn(one_rank, args=arguments, nprocs=ranks, join=True)
        told: list[Any] = here.recv()
    return told


def show_many(ranks: int, per_node: int, transport: str, many: int, console: Console) -> None:
    """The table of many Buffers in one process."""
    told = measure(ranks, per_node, transport, tuple(sorted({1, max(2, many // 8), many})))
    table = Table(title=f"Buffers in one process: {ranks} ranks, {per_node} a node, {transport}")
    for name in ("Buffers", "descriptors", "threads", "of which", "s to make them"):
        table.add_column(name, justify="left" if name == "of which" else "right")
    for number, files, by_name, seconds in told:
        names = ", ".join(f"{count} {name}" for name, count in sorted(by_name.items()))
        table.add_row(str(number), str(files), str(sum(by_name.values())), names, f"{seconds:.2f}")
    console.print(table)
    first, last = told[0], told[-1]
    each = (last[1] - first[1]) / (last[0] - first[0])
    console.print(f"each further Buffer: {each:g} descriptors", highlight=False)


def show_growth(per_node: int, transport: str, console: Console) -> None:
    """Descriptors of one Buffer by number of ranks, and the law that they follow."""
    sizes = [n * per_node for n in (1, 2, 3, 4)]
    found = {n: measure(n, per_node, transport, (1,))[0] for n in sizes}
    step = found[sizes[2]][1] - found[sizes[1]][1]  # a further node, all of them on this host

    def law(ranks: int) -> int:
        return int(found[sizes[1]][1] + step * (ranks - sizes[1]) / per_node)

    table = Table(title=f"One Buffer's descriptors, {per_node} ranks a node, {transport}, all ranks on one host")
    for name in ("ranks", "counted", "by the law", "threads", "s to make it"):
        table.add_column(name, justify="right")
    for n in sizes:
        _, files, by_name, seconds = found[n]
        by_law = str(law(n)) if n > per_node else ""
        table.add_row(str(n), str(files), by_law, str(sum(by_name.values())), f"{seconds:.2f}")
    for n in (64, 256, LARGEST):
        table.add_row(str(n), "", str(law(n)), "", "")
    console.print(table)
    console.print(f"each further node of {per_node}: {step} descriptors", highlight=False)
    if law(sizes[3]) != found[sizes[3]][1]:
        raise typer.Exit(1)


def main(
    buffers: Annotated[int, typer.Option(help="Buffers in one process.")] = 64,
    ranks: Annotated[int, typer.Option(help="Ranks.")] = 2,
    per_node: Annotated[int, typer.Option(help="Ranks a node.")] = 1,
    transport: Annotated[str, typer.Option(help="Between nodes: tcp or shared_memory.")] = "tcp",
    grow: Annotated[bool, typer.Option("--grow", help="One Buffer, 1 to 4 nodes, instead.")] = False,
) -> None:
    """Count what Buffers take of a process.

    Ends with status 1 where descriptors do not follow the law that they are said to.

    Examples:

      python -m bench.buffers

      python -m bench.buffers --grow --per-node 2
    """
    console = Console()
    if grow:
        show_growth(per_node, transport, console)
    else:
        show_many(ranks, per_node, transport, buffers, console)


if __name__ == "__main__":
    typer.run(main)
