"""Buffer: DeepEP's V1 interface, with the union of all branches' keyword arguments.

Shapes use T = this rank's tokens, K = top-k, N = ranks, E = experts, L = E / N local experts, H = hidden channels,
M = num_max_dispatch_tokens_per_rank, P = N * M, R = nodes. The contract's numbers (orders, roundings, strides) are
what `uccl_ep.reference` computes; tests hold the two together row by row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from uccl_ep import checks
from uccl_ep.collective import Collective
from uccl_ep.config import Config, combine_config, dispatch_config
from uccl_ep.device import CpuDevice, EventHandle
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group import as_group
from uccl_ep.low_latency import BF16, FP8, FP8_UE8M0, LowLatency
from uccl_ep.low_latency import Handle as LowLatencyHandle
from uccl_ep.memory import MemoryBill, low_latency_size_hint
from uccl_ep.session import Session
from uccl_ep.settings import settings
from uccl_ep.stats import collect_stats
from uccl_ep.throughput import Rows, Throughput, ThroughputHandle
from uccl_ep.throughput_api import ThroughputApi

Tensor = torch.Tensor
_GIB = 1 << 30


class Buffer(ThroughputApi):
    """Memory, proxy and kernels of one rank for expert-parallel dispatch and combine. Making one is collective.

    Args:
        group: torch ProcessGroup of any backend (only rank, size and all_gather_object are used), a ThreadGroup, or
            None with `comm`.
        num_nvl_bytes: bytes for throughput rings, per rank; see Config.get_nvl_buffer_size_hint.
        num_rdma_bytes: with low_latency_mode the low-latency rows (get_low_latency_rdma_size_hint); without it, more
            memory for throughput rings.
        low_latency_mode: allow low_latency_dispatch and low_latency_combine.
        explicitly_destroy: destroy() will be called; a reminder is printed when it was not.
        enable_shrink: a peer that does not come within the deadline is masked instead of failing the call.
        comm: an mpi4py-like communicator instead of `group`.
        device: "cpu", or None for what UCCL_EP_DEVICE says.

    The other arguments belong to DeepEP's networks (num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl,
    use_fabric, allow_nvlink_for_normal_mode, eager_support, is_intranode): accepted, and without effect here, where
    paths are chosen from what the ranks' hosts offer.

    Raises:
        InvalidArgument: an argument or a UCCL_EP_* variable is out of range.
        SettingsMismatch: ranks were started with different arguments; names each and every rank's value.
        UcclEpError: a rank failed to start; every rank raises the same message.

    Every other method raises PeerTimeout when a wait for a peer passes UCCL_EP_TIMEOUT_S and PeerLost when a peer's
    process or connection has ended; the buffer is unusable after either.
    """

    num_sms: ClassVar[int] = 20

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool | None = None,
        allow_nvlink_for_normal_mode: bool = True,
        eager_support: bool = False,
        is_intranode: bool | None = None,
        device: str | None = None,
    ) -> None:
        self.runtime: Session | None = None
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value % 128:
                refuse(name, value, "a multiple of 128, 0 or more")
        if num_qps_per_rank < 1:
            refuse("num_qps_per_rank", num_qps_per_rank, "1 or more")
        if low_latency_mode and num_rdma_bytes == 0:
            refuse("num_rdma_bytes", 0, "the low-latency size", "Buffer.get_low_latency_rdma_size_hint gives it.")
        environment = settings()
        wanted = device or environment.device
        if wanted not in ("auto", "cpu"):
            raise NotSupported(f"device={wanted}: this version runs its kernels on the CPU only; use cpu or auto")
        self.group = group if group is not None else comm
        adapted = as_group(group, comm)
        self.rank, self.group_size = adapted.rank(), adapted.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = bool(low_latency_mode)
        self.explicitly_destroy = bool(explicitly_destroy)
        self.enable_shrink = bool(enable_shrink)
        self.nvshmem_qp_depth = 1 << 16  # integrators compare it with their token count; rings have no such limit
        self.runtime = Session(
            adapted, (num_nvl_bytes, num_rdma_bytes), self.low_latency_mode, self.enable_shrink, environment
        )
        self._device = CpuDevice(environment, self.runtime.check)
        self._collective = Collective(self.runtime, self._device)
        self._low_latency = LowLatency(self.runtime, self._device)
        self._throughput = Throughput(self.runtime, self._device)

    # ---- life --------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Ends the proxy and frees the memory. Not collective; idempotent."""
        session, self.runtime = self.runtime, None
        if session is None:
            return
        try:
            self._device.comm_stream.synchronize()
        finally:
            session.close()

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None:
            return
        if self.explicitly_destroy:
            warnings.warn("uccl_ep.Buffer was made with explicitly_destroy=True but never destroyed", stacklevel=1)
        self.destroy()

    @property
    def _session(self) -> Session:
        if self.runtime is None:
            raise InvalidArgument("this Buffer has been destroyed")
        return self.runtime

    # ---- static helpers ----------------------------------------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 paths exist; they do, on every device."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """SMs of configs made from now on (class attribute num_sms); even."""
        if new_num_sms < 0 or new_num_sms % 2:
            refuse("new_num_sms", new_num_sms, "an even number, 0 or more")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap[EventHandle]:
        """An event on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """num_rdma_bytes for low latency: slots per peer node, not per expert (uccl_ep.memory_bill itemises it)."""
        return low_latency_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The dispatch Config for a rank count; any count from 1."""
        return dispatch_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The combine Config for a rank count; any count from 1."""
        return combine_config(num_ranks, Buffer.num_sms)

    def get_comm_stream(self) -> Any:
        """The stream that communication kernels run on."""
        return self._device.comm_stream

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Tensor:
        """A view of this rank's raw memory: the low-latency rows with use_rdma_buffer, else the throughput rings.

        Args:
            dtype: element type of the view.
            size: shape; None gives all of it, flat.
            offset: where it starts, in bytes (as upstream's runtime has it), a multiple of the element size.
        """
        plan = self._session.plan
        begin = plan.low_latency_base if use_rdma_buffer else plan.throughput.base
        length = plan.low_latency_budget if use_rdma_buffer else plan.throughput.bytes()
        element = dtype.itemsize
        wanted = length - offset if size is None else size.numel() * element
        if offset < 0 or offset % element or wanted < 0 or offset + wanted > length:
            refuse("size and offset", (size, offset), f"a span inside {length} bytes")
        span = self._session.data[begin + offset : begin + offset + wanted // element * element].view(dtype)
        return span if size is None else span.view(size)

    def memory_bill(self) -> MemoryBill:
        """What this rank has allocated, by purpose; print it."""
        return self._session.plan.bill()

    def stats(self) -> dict[str, Any]:
        """Counters since the start: rows, bytes and waiting time per peer, and the proxy's own. See uccl_ep.stats."""
        return collect_stats(self._session)

    def barrier(self) -> None:
        """Returns when every rank has entered it and everything sent before is delivered. Collective."""
        self._collective.barrier()

    # ---- low latency -------------------------------------------------------------------------------------------

    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        use_nvfp4: bool = False,
        x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False,
        topk_weights: Tensor | None = None,
        use_eager: bool = False,
    ) -> tuple[Any, Tensor, LowLatencyHandle, EventOverlap[EventHandle], Callable[[], None] | None]:
        """Sends every token to its experts; rows come out packed by expert.

        Args:
            x: bf16 [T, H], T <= M; H a multiple of 128 with use_fp8, else of 8.
            topk_idx: int64 (or int32) [T, K], K <= 32; -1 = not routed. A token that names an expert twice is sent once.
            num_max_dispatch_tokens_per_rank, num_experts: M and E, the same on all ranks.
            cumulative_local_expert_recv_stats: int32 [L], rows per expert are added to it.
            dispatch_wait_recv_cost_stats: int64 [N], nanoseconds waited for each source are added to it.
            use_fp8: cast to e4m3 with one scale per 128 channels; round_scale rounds scales up to powers of two;
                use_ue8m0 (with round_scale) packs their exponents, four to an int32.
            async_finish: return at once; wait on the event. return_recv_hook: return after sending; the hook receives.

        Returns:
            (recv_x, recv_count, handle, event, hook). recv_x is bf16 [L, P, H], or (e4m3 [L, P, H], scales f32
            [L, P, H/128] or int32 [L, P, ceil(H/512)], both column-major). Rows of an expert are ordered by source
            rank, then token; those from recv_count[e] on are undefined. handle = (src_info int32 [L, P],
            layout_range int64 [L, N] = begin << 32 | count, M, H, E).

        Raises:
            InvalidArgument: before anything is sent.
        """
        self._check_low_latency(async_finish, return_recv_hook)
        if use_nvfp4 or x_global_scale is not None:
            raise NotSupported("use_nvfp4: NVFP4 dispatch is not in this version; use FP8 or bf16")
        x = checks.aligned(checks.matrix("x", x, (torch.bfloat16,)))
        ids = checks.row_ids("topk_idx", topk_idx, num_experts)
        tokens, hidden = x.shape
        if ids.shape[0] != tokens:
            refuse("topk_idx", tuple(ids.shape), f"{tokens} rows, as x has")
        if tokens > num_max_dispatch_tokens_per_rank:
            refuse("x", f"{tokens} rows", f"up to num_max_dispatch_tokens_per_rank={num_max_dispatch_tokens_per_rank}")
        if use_fp8 and hidden % 128:
            refuse("x", f"{hidden} channels with use_fp8=True", "a multiple of 128 channels")
        if use_ue8m0 and not (use_fp8 and round_scale):
            refuse("use_ue8m0", use_ue8m0, "True only with use_fp8=True and round_scale=True")
        stats = checks.vector(
            "cumulative_local_expert_recv_stats",
            cumulative_local_expert_recv_stats,
            torch.int32,
            num_experts // self.group_size,
        )
        waits = checks.vector(
            "dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats, torch.int64, self.group_size
        )
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        row_format = BF16 if not use_fp8 else FP8_UE8M0 if use_ue8m0 else FP8
        received = self._low_latency.dispatch(x, ids, row_format, round_scale, stats, waits)
        event, hook = self._finish_low_latency(received.receive, received.keep, async_finish, return_recv_hook)
        result = received.x if received.scales is None else (received.x, received.scales)
        return result, received.count, received.handle, event, hook

    def low_latency_combine(
        self,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None,
        *,
        overlap: bool = False,
        src_signals: Tensor | None = None,
        src_signal_expect_value: int = 0,
        packed_recv_count: Tensor | None = None,
        comp_signal: Tensor | None = None,
        block_m: int = 64,
        threshold: int = 0,
        num_sms: int = 0,
    ) -> tuple[Tensor, EventOverlap[EventHandle], Callable[[], None] | None]:
        """Sends expert outputs back and sums them per token, weighted, in fp32 over ascending k, rounded once.

        Args:
            x: bf16 [L, P, H] contiguous, rows where the dispatch put them. With zero_copy its contents are ignored:
                the rows are taken from get_next_low_latency_combine_buffer(handle).
            topk_idx: as given to dispatch. topk_weights: float32 [T, K].
            handle: of the dispatch.
            use_logfmt: 10 bits a channel on the wire where the values allow; H a multiple of 512, not with zero_copy.
            out: bf16 [T, H] to write into; None makes one.
            combine_wait_recv_cost_stats: int64 [N], nanoseconds waited for each rank are added to it.

        Returns:
            (combined_x bf16 [T, H], event, hook). A token without experts gives zeros; a masked rank's rows are left
            out, the other weights as they are.

        Raises:
            InvalidArgument: before anything is sent.
        """
        self._check_low_latency(async_finish, return_recv_hook)
        if overlap or src_signals is not None or comp_signal is not None:
            raise NotSupported("overlap: single-batch overlap of combine is not in this version; pass overlap=False")
        if zero_copy and use_logfmt:
            refuse("zero_copy", True, "False with use_logfmt=True")
        _, _, max_tokens, hidden, num_experts = handle
        expected = (num_experts // self.group_size, self.group_size * max_tokens, hidden)
        if tuple(x.shape) != expected or x.dtype != torch.bfloat16 or not (zero_copy or x.is_contiguous()):
            refuse("x", f"{tuple(x.shape)} {x.dtype}", f"contiguous bf16 {expected}, as the dispatch returned rows")
        ids = checks.row_ids("topk_idx", topk_idx, num_experts)
        topk_weights = checks.weights("topk_weights", topk_weights, tuple(ids.shape))
        if ids.shape[0] > max_tokens:
            refuse("topk_idx", tuple(ids.shape), f"up to {max_tokens} rows, as the dispatch allowed")
        if out is None:
            out = self._device.empty(ids.shape[0], hidden, dtype=torch.bfloat16)
        elif tuple(checks.matrix("out", out, (torch.bfloat16,)).shape) != (ids.shape[0], hidden):
            refuse("out", tuple(out.shape), f"shape {(ids.shape[0], hidden)}")
        waits = checks.vector("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, torch.int64, self.group_size)
        self._low_latency.set_shape(max_tokens, hidden, num_experts, self._collective.barrier)
        receive, keep = self._low_latency.combine(
            x, ids, topk_weights, handle, out, logfmt=use_logfmt, zero_copy=zero_copy, wait_stats=waits
        )
        event, hook = self._finish_low_latency(receive, keep, async_finish, return_recv_hook)
        return out, event, hook

    def _check_low_latency(self, async_finish: bool, return_recv_hook: bool) -> None:
        self._session.check()
        if not self.low_latency_mode:
            raise InvalidArgument("this Buffer was made with low_latency_mode=False; low_latency_* calls need True")
        if async_finish and return_recv_hook:
            refuse("async_finish and return_recv_hook", "both True", "one of them")

    def _finish_low_latency(
        self, receive: Callable[[], None], keep: tuple[Any, ...], async_finish: bool, return_recv_hook: bool
    ) -> tuple[EventOverlap[EventHandle], Callable[[], None] | None]:
        """The three ways to end a call: by hook, by event, or now."""
        if return_recv_hook:
            self._device.finish()  # the caller's inputs have been read when this returns

            def hook() -> None:
                receive()
                self._device.finish()
                _ = keep

            return EventOverlap(), hook
        receive()
        if async_finish:
            return EventOverlap(self._device.record(), [t for t in keep if isinstance(t, Tensor)]), None
        self._device.finish()
        return EventOverlap(), None

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bf16 view [L, P, H] of registered memory for the next combine with zero_copy=True.

        Rows are H + H/64 elements apart (rounded up to 16 bytes). Call it between the dispatch and that combine.
        """
        self._check_low_latency(False, False)
        self._low_latency.wait_for_zero_copy()
        return self._low_latency.zero_copy_rows(handle, self._low_latency.next_combine_epoch())[0]

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Readies low latency for these sizes after throughput calls. Collective.

        The two modes share no memory here and epochs never reset, so there is nothing to zero; what remains is
        upstream's barrier and the check that the sizes fit.
        """
        self._check_low_latency(False, False)
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        self._collective.barrier()

    # ---- masks -------------------------------------------------------------------------------------------------

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank (mask=True) or takes the mask away: low-latency calls then leave it out.

        Nothing is sent to a masked rank, nothing is expected from it, and combine skips its experts without
        renormalising weights.
        """
        self._check_mask()
        if not 0 <= rank_to_mask < self.group_size:
            refuse("rank_to_mask", rank_to_mask, f"0 to {self.group_size - 1}")
        self._session.mask[rank_to_mask] = int(mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes the mask into `mask_status` (int32 [N]): 1 = masked."""
        self._check_mask()
        good = checks.vector("mask_status", mask_status, torch.int32, self.group_size)
        assert good is not None
        good.copy_(self._session.mask)

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes every mask away."""
        self._check_mask()
        self._session.mask.zero_()

    def _check_mask(self) -> None:
        if not self.enable_shrink:
            raise InvalidArgument("mask methods need a Buffer made with enable_shrink=True")
        _ = self._session

    # ---- used by the throughput half ------------------------------------------------------------------------------

    @staticmethod
    def _unpack_bias(bias: Any) -> tuple[Tensor | None, Tensor | None]:
        """None, a tensor or a pair as a pair."""
        if bias is None:
            return None, None
        if isinstance(bias, Tensor):
            return bias, None
        first, second = bias
        return first, second


__all__ = ["Buffer", "Rows", "ThroughputHandle"]
