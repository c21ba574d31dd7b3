"""What the busiest lane of each kernel does in one call on a GPU's launch shapes, and whether that is little enough.

    python -m tests.gpu.critical_paths EXECUTOR [--ranks-per-node N] [--throughput] [--tokens T]

EXECUTOR names a module with `open_driver(num_sms) -> FakeDriver`, a fake GPU whose kernels it executes and counts, and
`counts(driver) -> list[KernelCounts]`, an entry for each launch since it was last asked.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from uccl_ep import Buffer, Config, ThreadGroup

SMS = 132  # of each rank: an H100
RANKS, HIDDEN, EXPERTS, TOPK = 8, 7168, 256, 8
MOST_LANE16 = {
    "low_latency_dispatch_send": 32,
    "low_latency_dispatch_recv": 56,
    "low_latency_combine_send": 112,
    "low_latency_combine_recv": 64,
}
"""16-byte accesses of the busiest lane, 128 tokens a rank; before shapes followed the GPU: 896, 868, 1,680, 252."""
MOST_HOST_READS = 8
"""Reads of host memory by each kernel of low latency, beside one for each rank of another node: one block asks for
all. Where rows lie in the host's memory, the other ranks of the node are asked there too, one read each; a wait that
lasts adds one. So nodes of 8 ranks have no read to spare."""
MOST_UNEVEN = {"throughput_dispatch": 1.3, "throughput_combine": 1.3}
"""Accesses of throughput's busiest warp, as a multiple of the mean of all warps that were launched."""


@dataclass(frozen=True)
class KernelCounts:
    """One launch. Accesses are loads and stores of 16 bytes outside shared memory.

    Attributes:
        warps: of a block.
        busiest_lane16: accesses of the lane that has most.
        warp16: accesses of each warp's busiest lane, all warps of the grid.
        host_reads: of host memory, over PCIe: sectors of 32 bytes that a warp reads. Its lanes read one together, and
            what it reads again, while it waits, counts once.
        plain_host_reads: likewise, by loads that order nothing, of up to 8 bytes.
    """

    kernel: str
    grid: int
    warps: int
    busiest_lane16: int
    warp16: list[int]
    host_reads: int
    plain_host_reads: int = 0

    @property
    def unevenness(self) -> float:
        """The busiest warp's accesses over the mean of all warps."""
        total = sum(self.warp16)
        return max(self.warp16) * len(self.warp16) / total if total else 0.0


Counts = Callable[[FakeDriver], list[KernelCounts]]


