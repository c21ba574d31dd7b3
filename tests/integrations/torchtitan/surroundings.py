"""What stands around TorchTitan's token dispatchers on a CPU: empty packages, and its custom operators for that device.

Every stand-in is told as a shim. The functions behind the operators are the wheel's: they are registered for CUDA only,
and here the same functions are registered for the CPU as well.
"""

from __future__ import annotations

from typing import Any

from tests.integrations.absent import stand_in
from tests.integrations.world import World

ABSENT = ("docstring_parser", "triton")  # of the command line; of another dispatcher (minimal_async_ep)


def prepare(world: World) -> Any:
    """Makes TorchTitan importable, and its operators callable. Returns the device mesh of all ranks."""
    stand_in(world, ABSENT)
    from torch._library import opaque_object
    from torch.distributed.device_mesh import init_device_mesh

    if not hasattr(opaque_object, "CustomClassBase"):
        opaque_object.CustomClassBase = opaque_object.OpaqueBase
        world.shim("torch._library.opaque_object.CustomClassBase: OpaqueBase, its name in this torch")
    from torchtitan.distributed.deepep import deepep, hybridep

    deepep._lib.impl("dispatch", deepep._dispatch_op_impl, "CPU")
    deepep._lib.impl("combine", deepep._combine_op_impl, "CPU")
    world.shim("torch.ops.deepep.dispatch, combine: TorchTitan's own functions, registered for the CPU too")
    for operator in (hybridep._dispatch_impl, hybridep._combine_impl, hybridep._dispatch_bwd_impl,
                     hybridep._combine_bwd_impl):  # fmt: skip
        operator.register_kernel("cpu")(operator._init_fn)
    world.shim("torch.ops.hybridep.*: TorchTitan's own functions, registered for the CPU too")
    return init_device_mesh("cpu", (world.size,))
