"""What stands around SGLang's dispatchers on a CPU: packages that its package imports and they do not use.

Every stand-in is told as a shim; deepep.py and deepep_v2.py of sglang/srt/layers/moe/token_dispatcher/ are the wheel's.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch
from torch import Tensor

from tests.integrations.absent import stand_in
from tests.integrations.world import World, quantized

# Imported by files on the way to the dispatchers: GPU compilers, a web server, images, other weight formats.
ABSENT = (
    "triton",
    "tvm_ffi",
    "torchvision",
    "gguf",
    "starlette",
    "aiohttp",
    "IPython",
    "openai",
    "partial_json_parser",
)


def prepare(world: World) -> None:
    """Makes SGLang importable, and lets it choose what a server with DeepGEMM would."""
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # transformers remembers: what follows must not look like torchvision
    if hasattr(import_utils, "is_torchvision_v2_available"):
        import_utils.is_torchvision_v2_available()
    stand_in(world, ABSENT)
    os.environ["SGLANG_DEEPEP_BF16_DISPATCH"] = "1"  # FP8 in normal mode is quantised by SGLang's own GPU kernel

    from sglang.srt.layers import deep_gemm_wrapper

    deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM = True
    world.shim("deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM: True (normal combine refuses other runners); nothing of it runs")
    from sglang.srt.layers.moe import utils

    utils.get_server_args = lambda: None  # the function's own word for "there is no server"
    world.shim("moe.utils.get_server_args: None, there is no server")
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=132)
    world.shim("torch.cuda.get_device_properties: 132 SMs, which SGLang compares with Buffer.num_sms for a warning")


def _quantize(x: Tensor, group_size: int, **layout: Any) -> tuple[Tensor, Tensor]:
    if layout["scale_ue8m0"]:
        raise RuntimeError(f"a layout that is not tested: {layout}")
    rows, scales = quantized(x, group_size)
    if not layout["column_major_scales"]:
        return rows, scales
    stored = torch.zeros(scales.shape[1], -(-scales.shape[0] // 4) * 4).T[: scales.shape[0]]  # as TMA loads them
    return rows, stored.copy_(scales)


def prepare_v2(world: World) -> None:
    """What deepep_v2.py asks beyond that: of a server, and of a GPU."""
    from sglang.srt.layers.moe.token_dispatcher import deepep_v2
    from sglang.srt.runtime_context import get_parallel

    moe = types.SimpleNamespace(deepep_v2_mode="direct")
    deepep_v2.get_exec = lambda: types.SimpleNamespace(moe=moe)
    get_parallel().override_permanently(attn_dp_size=world.size)
    world.shim("deepep_v2.get_exec: moe.deepep_v2_mode is direct; there is no server to publish it")
    deepep_v2.sglang_per_token_group_quant_fp8 = _quantize
    world.shim("deepep_v2.sglang_per_token_group_quant_fp8: in torch; SGLang's own is a GPU kernel")
