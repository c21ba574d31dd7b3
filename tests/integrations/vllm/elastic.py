"""vLLM's NixlEPAll2AllManager, through which its elastic expert parallelism runs: two ranks, then four, then two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from tests.integrations.world import World, relative

FIRST = 2  # ranks that serve before the others join, and after they have left


def run_elastic(world: World, sizes: dict[str, int], step: Callable[[Any, int], tuple[Tensor, Tensor]]) -> None:
    """Scales up in vLLM's two stages, with calls between them, and down again.

    Args:
        sizes: what a layer asks the manager's get_handle for.
        step: (prepare_finalize, ranks): the rows that come back, and those wanted.
    """
    from vllm.config import get_current_vllm_config
    from vllm.distributed.device_communicators.all2all import NixlEPAll2AllManager
    from vllm.model_executor.layers.fused_moe.prepare_finalize.nixl_ep import NixlEPPrepareAndFinalize

    torch.accelerator.synchronize = lambda *device: None  # type: ignore[assignment]
    world.shim("torch.accelerator.synchronize: nothing; there is no accelerator")
    parallel = get_current_vllm_config().parallel_config
    groups = [distributed.new_group(list(range(FIRST))), distributed.new_group(), distributed.new_group([0, 1])]
    here = world.rank < FIRST

    def manager(group: Any) -> Any:
        for name, value in (("enable_elastic_ep", True), ("elastic_ep_max_dp_size", world.size)):
            object.__setattr__(parallel, name, value)
        object.__setattr__(parallel, "data_parallel_size", group.size())
        return NixlEPAll2AllManager(group)

    def layer(of: Any) -> Any:
        buffer = of.get_handle(sizes)
        if type(buffer).__module__ != "uccl_ep.drop_in.nixl_ep":
            raise RuntimeError(f"vLLM's buffer is of {type(buffer).__module__}")
        most = sizes["max_num_tokens_per_dp_rank"]
        return NixlEPPrepareAndFinalize(
            buffer, most, of.max_num_ep_ranks, sizes["num_local_experts"] * of.max_num_ep_ranks
        )

    def row(what: str, one: Any, ranks: int) -> None:
        error = 0.0
        if world.rank < ranks:
            error = relative(*step(one, ranks))
        world.row(f"NixlEPPrepareAndFinalize, {what}", error, 0.02)

    one = layer(manager(groups[0])) if here else None
    row(f"{FIRST} ranks", one, FIRST)
    larger = manager(groups[1])
    if here:
        larger.stage_ep_size()
    else:
        one = layer(larger)  # connects, and waits until they let it in
    row(f"{FIRST} ranks while two more are staged", one, FIRST)
    if here:
        larger.commit_ep_size()
    for turn in ("scaled up", "scaled up, again"):
        row(f"{world.size} ranks, {turn}", one, world.size)
    buffer = NixlEPAll2AllManager._buffer.buffer
    distributed.barrier()
    if here:
        manager(groups[2]).commit_ep_size()
    else:
        buffer.destroy()
    row(f"{FIRST} ranks, scaled down", one, FIRST)
    if here:
        buffer.destroy()
