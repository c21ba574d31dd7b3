"""What stands around vLLM's DeepEP classes on a CPU: packages that are not installed, and what vLLM asks a GPU or NCCL.

Every stand-in is told as a shim. deepep_ht.py, deepep_ll.py and deepep_v2.py of prepare_finalize/ and the All2All
managers are the wheel's; of them only the one Triton kernel of deepep_v2.py is replaced, by the same in torch.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from tests.integrations.absent import stand_in
from tests.integrations.launch import RANKS_PER_NODE
from tests.integrations.world import World, quantized

# Imported by files on the way: web servers, parsers of structured output.
ABSENT = (
    "aiohttp", "openai_harmony", "openai", "uvloop", "xgrammar", "fastapi", "partial_json_parser", "llguidance"
)  # fmt: skip
BUFFER_MIB = 64
BLOCK = 128


class GlobalizeInTorch:
    """deepep_v2._globalize_recv_topk_idx_kernel: what it stores, called as kernel[grid](...) like a Triton kernel."""

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, topk: int, BLOCK: int) -> None:  # noqa: N803 the kernel's own name
        ids, prefix, ranks, offset, num_experts, elements = arguments
        received = (torch.arange(elements) // topk < prefix[ranks - 1]).view(ids.shape)
        keep = (ids >= 0) & (ids + offset < num_experts) & received
        ids.copy_(torch.where(keep, ids + offset, -1))


def _nodes(world: World) -> None:
    from vllm.distributed import parallel_state

    def same_node(group: Any, source_rank: int = 0) -> list[bool]:
        return [rank // RANKS_PER_NODE == source_rank // RANKS_PER_NODE for rank in range(world.size)]

    parallel_state.in_the_same_node_as = same_node
    world.shim("parallel_state.in_the_same_node_as: two nodes, as UCCL_EP_RANKS_PER_NODE says; all run on one host")


class _Event:
    """Of the CPU: everything before it is done."""

    def record(self, stream: Any = None) -> None:
        pass


def _one_order_of_work(world: World) -> None:
    """Streams and events that micro-batches are given on a GPU."""
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_ht
    from vllm.utils import torch_utils

    torch_utils.prev_set_stream = lambda stream: None
    torch.Event = _Event  # type: ignore[misc, assignment]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment]
    deepep_ht._dbo_record_stream = lambda *tensors: None
    world.shim(
        "torch.Event, torch.cuda.stream, torch.cuda.set_stream, deepep_ht._dbo_record_stream: one order of work (DBO)"
    )


def prepare(world: World) -> Any:
    """Makes vLLM importable and starts its own process groups: expert parallel over all ranks.

    Returns:
        Its VllmConfig.
    """
    os.environ["VLLM_DEEPEP_BUFFER_SIZE_MB"] = str(BUFFER_MIB)
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    stand_in(world, ABSENT)
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import all2all
    from vllm.model_executor.layers.fused_moe import modular_kernel, utils
    from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_v2

    _nodes(world)
    _one_order_of_work(world)
    modular_kernel.PIN_MEMORY = False
    world.shim("modular_kernel.PIN_MEMORY: False, no GPU could read pinned memory")
    utils.per_token_group_quant_fp8 = lambda x, group_size, **layout: quantized(x, group_size)
    world.shim("fused_moe.utils.per_token_group_quant_fp8: in torch; vLLM's own is a GPU kernel")
    deepep_v2._globalize_recv_topk_idx_kernel = GlobalizeInTorch()
    world.shim("deepep_v2._globalize_recv_topk_idx_kernel: in torch; vLLM's own is a Triton kernel")
    all2all.has_deep_ep_v2 = lambda: True
    all2all.DeepEPV2All2AllManager._check_gin_support = lambda self, group: None
    world.shim(
        "all2all.has_deep_ep_v2, DeepEPV2All2AllManager._check_gin_support: both ask for NCCL 2.30.4 and its GIN"
    )
    config = VllmConfig(device_config=DeviceConfig("cpu"))
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(world.size, world.rank, local_rank=world.rank, backend="gloo")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=world.size, backend="gloo")
    return config
