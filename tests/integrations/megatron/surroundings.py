"""What stands around Megatron on a CPU: its process groups, and stand-ins for the torch.cuda calls that it makes.

Every stand-in is told as a shim. None of them is in the code under test (fused_a2a, the dispatchers, the layers).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from tests.integrations.world import World


class NoStream:
    """torch.cuda.Stream where there is one processor and one order of work."""

    def wait_stream(self, other: Any) -> None:
        """Nothing runs beside this."""

    def record_event(self, event: Any = None) -> NoStream:
        return self

    def synchronize(self) -> None:
        """All is done."""


@contextmanager
def no_switch(stream: Any = None) -> Iterator[None]:
    """torch.cuda.stream(...)"""
    yield


def _accept_tensor_splits(world: World) -> None:
    """Megatron's alltoall copies its split sizes from a GPU as numpy arrays, and leaves a CPU's tensors as they are."""
    original = distributed.all_to_all_single

    def all_to_all_single(output: Any, rows: Any, out_splits: Any = None, in_splits: Any = None, **more: Any) -> Any:
        out_splits, in_splits = more.pop("output_split_sizes", out_splits), more.pop("input_split_sizes", in_splits)
        listed = [s.tolist() if isinstance(s, torch.Tensor) else s for s in (out_splits, in_splits)]
        return original(output, rows, *listed, **more)

    distributed.all_to_all_single = all_to_all_single
    world.shim("torch.distributed.all_to_all_single: split sizes also as CPU tensors (for alltoall, the yardstick)")


def _zeros_on_the_cpu(world: World) -> None:
    """0.19 makes the hybridep manager's overflow flag on "cuda" by name, whatever device the rows are on."""
    original = torch.zeros

    def zeros(*size: Any, device: Any = None, **more: Any) -> torch.Tensor:
        return original(*size, device="cpu" if device == "cuda" else device, **more)

    torch.zeros = zeros
    world.shim('torch.zeros: the CPU where "cuda" is asked for (a flag that 0.19\'s hybridep manager makes)')


def prepare(world: World) -> None:
    """Initialises Megatron's groups with all ranks in one expert-parallel group."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import moe_utils

    one = NoStream()
    torch.cuda.Stream = lambda *a, **k: one
    torch.cuda.current_stream = lambda *a, **k: one
    torch.cuda.stream = no_switch
    world.shim("torch.cuda.Stream, current_stream, stream: one order of work (for alltoall, the yardstick)")
    torch.cuda.current_device = lambda: torch.device("cpu")
    world.shim("torch.cuda.current_device: the CPU (tensors that Megatron makes itself)")
    tracker = tensor_parallel.get_cuda_rng_tracker()
    tracker.fork = no_switch
    world.shim("CudaRNGStatesTracker.fork: no states to keep, all dropout is 0")
    _accept_tensor_splits(world)
    _zeros_on_the_cpu(world)
    # Without transformer_engine, 0.16.1 forgets to define the name that it then compares with None.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    world.shim("moe_utils.te_general_gemm: None, as for every other transformer_engine name that is not there")
    parallel_state.initialize_model_parallel(expert_model_parallel_size=world.size)
