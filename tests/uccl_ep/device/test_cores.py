"""Threads of kernels on a CPU: affinity, cgroup, ranks of the host and proxies, and that a Buffer follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import throughput
from tests.uccl_ep.system.test_cgroups import tree
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.device.cores import MOST_THREADS, cores_allowed, kernel_threads
from uccl_ep.session import device_choice


@pytest.mark.parametrize("limit, wanted", [("max 100000", 16.0), ("350000 100000", 3.5), ("9900000 100000", 16.0)])
def test_cores_allowed_is_the_smaller_of_affinity_and_cgroup(tmp_path: Path, limit: str, wanted: float) -> None:
    assert cores_allowed(16, tree(tmp_path, "0::/\n", {"cpu.max": limit})) == wanted


def test_cores_allowed_here() -> None:
    assert cores_allowed() > 0


@pytest.mark.parametrize("allowed, ranks, proxies, wanted", [
    (16, 4, 1, 3), (16, 4, 2, 2), (2, 4, 1, 1), (2, 1, 1, 1), (3.5, 1, 1, 2), (0.5, 1, 1, 1), (128, 2, 1, MOST_THREADS),
])  # fmt: skip
def test_cores_kernel_threads(allowed: float, ranks: int, proxies: int, wanted: int) -> None:
    assert kernel_threads(allowed, ranks, proxies) == wanted


@pytest.mark.parametrize("setting, wanted", [("0", 4), ("1", 1), ("3", 3)])
def test_cores_a_buffer_follows_its_setting(
    variables: Any, monkeypatch: pytest.MonkeyPatch, setting: str, wanted: int
) -> None:
    """Two ranks of one host with ten cores and a proxy thread each; rows come out right with that many threads."""
    variables(HOST_THREADS=setting)
    monkeypatch.setattr(device_choice, "cores_allowed", lambda: 10.0)

    def body(group: ThreadGroup) -> int:
        x = torch.arange(6 * 64).reshape(6, 64).bfloat16() + group.rank()
        ids = torch.tensor([[0, 1]] * 6)
        with throughput(group) as buffer:
            layout = buffer.get_dispatch_layout(ids, 2)
            got = buffer.dispatch(
                x,
                num_tokens_per_rank=layout[0],
                is_token_in_rank=layout[3],
                num_tokens_per_expert=layout[2],
                topk_idx=ids,
                topk_weights=torch.ones(6, 2),
            )
            assert torch.equal(got[0][6 * group.rank() : 6 * group.rank() + 6], x)
            return int(buffer._device._threads)  # type: ignore[attr-defined]

    assert run_ranks(2, body) == [wanted, wanted]
