"""Which names `deep_ep` and its submodules have, and where in uccl_ep each of them lives.

One table for both forms of the drop-in (the import hook here, the separate distribution in docker/deep_ep). Names are
resolved when they are first used, so `import deep_ep` cannot fail: a broken installation shows as an ImportError from
`from deep_ep import Buffer`, which is what integrators catch.
"""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
from typing import Any

from uccl_ep import __version__

VERSIONS = {"deep_ep": "2.1.0", "deep_ep_v25": "2.5.0", "deep_ep_cpp": "2.1.0"}
"""By package, upstream's release whose interfaces its names follow."""

_HELPERS = "uccl_ep.drop_in.helpers"


def _homes(table: dict[str, str]) -> dict[str, str]:
    """Name -> module that has it under the same name, from module -> names; a leading dot is the helpers' package."""
    return {
        name: f"{_HELPERS}{home}" if home.startswith(".") else home
        for home, names in table.items()
        for name in names.split()
    }


# Both event classes are in every module that had one of them, because integrators import them from either (upstream has
# dropped one of the four, and so turned Megatron's path off).
_EVENTS = _homes({"uccl_ep.device.protocol": "EventHandle", "uccl_ep.events": "EventOverlap"})
_V1 = _homes({"uccl_ep.buffer": "Buffer", "uccl_ep.config": "Config"}) | _EVENTS
_V2 = _homes({"uccl_ep.elastic": "ElasticBuffer EPHandle"}) | _EVENTS
_V25 = _homes({"uccl_ep.elastic": "EPBuffer EPHandle"}) | _EVENTS
_BASE, _ALLOCATOR = _homes({"uccl_ep.elastic.base": "BufferBase"}), _homes({"uccl_ep.elastic.base": "BufferAllocator"})
_BUCKET = _homes({"uccl_ep.elastic.bucket": "BucketBuffer BucketSession"})
_DOMAINS = _homes({".process": "get_physical_domain_size get_logical_domain_size"})
_NCCL = _homes({".process": "destroy_all_managed_nccl_comm", ".refused": "NCCLCommHandle get_nccl_comm_handle"})
_BARRIER, _STREAM = _homes({".process": "barrier"}), _homes({".process": "get_comm_stream"})
_IDS = {"topk_idx_t": "uccl_ep"}
_MATH = _homes({
    ".numbers": "calc_diff safe_div ceil_div align per_token_cast_to_fp8 per_token_cast_back inplace_unique "
    "create_grouped_scores hash_tensor hash_tensors count_bytes",
})  # fmt: skip
_ENVS = _DOMAINS | _homes({
    ".process": "init_dist dist_print init_seed get_local_seed get_global_seed EnvOverride check_nvlink_connections "
    "check_torch_deterministic check_fast_rdma_atomic_support get_nvlink_gbs get_rdma_gbs get_sm_read_gbs "
    "get_sm_write_gbs",
})  # fmt: skip
_TESTING = _homes({
    ".numbers": "parse_num_bytes",
    ".timing": "bench flush_l2_cache empty_suppress suppress_stdout_stderr",
    ".refused": "bench_kineto",
})  # fmt: skip
_GATE = _homes({
    ".refused": "generate_topk_idx generate_rank_count get_precise_unbalanced_scores get_scores_by_factor "
    "map_unbalanced_ratio_to_factor get_random_unbalanced_scores get_unbalanced_scores",
})  # fmt: skip
_NIXL = _homes({"uccl_ep.drop_in.nixl_ep": "Buffer"})
_UCCL = _homes({".process": "check_nvlink_connections", ".refused": "initialize_uccl destroy_uccl"})
_UCCL_UTILS = _homes({
    ".refused": "init_dist_under_torchrun detect_group_topology get_peer_ip get_cpu_proxies_meta detect_ib_hca",
})  # fmt: skip
_START = _homes({".refused": "init_jit check_nccl_so find_nccl_root"})
_TOP_V25 = _DOMAINS | _START | _V25 | _BASE | _ALLOCATOR | _BUCKET | _IDS | _homes({
    ".process": "destroy_all_managed_nccl_comm",
    ".refused": "EngramBuffer PPBuffer",
    "uccl_ep.elastic.base": "get_num_allocation_alignment get_num_rdma_alignment get_num_tma_alignment",
})  # fmt: skip

