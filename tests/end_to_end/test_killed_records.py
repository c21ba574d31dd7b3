"""A rank is killed under torchrun, which ends the others at once: each rank leaves a record, the killed one too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANKS, KILLED = 4, 2
PROGRAM = f"""
import os, signal
import torch, torch.distributed as dist
import uccl_ep

dist.init_process_group("gloo")
rank = dist.get_rank()
size = uccl_ep.Buffer.get_low_latency_rdma_size_hint(8, 256, {RANKS}, 8)
buffer = uccl_ep.Buffer(dist.group.WORLD, num_rdma_bytes=size, low_latency_mode=True, explicitly_destroy=True)
x, topk_idx = torch.ones(8, 256).bfloat16(), torch.arange(8).view(8, 1)
for number in range(1000):
    if rank == {KILLED} and number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, 8, 8, use_fp8=False)
    buffer.low_latency_combine(rows, topk_idx, torch.ones(8, 1), handle)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)  # four interpreters load torch
@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_killed_rank_under_torchrun_leaves_every_record(tmp_path: Path, number: int) -> None:
    (tmp_path / "job.py").write_text(PROGRAM, encoding="utf-8")
    records = tmp_path / "records"
    variables = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "UCCL_EP_RANKS_PER_NODE": "2",
        "UCCL_EP_TRANSPORT": "tcp",
        "UCCL_EP_FLIGHT_RECORDER": str(records),
    }
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "job.py"]
    job = subprocess.run(launch, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, timeout=100)
    assert job.returncode != 0, job.stderr[-2000:]
    told = subprocess.run(
        [sys.executable, "-m", "uccl_ep", "explain", str(records)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    for rank in range(RANKS):
        assert re.search(rf"Rank {rank} \(host \S+\) was in ", told.stdout), told.stdout
    assert "No record" not in told.stdout
