"""Names of `deep_ep` that are of DeepEP's own build, kernels and tests: importable, and refused when they are used."""

from __future__ import annotations

from typing import Any

from uccl_ep.refused import EXPERIMENTAL, refusal, refused_class

_START = "it is part of DeepEP's start-up, of which nothing is needed here"
_NCCL = "there is no NCCL communicator"
_TESTS = "it is of DeepEP's own tests; copy it from there, or see uccl_ep.reference for what calls must return"
_UCCL = "it is of uccl's proxies; a Buffer starts, connects and ends its own"

CLASSES = {
    "EngramBuffer": f"Engram {EXPERIMENTAL}",
    "PPBuffer": f"pipeline send and receive {EXPERIMENTAL}",
    "HybridEpConfigInstance": "kernels are not built for a configuration here; pass sizes to HybridEPBuffer",
    "NCCLCommHandle": _NCCL,
}
FUNCTIONS = {
    **dict.fromkeys(
        "init_jit check_nccl_so find_cuda_home find_nccl_root find_nvshmem_root find_pkg_root".split(), _START
    ),
    "get_nccl_lib_name": _START,
    "get_nccl_comm_handle": _NCCL,
    **dict.fromkeys("generate_topk_idx generate_rank_count get_precise_unbalanced_scores".split(), _TESTS),
    **dict.fromkeys("get_scores_by_factor map_unbalanced_ratio_to_factor get_random_unbalanced_scores".split(), _TESTS),
    **dict.fromkeys(
        "get_unbalanced_scores dispatch combine generate_pre_combine_data ordered_accumulate".split(), _TESTS
    ),
    "bench_kineto": "it names DeepEP's kernels to the profiler; use bench, or uccl-ep bench",
    **dict.fromkeys("initialize_uccl destroy_uccl init_dist_under_torchrun detect_group_topology".split(), _UCCL),
    **dict.fromkeys("get_peer_ip get_cpu_proxies_meta detect_ib_hca".split(), _UCCL),
}


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        return globals().setdefault(name, refused_class(name, CLASSES[name]))
    if name in FUNCTIONS:
        return globals().setdefault(name, refusal(name, FUNCTIONS[name]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
