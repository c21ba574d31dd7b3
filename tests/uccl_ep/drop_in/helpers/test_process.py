"""`deep_ep.utils.envs`, `.comm` and `.semantic`: seeds, domains of groups and buffers, caches of methods."""

from __future__ import annotations

import gc
import os
import random
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from uccl_ep import ElasticBuffer, InvalidArgument, ThreadGroup, run_ranks
from uccl_ep.drop_in.helpers import process

ROOT = Path(__file__).resolve().parents[4]


def test_process_domains_of_a_group_and_of_a_buffer(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)

    def body(group: ThreadGroup) -> None:
        assert process.get_physical_domain_size(group) == (2, 2) and process.get_logical_domain_size(group) == (1, 3)
        assert process.get_physical_domain_size(group=group) == (2, 2)  # V2's name for it
        assert process.get_logical_domain_size(group=group, allow_hybrid_mode=False) == (1, 3)
        buffer = ElasticBuffer(group, 4 << 20, explicitly_destroy=True)
        assert process.get_physical_domain_size(buffer) == (2, 2) and process.get_logical_domain_size(buffer) == (1, 3)
        process.barrier(buffer, with_cpu_sync=True)
        assert process.get_comm_stream(buffer) is not None
        group.barrier()
        buffer.destroy()

    run_ranks(3, body)
    with pytest.raises(InvalidArgument, match="group"):
        process.get_physical_domain_size(7)


@pytest.mark.slow
def test_process_init_dist_starts_ranks_of_nodes() -> None:
    """As DeepEP's own tests start: WORLD_SIZE nodes, RANK this node, and a process for each local rank."""
    program = (
        "import sys, torch\n"
        "from deep_ep.utils import init_dist, dist_print\n"
        "from deep_ep.utils.envs import get_local_seed, get_global_seed\n"
        "from deep_ep import get_physical_domain_size\n"
        "rank, ranks, group = init_dist(int(sys.argv[1]), 2, seed=5)\n"
        "assert (group.rank(), group.size()) == (rank, ranks) and torch.get_default_dtype() == torch.bfloat16\n"
        "sizes = get_physical_domain_size(group)\n"
        "dist_print(f'{rank} of {ranks}, {get_global_seed()} {get_local_seed()} {sizes}')\n"
        "dist_print(f'once {rank}', once_in_node=True)\n"
        "torch.distributed.destroy_process_group()\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("UCCL_EP_")}
    here = {**inherited, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "uccl_ep", "run", "--", "-c", program]
    started = [subprocess.Popen([*command, str(i)], env=here, stdout=subprocess.PIPE, text=True) for i in range(2)]
    shown = "".join(each.communicate(timeout=50)[0] for each in started)
    assert [each.returncode for each in started] == [0, 0]
    assert sorted(shown.split("\n")[:-1]) == ["0 of 2, 5 5 (1, 2)", "1 of 2, 5 6 (1, 2)", "once 0"]


def test_process_seeds() -> None:
    before = random.getstate(), torch.get_rng_state()
    try:
        process.init_seed(11)
        assert (process.get_local_seed(), process.get_global_seed()) == (11, 11)
        first = random.random(), float(torch.rand(1))
        process.init_seed(11)
        assert (random.random(), float(torch.rand(1))) == first
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


def test_process_environment_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "1")
    monkeypatch.delenv("NOT_THERE", raising=False)
    with process.EnvOverride([("THERE", "2", True), ("NOT_THERE", "3", True), ("LEFT", "4", False)]):
        assert (os.environ["THERE"], os.environ["NOT_THERE"], "LEFT" in os.environ) == ("2", "3", False)
    assert os.environ["THERE"] == "1" and "NOT_THERE" not in os.environ


def test_process_cache_keeps_no_object_alive() -> None:
    calls: list[int] = []

    class Thing:
        @process.weak_lru(maxsize=None)
        def twice(self, x: int) -> int:
            """Doubles."""
            calls.append(x)
            return 2 * x

    thing = Thing()
    assert [thing.twice(2), thing.twice(2), thing.twice(3)] == [4, 4, 6] and calls == [2, 3]
    assert Thing.twice.__doc__ == "Doubles."
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    assert process.value_or(None, 3) == 3 and process.value_or(0, 3) == 0


def test_process_nothing_is_asked_of_drivers() -> None:
    assert process.get_nvlink_gbs() == process.get_rdma_gbs("mlx5_0") == 0.0
    assert process.check_fast_rdma_atomic_support() is False
    assert process.check_nvlink_connections(None, low_latency_mode=True) is None is process.check_torch_deterministic()
    assert process.destroy_all_managed_nccl_comm() is None
