"""The low-latency calls of Buffer: dispatch, combine, the zero-copy rows, and the masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.collective import Collective
from uccl_ep.device import CpuDevice, EventHandle
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.low_latency import BF16, FP8, FP8_UE8M0, LowLatency, check_handle
from uccl_ep.low_latency import Handle as LowLatencyHandle
from uccl_ep.session import Session

Tensor = torch.Tensor


class LowLatencyApi:
    """What Buffer inherits; see Buffer for the letters in shapes."""

    group_size: int
    low_latency_mode: bool
    enable_shrink: bool
    _device: CpuDevice
    _collective: Collective
    _low_latency: LowLatency

    @property
    def _session(self) -> Session:
        raise AttributeError("_session")  # Buffer has it

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
            topk_idx: int64 (or int32) [T, K], K <= 32; -1 = not routed. An expert named twice by a token gets it once.
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
        if use_ue8m0_for_sf:
            raise NotSupported("use_ue8m0_for_sf: ask for packed scales by use_ue8m0=True with round_scale=True")
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
        max_tokens, hidden, num_experts = check_handle(handle, self.group_size)
        expected = (num_experts // self.group_size, self.group_size * max_tokens, hidden)
        good = isinstance(x, Tensor) and tuple(x.shape) == expected and x.dtype == torch.bfloat16
        if not good or not (zero_copy or x.is_contiguous()):
            shown = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            refuse("x", shown, f"contiguous bf16 {expected}, as the dispatch returned rows")
        x = x if zero_copy else checks.aligned(x)
        ids = checks.row_ids("topk_idx", topk_idx, num_experts)
        topk_weights = checks.weights("topk_weights", topk_weights, tuple(ids.shape))
        if ids.shape[0] > max_tokens:
            refuse("topk_idx", tuple(ids.shape), f"up to {max_tokens} rows, as the dispatch allowed")
        if out is None:
            out = self._device.empty(ids.shape[0], hidden, dtype=torch.bfloat16)
        elif tuple(checks.matrix("out", out, (torch.bfloat16,)).shape) != (ids.shape[0], hidden):
            refuse("out", tuple(out.shape), f"shape {(ids.shape[0], hidden)}")
        waits = checks.vector(
            "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, torch.int64, self.group_size
        )
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

            pending = [keep]  # what the receiving half needs, until it has run; a second call has nothing to do

            def hook() -> None:
                self._session.check()  # kernels of a destroyed buffer would touch memory that is gone
                if pending:
                    receive()
                    self._device.finish()
                    pending.clear()

            return EventOverlap(), hook
        receive()
        if async_finish:
            return EventOverlap(self._device.record(keep), [t for t in keep if isinstance(t, Tensor)]), None
        self._device.finish()
        return EventOverlap(), None

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bf16 view [L, P, H] of registered memory for the next combine with zero_copy=True.

        Rows are H + H/64 elements apart (rounded up to 16 bytes). Call it between the dispatch and that combine.
        """
        self._check_low_latency(False, False)
        check_handle(handle, self.group_size)
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

        Raises:
            NotSupported: the mask is to be taken from a rank of another node that has missed a call meanwhile.
        """
        self._check_mask()
        if not 0 <= rank_to_mask < self.group_size:
            refuse("rank_to_mask", rank_to_mask, f"0 to {self.group_size - 1}")
        if not mask:
            self._check_unmask({rank_to_mask})
        self._session.mask[rank_to_mask] = int(mask)

    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes the mask into `mask_status` (int32 [N]): 1 = masked."""
        self._check_mask()
        status = checks.vector("mask_status", mask_status, torch.int32, self.group_size)
        if status is None:
            refuse("mask_status", None, f"an int32 tensor of {self.group_size} elements")
        status.copy_(self._session.mask)

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes every mask away."""
        self._check_mask()
        self._check_unmask(set(range(self.group_size)))
        self._session.mask.zero_()

    def _check_unmask(self, ranks: set[int]) -> None:
        late = sorted(r for r in ranks & self._low_latency.missed if int(self._session.mask[r]))
        if late:
            raise NotSupported(
                f"unmasking rank(s) {', '.join(map(str, late))}: a rank of another node that low-latency calls left "
                "out cannot come back to this Buffer. Make a new one with the ranks that take part."
            )

    def _check_mask(self) -> None:
        if not self.enable_shrink:
            raise InvalidArgument("mask methods need a Buffer made with enable_shrink=True")
        _ = self._session