@contextmanager
def gpu_of(open_driver: Callable[[int], FakeDriver], ranks_per_node: int) -> Iterator[FakeDriver]:
    """A fake GPU that has SMS for each of RANKS ranks; 0 ranks a node: all on one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCCL_EP_RANKS_PER_NODE", str(ranks_per_node))
        patch.setenv("UCCL_EP_TIMEOUT_S", "500")
        yield install(patch, open_driver(SMS * RANKS))


def inputs(rank: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, ids and weights of a rank: each token names TOPK experts at random."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, HIDDEN, generator=generator).bfloat16()
    ids = torch.rand(tokens, EXPERTS, generator=generator).topk(TOPK).indices
    return x, ids, torch.rand(tokens, TOPK, generator=generator)


def low_latency(driver: FakeDriver, counts: Counts, tokens: int = 128, calls: int = 3) -> list[KernelCounts]:
    """Dispatch of FP8 rows, and combine: the launches of the last of `calls` rounds; from the third on calls wait."""
    size = Buffer.get_low_latency_rdma_size_hint(tokens, HIDDEN, RANKS, EXPERTS)
    seen: list[KernelCounts] = []

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        x, ids, weights = inputs(rank, tokens)
        buffer = Buffer(
            group, 0, size, low_latency_mode=True, num_qps_per_rank=EXPERTS // RANKS, explicitly_destroy=True
        )
        for _ in range(calls):
            group.barrier()
            if rank == 0:
                counts(driver)
            group.barrier()
            (rows, scales), _, handle, _, _ = buffer.low_latency_dispatch(x, ids, tokens, EXPERTS)
            outputs = torch.zeros(EXPERTS // RANKS, RANKS * tokens, HIDDEN, dtype=torch.bfloat16)
            buffer.low_latency_combine(outputs, ids, weights, handle)
            driver.settle()
            group.barrier()
        if rank == 0:
            seen.extend(counts(driver))
        group.barrier()
        buffer.destroy()

    run_gpu_ranks(driver, RANKS, body)
    return seen


def throughput(driver: FakeDriver, counts: Counts, tokens: int = 4096, sms: int = 24) -> list[KernelCounts]:
    """Layout, dispatch of bf16 rows, and combine on `sms` SMs a rank: the launches of one round."""
    seen: list[KernelCounts] = []

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        x, ids, weights = inputs(rank, tokens)
        config = Config(sms)
        buffer = Buffer(group, config.get_nvl_buffer_size_hint(2 * HIDDEN, RANKS), 0, explicitly_destroy=True)
        group.barrier()
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        received = buffer.dispatch(
            x,
            topk_idx=ids,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            config=config,
        )
        buffer.combine(received[0], received[4], config=config)
        driver.settle()
        group.barrier()
        if rank == 0:
            seen.extend(counts(driver))
        group.barrier()
        buffer.destroy()

    run_gpu_ranks(driver, RANKS, body)
    return seen


def table(launches: Iterable[KernelCounts]) -> str:
    """The worst launch of each kernel, a line each."""
    worst: dict[str, list[KernelCounts]] = {}
    for launch in launches:
        worst.setdefault(launch.kernel, []).append(launch)
    heads = ("kernel", "blocks", "warps", "with rows", "busiest lane", "unevenness", "host reads")
    lines = [f"{heads[0]:28}" + "".join(f"{head:>13}" for head in heads[1:])]
    for kernel, of in sorted(worst.items()):
        most = max(of, key=lambda launch: launch.busiest_lane16)
        cells = (
            most.grid,
            most.grid * most.warps,
            sum(n > 0 for n in most.warp16),
            most.busiest_lane16,
            f"{max(launch.unevenness for launch in of):.2f}",
            max(launch.host_reads for launch in of),
        )
        lines.append(f"{kernel:28}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def findings(launches: Iterable[KernelCounts], remote_ranks: int) -> list[str]:
    """What is beyond the limits, a line a launch. `remote_ranks`: those of other nodes, for a rank; if there are any,
    rows may lie in the host's memory."""
    found = []
    for launch in launches:
        most = MOST_LANE16.get(launch.kernel)
        if most is not None and launch.busiest_lane16 > most:
            found.append(f"{launch.kernel}: a lane has {launch.busiest_lane16} accesses of 16 bytes; at most {most}")
        reads = MOST_HOST_READS + remote_ranks
        if launch.kernel.startswith("low_latency") and launch.host_reads > reads:
            found.append(f"{launch.kernel}: {launch.host_reads} reads of host memory; at most {reads}")
        words = launch.plain_host_reads
        if launch.kernel.startswith("throughput_") and not remote_ranks and words > launch.grid:
            found.append(
                f"{launch.kernel}: {words} plain reads of host words by {launch.grid} blocks; at most one each"
            )
        uneven = MOST_UNEVEN.get(launch.kernel)
        if uneven is not None and launch.unevenness > uneven:
            found.append(f"{launch.kernel}: a warp has {launch.unevenness:.2f} times the mean; at most {uneven}")
    return found


def main(arguments: list[str]) -> int:
    """Prints the table; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("executor")
    parser.add_argument("--ranks-per-node", type=int, default=0)
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--tokens", type=int)
    chosen = parser.parse_args(arguments)
    executor: Any = importlib.import_module(chosen.executor)
    sizes = {} if chosen.tokens is None else {"tokens": chosen.tokens}
    with gpu_of(executor.open_driver, chosen.ranks_per_node) as driver:
        launches = (throughput if chosen.throughput else low_latency)(driver, executor.counts, **sizes)
    print(table(launches))
    found = findings(launches, RANKS - chosen.ranks_per_node if chosen.ranks_per_node else 0)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
