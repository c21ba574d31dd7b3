"""EPBuffer: DeepEP's V2.5 interface, a thin layer over ElasticBuffer."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic.arguments import behind, check_ignored, ended
from uccl_ep.elastic.balance import LoadBalancing
from uccl_ep.elastic.base import BufferAllocator, BufferBase, Region
from uccl_ep.elastic.buffer import ElasticBuffer
from uccl_ep.elastic.carrier import Carrier
from uccl_ep.elastic.dispatch import Call
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.errors import named, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.system.ownership import in_turn

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]
_ATTRIBUTES = (
    "group rank_idx num_ranks num_bytes num_max_tokens_per_rank allow_hybrid_mode allow_multiple_reduction "
    "prefer_overlap_with_compute deterministic num_allocated_qps num_scaleout_ranks num_scaleup_ranks "
    "scaleout_rank_idx scaleup_rank_idx num_rdma_ranks num_nvlink_ranks explicitly_destroy nccl_comm_handle"
)


class EPBuffer(LoadBalancing, BufferBase):
    """ElasticBuffer with V2.5's arguments; see there for what they mean, for shapes, and for the attributes.

    Args that differ: no num_cpu_bytes; sl_idx None.
        lb_allocation_plan_or_num_bytes: the region of redundant experts: a BufferAllocator, whose tensors get their
            memory here, or a multiple of 2 MiB, for a caller that cuts `lb_storage` itself; 0: none.

    Raises:
        InvalidArgument, SettingsMismatch, UcclEpError: as ElasticBuffer.
    """

    @named
    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: BufferAllocator | int = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        device: str | None = None,
    ) -> None:
        self._lb_region = Region("lb_allocation_plan_or_num_bytes", lb_allocation_plan_or_num_bytes)
        self.num_lb_bytes = self._lb_region.num_bytes
        self._elastic = ElasticBuffer(
            group,
            num_bytes,
            0,
            num_max_tokens_per_rank,
            hidden,
            num_topk,
            use_fp8_dispatch,
            deterministic,
            allow_hybrid_mode,
            allow_multiple_reduction,
            prefer_overlap_with_compute,
            num_allocated_qps=num_allocated_qps,
            explicitly_destroy=explicitly_destroy,
            device=device,
        )
        self._owner, self._rows = self._elastic._owner, self._elastic._buffer
        self._lb_region.make(self._rows._device.where)
        self._meet()
        self.prepare_members = self._elastic.prepare_members
        self.barrier = self._elastic.barrier
        self.get_comm_stream = self._elastic.get_comm_stream
        self.get_physical_domain_size = self._elastic.get_physical_domain_size
        self.get_logical_domain_size = self._elastic.get_logical_domain_size

    def _meet(self) -> None:
        """What follows from who the members are."""
        self._carrier = Carrier(self._rows)
        for name in _ATTRIBUTES.split():
            setattr(self, name, getattr(self._elastic, name))

    def switch_members(self) -> bool:
        """As ElasticBuffer.switch_members. The load-balancing region stays as it is: its mapping is by rank."""
        switched = self._elastic.switch_members()
        if switched:
            self._meet()
        return switched

    def print_memory_usage(self) -> None:
        """Prints what this rank has allocated, by purpose."""
        print(self._rows.memory_bill(), self._lb_region, sep="\n")

    def destroy(self) -> None:
        """As ElasticBuffer.destroy. Tensors in the load-balancing region stay as long as the caller has them."""
        self._elastic.destroy()

    @property
    def runtime(self) -> Any:
        """What is behind the buffer; None after destroy()."""
        return self._elastic.runtime

    get_buffer_size_hint = staticmethod(ElasticBuffer.get_buffer_size_hint)
    capture = staticmethod(ElasticBuffer.capture)
    _unpack_bias = staticmethod(ElasticBuffer._unpack_bias)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """As ElasticBuffer.get_theoretical_num_sms; bandwidths in GB/s, of which 0 means not known."""
        gbs = rdma_gbs, nvlink_gbs, sm_read_gbs, sm_write_gbs
        return self._elastic.get_theoretical_num_sms(num_experts, num_topk, num_scaleout_topk, *gbs)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """As ElasticBuffer.get_theoretical_num_qps."""
        return self._elastic.get_theoretical_num_qps(num_sms)

    @in_turn("dispatch")
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
        *,
        max_recv_tokens_per_rank: int | None = None,
        overflow_policy: str = "trap",
    ) -> Any:
        """ElasticBuffer.dispatch, with two differences.

        The handle keeps the caller's topk_idx (do_handle_copy must be False) and refuses to be used when it was changed
        in place. With defer_epilogue (and async_with_compute_stream) only an event is returned: its wait() or
        current_stream_wait() does the expansion and returns (recv_x, recv_topk_idx, recv_topk_weights, handle). The
        host's wait for counts, if there is one, is not deferred.
        """
        if checks.check_bool("do_handle_copy", do_handle_copy):
            refuse("do_handle_copy", True, "False: V2.5's handles keep the caller's topk_idx")
        check_ignored(num_qps=num_qps)
        if checks.check_bool("defer_epilogue", defer_epilogue) and not async_with_compute_stream:
            refuse("defer_epilogue", True, "False without async_with_compute_stream=True")
        if handle is not None and isinstance(handle, EPHandle):
            _ = handle.topk_idx  # unchanged?
        call = Call(
            given=(num_experts, num_max_tokens_per_rank, expert_alignment),
            num_sms=num_sms,
            stats=cumulative_local_expert_recv_stats,
            before=(behind(previous_event, allocate_on_comm_stream), None),
            copies=False,
            cpu_sync=do_cpu_sync,
            expand=checks.check_bool("do_expand", do_expand),
            zero_padding=checks.check_bool("do_zero_padding", do_zero_padding),
            column_major=checks.check_bool("use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf),
            bound=(max_recv_tokens_per_rank, overflow_policy),
        )
        finish = self._elastic._start(x, topk_idx, topk_weights, handle, call)
        event = ended(async_with_compute_stream)
        if defer_epilogue:
            event.register_hook_after_wait(finish)
            return event
        return *finish(), event

    @named
    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
        *,
        out: Tensor | None = None,
    ) -> Any:
        """ElasticBuffer.combine; with defer_epilogue only an event, whose wait() returns (combined_x, weights)."""
        if checks.check_bool("defer_epilogue", defer_epilogue) and not async_with_compute_stream:
            refuse("defer_epilogue", True, "False without async_with_compute_stream=True")
        combined, weights, event = self._elastic.combine(
            x,
            handle,
            topk_weights,
            bias,
            num_sms,
            num_qps,
            previous_event,
            async_with_compute_stream=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream,
            out=out,
        )
        if defer_epilogue:
            event.register_hook_after_wait(lambda: (combined, weights))
            return event
        return combined, weights, event
