"""vLLM's plugin: an entry point of `vllm.general_plugins`, which every process of a server calls as it starts.

It does nothing unless VLLM_PLUGINS names `uccl_ep`. Then `import deep_ep` is answered by uccl_ep, for vLLM's DeepEP
backends on GPUs; and where vLLM runs on CPUs, ranks that share experts exchange rows through a Buffer. vLLM's own
manager asks its CPU communicator for a gather that this one does not have.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from uccl_ep.drop_in.hook import install_as_deep_ep
from uccl_ep.errors import NotSupported

NAME = "uccl_ep"
_log = logging.getLogger("vllm.uccl_ep")  # below vLLM's own, so that its lines look like the server's


def register() -> None:
    """What the entry point calls; idempotent. See the top of this file."""
    if NAME not in [name.strip() for name in os.environ.get("VLLM_PLUGINS", "").split(",")]:
        return
    install_as_deep_ep()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.distributed.device_communicators import all2all

        all2all.AgRsAll2AllManager = manager_class()  # what CpuCommunicator takes, whatever backend is asked for


def refusal(config: Any) -> str:
    """Why a server with this VllmConfig cannot share experts through a Buffer on CPUs, or "" where it can."""
    parallel, model = config.parallel_config, config.model_config
    if not parallel.enable_expert_parallel:
        return "ranks that share layers without --enable-expert-parallel: add it"
    if not model.enforce_eager:
        return "compiled models, since the number of received rows is known only as they come: add --enforce-eager"
    if str(model.dtype) != "torch.bfloat16":
        return f"rows of {model.dtype}: add --dtype bfloat16"
    if parallel.all2all_backend != "allgather_reducescatter":
        return f"--all2all-backend {parallel.all2all_backend} on CPUs: leave it out"
    if parallel.enable_eplb or parallel.expert_placement_strategy != "linear":
        return "experts that move or lie in turns: leave out --enable-eplb and --expert-placement-strategy"
    return ""


def manager_class() -> type:
    """The class that vLLM's communicators make one of for each group that shares experts."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_ep_group
    from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase

    from uccl_ep.drop_in.row_exchange import RowExchange

    class UcclEpAll2AllManager(All2AllManagerBase):  # type: ignore[misc]  # vLLM has no types
        """Rows go to the ranks of their experts only, once per node; ids arrive as the rank's own."""

        def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
            super().__init__(cpu_group, tcp_store_group)
            config = get_current_vllm_config()
            if why := refusal(config):
                raise NotSupported(f"uccl_ep does not serve {why}")
            model = config.model_config
            self.exchange = RowExchange(cpu_group, model.get_hidden_size(), model.get_num_experts())
            buffer = self.exchange.buffer
            _log.info(
                "Using uccl_ep.Buffer for experts: rank %d of %d, %d of %d experts here.",
                buffer.rank, buffer.group_size, model.get_num_experts() // buffer.group_size, model.get_num_experts(),
            )  # fmt: skip

        def dispatch(
            self,
            hidden_states: Any,
            topk_weights: Any,
            topk_ids: Any,
            is_sequence_parallel: bool = False,
            extra_tensors: list[Any] | None = None,
        ) -> tuple[Any, Any, Any]:
            if extra_tensors:
                raise NotSupported("uccl_ep does not serve rows with scales or LoRA ids on CPUs")
            if get_ep_group().world_size != self.dp_world_size and not is_sequence_parallel:
                raise NotSupported(
                    "uccl_ep does not serve this model with --tensor-parallel-size above 1 on CPUs: its "
                    "tensor-parallel ranks would send the same rows"
                )
            return self.exchange.dispatch(hidden_states, topk_weights, topk_ids)

        def dispatch_router_logits(self, *arguments: Any, **named: Any) -> Any:
            raise NotSupported("uccl_ep does not serve experts that route rows themselves, as int4 ones on CPUs do")

        def combine(self, hidden_states: Any, is_sequence_parallel: bool = False) -> Any:
            return self.exchange.combine(hidden_states)

        def destroy(self) -> None:
            self.exchange.buffer.destroy()

    return UcclEpAll2AllManager