# Below the package, of V2.5 as of V2.
_BELOW: dict[str, dict[str, str]] = {
    "envs": _homes({".process": "persistent_envs"}),
    "buffers": {},
    "buffers.allocator": _ALLOCATOR,
    "buffers.base": _BASE,
    "buffers.bucket": _BUCKET,
    "buffers.engram": _homes({".refused": "EngramBuffer"}),
    "buffers.ep": _V25,
    "buffers.pp": _homes({".refused": "PPBuffer"}),
    "comm": _DOMAINS | _NCCL | _STREAM | _BARRIER,
    "comm.handle": _DOMAINS | _NCCL,
    "comm.stream": _STREAM,
    "utils": _EVENTS,
    "utils.comm": _NCCL,
    "utils.envs": _ENVS,
    "utils.event": _EVENTS,
    "utils.find_pkgs": _homes({".refused": "find_pkg_root find_nccl_root find_nvshmem_root get_nccl_lib_name"}),
    "utils.gate": _GATE,
    "utils.math": _MATH,
    "utils.refs": _homes({".refused": "dispatch combine generate_pre_combine_data ordered_accumulate"}),
    "utils.semantic": _homes({".process": "value_or weak_lru"}),
    "utils.testing": _TESTING,
}
_HYBRID = _homes({"uccl_ep.elastic.hybrid": "HybridEPBuffer indices_to_map", ".refused": "HybridEpConfigInstance"})

# Module, then name: the module that has it under the same name.
MODULES: dict[str, dict[str, str]] = {
    "deep_ep": _V1 | _V2 | _TOP_V25 | _UCCL | {k: v for k, v in _HYBRID.items() if k != "indices_to_map"}
    | _homes({".refused": "find_cuda_home"}),
    **{f"deep_ep.{name}": names for name, names in _BELOW.items()},
    "deep_ep.buffer": _V1,
    "deep_ep.buffer_rocm": _V1,
    "deep_ep.buffers.legacy": _V1,
    "deep_ep.buffers.elastic": _V2,
    "deep_ep.hybrid_ep_buffer": _HYBRID,
    "deep_ep.utils": _BELOW["utils"] | _MATH | _ENVS | _TESTING | _UCCL | _UCCL_UTILS,  # V1's was one flat module
    "deep_ep_v25": _TOP_V25,
    **{f"deep_ep_v25.{name}": names for name, names in _BELOW.items()},
    "deep_ep_cpp": _homes({"uccl_ep.config": "Config", "uccl_ep.device.protocol": "EventHandle"}) | _IDS,
    "nixl_ep": _NIXL | _EVENTS | _IDS,
    "nixl_ep.buffer": _NIXL | _EVENTS | _homes({"uccl_ep.drop_in.nixl_ep": "DEFAULT_TIMEOUT_MS"}),
    "nixl_ep.utils": _homes({"uccl_ep.events": "EventOverlap"}),
}  # fmt: skip

PACKAGES = frozenset(name.rpartition(".")[0] for name in MODULES if "." in name)
TOP_LEVEL = frozenset(name.partition(".")[0] for name in MODULES)


def version_of(package: str) -> str:
    """`deep_ep.__version__`, or another package's: compares as upstream's release, and says whose code it is."""
    return f"{VERSIONS[package]}+uccl.ep.{__version__}"


def fill(module: str, namespace: MutableMapping[str, Any]) -> None:
    """Gives a module's namespace its names: `__getattr__`, `__dir__`, `__all__` and, at the top, `__version__`.

    Args:
        module: a key of `MODULES`.
        namespace: the module's `globals()`.
    """
    names = MODULES[module]
    submodules = [name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == module]

    def resolve(name: str) -> Any:
        if name in names:
            try:
                return namespace.setdefault(name, getattr(importlib.import_module(names[name]), name))
            except ImportError:
                raise
            except Exception as error:  # integrators catch ImportError only, and then go on without
                raise ImportError(f"{module}.{name}: {names[name]} cannot be loaded: {error}") from error
        if name in submodules:  # `deep_ep.utils.EventOverlap` without an import of `deep_ep.utils`
            return importlib.import_module(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r} (uccl_ep {__version__} stands in for it)")

    namespace["__getattr__"] = resolve
    namespace["__all__"] = sorted(names)
    namespace["__dir__"] = lambda: sorted({*namespace, *names, *submodules})
    if module in VERSIONS:
        namespace["__version__"] = version_of(module)
