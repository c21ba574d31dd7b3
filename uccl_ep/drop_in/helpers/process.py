"""`deep_ep.utils.envs`, `.comm` and `.semantic`: starting ranks, seeds, domains of a group, questions to drivers."""

from __future__ import annotations

import functools
import os
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from uccl_ep import _native
from uccl_ep.group.group import as_group
from uccl_ep.group.handshake import host_identity
from uccl_ep.group.topology import split_into_nodes
from uccl_ep.settings import Settings

persistent_envs: dict[str, str] = {}  # upstream's choices at its build; there are none here
_seeds = {"local": 0, "global": 0}


# ---- envs ----------------------------------------------------------------------------------------------------------


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, Any]:
    """Starts torch.distributed: (rank, ranks, a group of all of them).

    MASTER_ADDR and MASTER_PORT say where; WORLD_SIZE and RANK are the number of *nodes* and this node's. With a GPU the
    backend is NCCL and torch's default device the rank's GPU; without one, gloo. bf16 becomes the default dtype.
    """
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = f"tcp://{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{os.environ.get('MASTER_PORT', '8361')}"
    ranks, rank = nodes * num_local_ranks, node * num_local_ranks + local_rank
    has_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {"device_id": torch.device("cuda", local_rank)} if has_gpu else {}
    dist.init_process_group("nccl" if has_gpu else "gloo", place, world_size=ranks, rank=rank, **options)
    torch.set_default_dtype(torch.bfloat16)
    if has_gpu:
        torch.set_default_device("cuda")
        torch.cuda.set_device(local_rank)
    init_seed(seed)
    _seeds["local_rank"] = local_rank
    return rank, ranks, dist.new_group(list(range(ranks)))


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints on every rank, or on the first of each node that init_dist started, and waits for all."""
    if not once_in_node or _seeds.get("local_rank", 0) == 0:
        print(s, flush=True)
    dist.barrier()


def init_seed(global_seed: int) -> None:
    """Seeds torch and random with global_seed + rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    _seeds["global"], _seeds["local"] = global_seed, global_seed + rank
    torch.manual_seed(_seeds["local"])
    random.seed(_seeds["local"])


def get_local_seed() -> int:
    """global_seed + rank of the last init_seed."""
    return _seeds["local"]


def get_global_seed() -> int:
    """global_seed of the last init_seed."""
    return _seeds["global"]


class EnvOverride:
    """A `with` block with other environment variables.

    Args:
        envs: (name, value, whether it is to be set) each.
    """

    def __init__(self, envs: Sequence[tuple[str, str, bool]]) -> None:
        self.envs = {name: value for name, value, wanted in envs if wanted}

    def __enter__(self) -> EnvOverride:
        self._before = {name: os.environ.get(name) for name in self.envs}
        os.environ.update(self.envs)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def check_nvlink_connections(group: Any, *_: Any, **__: Any) -> None:
    """Returns: ranks reach each other by whatever their hosts offer, so there is no connection to ask for."""


def check_torch_deterministic() -> None:
    """Returns: outputs are complete before any stream reads them, also when torch fills what it allocates."""


def check_fast_rdma_atomic_support(nic_name: str = "") -> bool:
    """False: no network atomics are used."""
    return False


def get_nvlink_gbs(factor: float = 0.9) -> float:
    """0, upstream's word for "not known": nobody is asked. Tell get_theoretical_num_sms the bandwidth instead."""
    return 0.0


def get_rdma_gbs(nic_name: str = "") -> float:
    """0: as get_nvlink_gbs."""
    return 0.0


get_sm_read_gbs = get_sm_write_gbs = get_nvlink_gbs


# ---- comm ----------------------------------------------------------------------------------------------------------


def get_physical_domain_size(group_or_buffer: Any = None, *, group: Any = None) -> tuple[int, int]:
    """(nodes, ranks of the largest node) of a V2 or V2.5 buffer, or of a group (collective then). V2 says `group`.

    Raises:
        InvalidArgument: it is neither.
    """
    group_or_buffer = group if group_or_buffer is None else group_or_buffer
    if hasattr(group_or_buffer, "get_physical_domain_size"):
        nodes, ranks = group_or_buffer.get_physical_domain_size()
        return nodes, ranks
    hosts = as_group(group_or_buffer).all_gather_object(host_identity())
    topology = split_into_nodes(hosts, Settings.from_environment().ranks_per_node, _native.MAX_RANKS_PER_NODE)
    return topology.num_nodes, max(topology.sizes)


def get_logical_domain_size(
    group_or_buffer: Any = None, allow_hybrid_mode: bool | None = None, *, group: Any = None
) -> tuple[int, int]:
    """(1, N) of a buffer or group of N ranks: rows are never forwarded, so all ranks are one domain."""
    group_or_buffer = group if group_or_buffer is None else group_or_buffer
    if hasattr(group_or_buffer, "get_logical_domain_size"):
        _, ranks = group_or_buffer.get_logical_domain_size()
    else:
        ranks = as_group(group_or_buffer).size()
    return 1, ranks


def barrier(
    buffer: Any,
    wait_comm_stream: bool = True,
    with_cpu_sync: bool = False,
    sequential: bool = True,
    context_idx: int | None = None,
) -> None:
    """buffer.barrier(): the host always waits, so the other arguments make no difference."""
    buffer.barrier()


def get_comm_stream(buffer: Any) -> Any:
    """The stream that the buffer's kernels run on."""
    return buffer.get_comm_stream()


def destroy_all_managed_nccl_comm() -> None:
    """Returns: there is no NCCL communicator."""


# ---- semantic ------------------------------------------------------------------------------------------------------


def value_or(value: Any, default: Any) -> Any:
    """`value`, or `default` where it is None."""
    return default if value is None else value


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """functools.lru_cache for methods, which does not keep their object alive."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.lru_cache(maxsize, typed)
        def cached(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            return method(owner(), *arguments, **keywords)

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            return cached(weakref.ref(self), *arguments, **keywords)

        return call

    return decorate
