"""The memory table and its targets; and that a running rank's resident memory is what the bill says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.ranks import case, expert_rows, low_latency
from uccl_ep import Buffer, InvalidArgument, ThreadGroup, memory_bill, run_ranks
from uccl_ep.tools.bench.model.memory import MemoryOptions, memory_table

PAGE = 4096
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")


def resident_bytes(name: str, smaps: Path = Path("/proc/self/smaps")) -> tuple[int, int]:
    """(at least, at most) bytes of a memfd that are resident, by this process's mappings of it.

    Several mappings (the ranks and proxies of one process) share its pages; the kernel divides a page by its mappings
    (Pss), so their sum counts each page once, if no other process maps it. It cuts each to whole KiB.

    `name` is of the memfd, as Regions.make gives it: "uccl-ep-3-data".
    """
    total, mappings, inside = 0, 0, False
    for line in smaps.read_text(encoding="utf-8").splitlines():
        heading = _MAPPING.match(line)
        if heading:
            inside = heading[1].removesuffix(" (deleted)").rsplit(":", 1)[-1] == name
            mappings += inside
        elif inside and line.startswith("Pss:"):
            total += int(line.split()[1]) << 10
    assert mappings, f"{name} is no memfd that this process maps"
    return total, total + 1023 * mappings


def test_memory_targets_are_met_on_nodes_of_eight() -> None:
    result = memory_table(MemoryOptions())
    assert len(result["rows"]) == 14 == len(result["targets"])
    assert all(target["met"] for target in result["targets"])
    first, last = result["rows"][0], result["rows"][6]
    assert (first["upstream"], result["rows"][7]["upstream"]) == (1_908_410_496, 2_146_961_792)  # the contract's values
    assert last["ranks"] == 512 and last["experts"] == 512 and last["upstream_padded"] > last["upstream"]
    assert (first["limit"], last["limit"]) == (0.25, 0.5)
    assert sum(last["items"].values()) == last["ours"] < last["ours_one_rank_a_node"]


def test_memory_targets_can_be_missed() -> None:
    result = memory_table(MemoryOptions(ranks=(512,), experts=(256,), ranks_per_node=1))
    (target,) = result["targets"]
    assert not target["met"] and target["measured"] > target["wanted"]


@pytest.mark.parametrize("options, named", [
    (MemoryOptions(tokens=0), "--tokens"), (MemoryOptions(hidden=100), "--hidden"),
    (MemoryOptions(ranks=(0,)), "--ranks"),
    (MemoryOptions(experts=(5000,)), "--experts"), (MemoryOptions(ranks_per_node=65), "--ranks-per-node"),
])  # fmt: skip
def test_memory_refuses(options: MemoryOptions, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        memory_table(options)


SMAPS = """\
7f0000000000-7f0000100000 rw-s 00000000 00:01 12                         /memfd:uccl-ep-1-data (deleted)
Size:               1024 kB
Pss:                 300 kB
VmFlags: rd wr sh
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Pss:                  50 kB
7f0000400000-7f0000500000 rw-s 00000000 00:01 12                         /memfd:uccl-ep-1-data (deleted)
Pss:                 212 kB
7f0000600000-7f0000700000 rw-s 00000000 00:01 13                         /memfd:uccl-ep-10-data (deleted)
Pss:                   4 kB
"""


def test_memory_resident_bytes_adds_the_mappings_of_one_memfd(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert resident_bytes("uccl-ep-1-data", smaps) == (512 << 10, (512 << 10) + 2 * 1023)
    assert resident_bytes("uccl-ep-10-data", smaps) == (4 << 10, (4 << 10) + 1023)
    with pytest.raises(AssertionError, match="uccl-ep-2-data"):
        resident_bytes("uccl-ep-2-data", smaps)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_memory_resident_is_the_bill(variables: Any) -> None:
    """A call with as many rows as there may be stays below the bill; with every page touched, it is the bill."""
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")
    c = case(70, "uniform", num_experts=32, num_topk=32, hidden=2048, max_tokens=64)
    bill = memory_bill(64, 2048, 4, 32, ranks_per_node=2).total_bytes

    def body(group: ThreadGroup) -> tuple[int, int, tuple[int, int], int]:
        rank, names = group.rank(), (f"uccl-ep-{group.rank()}-data", f"uccl-ep-{group.rank()}-control")

        def resident() -> tuple[int, int]:
            buffer.barrier()
            group.barrier()
            least, most = zip(*map(resident_bytes, names), strict=True)
            group.barrier()
            return sum(least), sum(most)

        with low_latency(group, c.shape) as buffer:
            idle = resident()[1]
            for _ in range(2):  # both sets
                arguments = (c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
                handle = buffer.low_latency_dispatch(*arguments, use_fp8=False)[2]
                buffer.low_latency_combine(expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank], handle)
            used = resident()[0]
            touch(buffer)
            return idle, used, resident(), whole_bill(buffer)

    for idle, used, touched, allocated in run_ranks(4, body):
        assert idle < 1 << 20 < used < touched[1]  # nothing is taken before it is needed
        assert touched[0] <= allocated <= touched[1] < touched[0] + (16 << 10)
        # Beside the low-latency rows that memory_bill names: words of kernels and proxies, and empty rings.
        assert bill <= allocated <= bill + (4 << 20)


def touch(buffer: Buffer) -> None:
    """Writes to each page what it holds; nothing is on its way."""
    session = buffer._session
    session.data[::PAGE] += 0
    control = session.regions.control.numpy()
    control[::PAGE] += 0


def whole_bill(buffer: Buffer) -> int:
    """What the Buffer says that it allocates, in whole pages."""
    items = {item.name: item.num_bytes for item in buffer._session.bill().items if not item.reserved}
    control = items.pop("control")
    return sum(items.values()) + -(-control // PAGE) * PAGE
