"""`Buffer` on two ranks as two nodes, both modes, every row compared, over a driver's library and the box's devices.

`python -m tests.providers.buffers DRIVER BOX`, with BOX, the library `provider_box`, in LD_PRELOAD too. The ranks are
threads of this process, since the box moves bytes within one: on the CPU, then on the fake GPU of tests/uccl_ep/gpu,
whose memory the box's devices reach by dma-buf. Prints what `read_rows` reads, or ends with an error.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_RANKS = 2
_FINDINGS_BYTES = 1 << 14
_LIMIT_S = 120
_SAID = "%d rows are right, %d of them on a GPU, %d writes over %s"


def command(loader: Sequence[str], provider: str, box: Path) -> tuple[list[str], dict[str, str]]:
    """How to run this module with libraries of a release: the command, and its environment."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(box),
        "FI_EFA_ENABLE_SHM_TRANSFER": "0",  # libfabric's efa provider else goes past the device
    }
    return [*loader, sys.executable, "-m", "tests.providers.buffers", provider, str(box)], environment


def run(loader: Sequence[str], provider: str, box: Path) -> tuple[int, int, str]:
    """Runs it: (rows that were compared, how many of them on a GPU, what went wrong or "")."""
    asked, environment = command(loader, provider, box)
    try:
        done = subprocess.run(asked, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return 0, 0, f"Buffer: no end within {_LIMIT_S} s"
    return read_rows(done.stdout, done.stderr, done.returncode)


def read_rows(output: str, errors: str, code: int) -> tuple[int, int, str]:
    """(rows that were compared, how many of them on a GPU, what went wrong or "") of what a run printed."""
    said = re.search(_SAID.replace("%d", r"(\d+)").replace("%s", r"\w+"), output)
    if code == 0 and said and int(said[1]) > int(said[2]) and int(said[3]) > 0:
        return int(said[1]), int(said[2]), ""
    lines = [line for line in errors.strip().splitlines() if not line.startswith("(")]  # a remark of our traceback's
    return 0, 0, f"Buffer: exit code {code} behind {lines[-1] if lines else 'no output'}"


def in_gpu_memory(group: Any, driver: Any) -> tuple[int, str, int]:
    """Low latency with zero-copy rows, all rows in the fake GPU's memory; returns what `torch_ranks.body` does."""
    from tests.uccl_ep.ranks import case, expert_rows, low_latency, reference_of, same
    from uccl_ep import reference

    rank, rows = group.rank(), 0
    cases = [
        case(n, num_ranks=_RANKS, num_experts=4, num_topk=2, hidden=hidden, max_tokens=tokens)
        for n, (hidden, tokens) in enumerate([(512, 8), (512, 8), (4096, 64), (512, 8)])
    ]
    with driver.rank(), low_latency(group, cases[2].shape) as buffer:
        bill = str(buffer.memory_bill())  # some drivers register no dma-buf
        where = "host" if "ibv_reg_dmabuf_mr: Operation not supported" in bill else "device"
        assert f"registered when their size is first asked for; in {where} memory as the other rows" in bill, bill
        for c in cases:
            x, ids, m = c.x[rank], c.topk_idx[rank], c.shape.max_tokens
            _, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, m, 4, use_fp8=False)
            mine = buffer.get_next_low_latency_combine_buffer(handle)
            driver.settle()
            made = [expert_rows(r, c.shape) for r in range(_RANKS)]
            mine.copy_(made[rank])
            out, _, _ = buffer.low_latency_combine(mine, ids, c.topk_weights[rank], handle, zero_copy=True)
            driver.settle()
            due = reference.low_latency_combine(made, c.topk_idx, c.topk_weights, reference_of(c))[rank]
            assert same(out, due), f"combined: {c.shape}"
            rows += out.shape[0]
        remote = [peer for peer in buffer.stats()["peers"] if not peer["node_local"]]
        return rows, str(remote[0]["via"]), sum(int(peer["writes"]) for peer in remote)


def main() -> int:
    """Plays the steps of `tests.rdma.inside.torch_ranks`, then `in_gpu_memory`, but not over libfabric."""
    provider, box = sys.argv[1], ctypes.CDLL(sys.argv[2])
    os.environ.pop("LD_PRELOAD", None)  # what this process starts has nothing to do with the box
    box.provider_box_begin.restype = ctypes.c_char_p
    folder = box.provider_box_begin(("efa" if provider == "libfabric" else provider).encode(), _RANKS)
    if folder is None:
        return 1

    from tests.end_to_end.world import World, as_threads
    from tests.rdma.inside.torch_ranks import body
    from uccl_ep.fabric import facts

    # sysfs is the box's, and pyverbs, where it is installed, is another release's.
    facts.Probes = functools.partial(facts.Probes, root=folder.decode(), limits=dict)  # type: ignore[misc, assignment]

    over_libfabric = provider == "libfabric"

    @dataclass(frozen=True)
    class OverDriver(World):  # the fields are variables, UCCL_EP_PROVIDER among them
        provider: str = "efa" if over_libfabric else ""

    world = OverDriver(
        _RANKS,
        ranks_per_node=1,
        transport=provider if provider in ("efa", "libfabric") else "verbs",
        proxy_threads=2,
        timeout_s=60.0,
    )
    gpu_answers: list[Any] = []
    answers = as_threads(world, body, world.ranks_per_node)
    if not over_libfabric:
        from tests.uccl_ep.gpu.fake_driver import FakeDriver
        from tests.uccl_ep.gpu.worlds import install

        with pytest.MonkeyPatch.context() as patch:
            driver = install(patch, FakeDriver(num_sms=8, flush_options=1))  # efa asks the GPU's driver to flush
            gpu_answers = as_threads(world, in_gpu_memory, driver)
    text = ctypes.create_string_buffer(_FINDINGS_BYTES)
    box.provider_box_findings(text, _FINDINGS_BYTES)
    found = text.value.decode().splitlines()
    if over_libfabric:  # see README.md
        found = [line for line in found if not line.startswith("overrun")]
    families = {family for _, family, _ in answers + gpu_answers}
    if found or families != {world.transport}:
        print(f"the box found: {'; '.join(found)}; transport {families}", file=sys.stderr)
        return 1
    rows, gpu_rows = (sum(count for count, _, _ in some) for some in (answers, gpu_answers))
    writes = sum(count for _, _, count in answers + gpu_answers)
    print(_SAID % (rows + gpu_rows, gpu_rows, writes, world.transport))
    return 0


if __name__ == "__main__":
    sys.exit(main())
