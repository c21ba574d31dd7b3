"""The low-latency calls of Buffer: dispatch, combine, the zero-copy rows, and the masks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import _native, checks
from uccl_ep.device.kept_until_run import KeptUntilRun, kept_until_run
from uccl_ep.device.protocol import Device, EventHandle
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.layout.combine_formats import combine_format
from uccl_ep.low_latency.dispatch_formats import BF16, FP8, FP8_UE8M0, NVFP4, NVFP4_UNIT, Format, global_scale_of
from uccl_ep.low_latency.handle import Handle as LowLatencyHandle
from uccl_ep.low_latency.handle import check_handle
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.low_latency.overlap import OverlapArguments
from uccl_ep.recorder.calls import log_of, recorded
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session
from uccl_ep.system.ownership import Owner, in_turn

Tensor = torch.Tensor


class LowLatencyApi:
    """What Buffer inherits; see Buffer for the letters in shapes."""

    group_size: int
    low_latency_mode: bool
    enable_shrink: bool
    _owner: Owner
    _device: Device
    _collective: Collective
    _low_latency: LowLatency

    @property
    def _session(self) -> Session:
        raise AttributeError("_session")  # Buffer has it

    @in_turn("low_latency_dispatch")
    @recorded("low_latency_dispatch")
    @kept_until_run
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
            use_nvfp4 (with use_fp8=False): cast to e2m1, two channels a byte, with one e4m3 scale per 16; H a multiple
                of 64. Scales are e4m3(g * amax / 6) and stand for scale / g.
            x_global_scale: g, float32 of one element, the same on all ranks that share experts; 448 * 6 / (largest
                magnitude) uses the formats' whole range. Not looked at without use_nvfp4.
            async_finish: return at once; wait on the event. return_recv_hook: return after sending; the hook receives.

        Returns:
            (recv_x, recv_count, handle, event, hook). recv_x is bf16 [L, P, H], or (e4m3 [L, P, H], scales f32
            [L, P, H/128] or int32 [L, P, ceil(H/512)], both column-major), or with use_nvfp4 (uint8 [P, H/2, L], stored
            as [L, P, H/2], the first channel of a byte in its low half; e4m3 [32, 4, ceil(P/128), 4, H/64, L], stored
            as [L, ceil(P/128), H/64, 32, 4, 4]: that of row 128 t + 32 j + i and channels from 64 w + 16 s on is at
            [i, j, t, s, w]). Rows of an expert are ordered by source rank, then token; those from recv_count[e] on are
            undefined. handle = (src_info int32 [L, P], layout_range int64 [L, N] = begin << 32 | count, M, H, E).

        Raises:
            InvalidArgument: before anything is sent.
        """
        self._check_low_latency(async_finish, return_recv_hook)
        if checks.check_bool("use_ue8m0_for_sf", use_ue8m0_for_sf):
            raise NotSupported("use_ue8m0_for_sf: ask for packed scales by use_ue8m0=True with round_scale=True")
        self._check_devices(
            x=x,
            topk_idx=topk_idx,
            x_global_scale=x_global_scale,
            cumulative_local_expert_recv_stats=cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats=dispatch_wait_recv_cost_stats,
        )
        use_fp8, round_scale = checks.check_bool("use_fp8", use_fp8), checks.check_bool("round_scale", round_scale)
        use_ue8m0, use_nvfp4 = checks.check_bool("use_ue8m0", use_ue8m0), checks.check_bool("use_nvfp4", use_nvfp4)
        most = _native.MAX_TOKENS_PER_RANK
        num_max_dispatch_tokens_per_rank = checks.check_int(
            "num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1, most
        )
        num_experts = checks.check_int("num_experts", num_experts, 1, _native.MAX_EXPERTS)
        x = checks.aligned(checks.check_matrix("x", x, (torch.bfloat16,)))
        ids = checks.row_ids("topk_idx", topk_idx, num_experts if self._device.host_memory else None)
        tokens, hidden = x.shape
        if ids.shape[0] != tokens:
            refuse("topk_idx", tuple(ids.shape), f"{tokens} rows, as x has")
        if tokens > num_max_dispatch_tokens_per_rank:
            refuse("x", f"{tokens} rows", f"up to num_max_dispatch_tokens_per_rank={num_max_dispatch_tokens_per_rank}")
        if use_fp8 and hidden % 128:
            refuse("x", f"{hidden} channels with use_fp8=True", "a multiple of 128 channels")
        if use_ue8m0 and not (use_fp8 and round_scale):
            refuse("use_ue8m0", use_ue8m0, "True only with use_fp8=True and round_scale=True")
        if use_nvfp4 and use_fp8:
            refuse("use_nvfp4", True, "False with use_fp8=True, which is the default", "Pass use_fp8=False with it.")
        if use_nvfp4 and hidden % NVFP4_UNIT:
            refuse("x", f"{hidden} channels with use_nvfp4=True", f"a multiple of {NVFP4_UNIT} channels")
        form = Format(BF16 if not use_fp8 else FP8_UE8M0 if use_ue8m0 else FP8, round_scale)
        if use_nvfp4:
            form = Format(NVFP4, global_scale=global_scale_of(x_global_scale, look=self._device.host_memory))
        stats = checks.check_vector(
            "cumulative_local_expert_recv_stats",
            cumulative_local_expert_recv_stats,
            torch.int32,
            num_experts // self.group_size,
        )
        waits = checks.check_vector(
            "dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats, torch.int64, self.group_size
        )
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        self._device.begin(on_caller=return_recv_hook)
        received = self._low_latency.dispatch(x, ids, form, stats, waits)
        event, hook = self._finish_low_latency(received.receive, received.keep, async_finish, return_recv_hook)
        return received.x, received.count, received.handle, event, hook

    @in_turn("low_latency_combine")
    @recorded("low_latency_combine")
    @kept_until_run
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
        use_fp8: bool = False,
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
            use_fp8: rows travel as e4m3 with one float32 scale per 128 channels, as dispatch casts them: 0.52 of bf16's
                bytes. Values keep 4 significant bits, those below 1/28,000 of their block's largest fewer. H a
                multiple of 128; not with zero_copy or use_logfmt. Not in DeepEP.
            out: bf16 [T, H] to write into; None makes one.
            combine_wait_recv_cost_stats: int64 [N], nanoseconds waited for each rank are added to it.
            overlap: send rows while others are still being computed; on a CPU a call with return_recv_hook then returns
                before x has been read, and its hook waits. Experts go in ascending order, and a row is read once
                its signal, stored with release order by who computes, is at least the value to wait for. Two forms:
            src_signals, src_signal_expect_value: uint32 or int32 [L], a signal an expert.
            comp_signal, block_m, threshold: int32 [L * ceil(P / block_m)], a signal for every block_m rows of an
                expert, waited for where there are rows. packed_recv_count: int32 [L]; the handle's counts are used.
            num_sms: blocks (SMs) that sending takes with overlap; 0: 3 with comp_signal, else 32.

        Returns:
            (combined_x bf16 [T, H], event, hook). A token without experts gives zeros; a masked rank's rows are left
            out, the other weights as they are.

        Raises:
            InvalidArgument: before anything is sent.
        """
        self._check_low_latency(async_finish, return_recv_hook)
        zero_copy, use_logfmt = checks.check_bool("zero_copy", zero_copy), checks.check_bool("use_logfmt", use_logfmt)
        max_tokens, hidden, num_experts = check_handle(handle, self.group_size, self._low_latency.life)
        form = combine_format(use_logfmt, checks.check_bool("use_fp8", use_fp8), zero_copy, hidden)
        expected = (num_experts // self.group_size, self.group_size * max_tokens, hidden)
        self._check_devices(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            handle=handle[0],
            out=out,
            combine_wait_recv_cost_stats=combine_wait_recv_cost_stats,
            src_signals=src_signals,
            comp_signal=comp_signal,
        )
        beside = OverlapArguments(
            overlap, src_signals, src_signal_expect_value, packed_recv_count, comp_signal, block_m, threshold, num_sms
        ).check(*expected[:2])
        good = isinstance(x, Tensor) and tuple(x.shape) == expected and x.dtype == torch.bfloat16
        if not good or not (zero_copy or x.is_contiguous()):
            shown = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            refuse("x", shown, f"contiguous bf16 {expected}, as the handle's dispatch returned rows")
        x = x if zero_copy else checks.aligned(x)
        ids = checks.row_ids("topk_idx", topk_idx, num_experts if self._device.host_memory else None)
        topk_weights = checks.weights("topk_weights", topk_weights, tuple(ids.shape))
        if ids.shape[0] > max_tokens:
            refuse("topk_idx", tuple(ids.shape), f"up to {max_tokens} rows, as the dispatch allowed")
        if out is None:
            out = self._device.empty(ids.shape[0], hidden, dtype=torch.bfloat16)
        elif tuple(checks.check_matrix("out", out, (torch.bfloat16,)).shape) != (ids.shape[0], hidden):
            refuse("out", tuple(out.shape), f"shape {(ids.shape[0], hidden)}")
        waits = checks.check_vector(
            "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, torch.int64, self.group_size
        )
        self._low_latency.set_shape(max_tokens, hidden, num_experts, self._collective.barrier)
        self._device.begin(on_caller=return_recv_hook)
        receive, keep = self._low_latency.combine(
            x,
            ids,
            topk_weights,
            handle,
            out,
            form=form,
            zero_copy=zero_copy,
            wait_stats=waits,
            overlap=beside,
            stays=not return_recv_hook,
        )
        # On a CPU the caller computes the rows that this waits for: it gets its thread back before they are read.
        running = beside is not None and beside.signals is not None and self._device.host_memory
        event, hook = self._finish_low_latency(receive, keep, async_finish, return_recv_hook, running)
        return out, event, hook

    def _check_low_latency(self, async_finish: bool, return_recv_hook: bool) -> None:
        self._session.check()
        if not self.low_latency_mode:
            raise InvalidArgument("this Buffer was made with low_latency_mode=False; low_latency_* calls need True")
        if checks.check_bool("async_finish", async_finish) & checks.check_bool("return_recv_hook", return_recv_hook):
            refuse("async_finish and return_recv_hook", "both True", "one of them")

    def _finish_low_latency(
        self,
        receive: Callable[[], None],
        keep: tuple[Any, ...],
        async_finish: bool,
        return_recv_hook: bool,
        running: bool = False,
    ) -> tuple[EventOverlap[EventHandle], Callable[[], None] | None]:
        """The three ways to end a call: by hook, by event, or now. With `running` a hook's call leaves the sending half
        to itself."""
        leave = self._collective.barrier
        if return_recv_hook:
            if running:
                self._device.record(keep)
            else:
                self._device.end(keep)  # on a CPU the caller's inputs have been read when this returns

            session = self._session
            pending = [keep]  # what the receiving half needs, until it has been queued; a second call does nothing

            def hook() -> None:
                if session is not self._session:
                    raise InvalidArgument("this receive hook is of a call before recover(): its rows are gone")
                session.check()  # kernels of a destroyed buffer would touch memory that is gone
                if pending:
                    with KeptUntilRun(self._device):
                        self._device.begin(on_caller=True)
                        receive()
                        self._device.end(pending.pop())
                    self._low_latency.leave_shape(leave)

            log = log_of(session)
            recorded_hook = hook if log is None else log.hook(hook)
            return EventOverlap(), functools.partial(_receive, self, recorded_hook)
        receive()
        if async_finish:
            event = self._device.record(keep)
            self._low_latency.leave_shape(leave)
            return EventOverlap(event, [t for t in keep if isinstance(t, Tensor)]), None
        self._device.end(keep)
        self._low_latency.leave_shape(leave)
        return EventOverlap(), None

    def _check_devices(self, **tensors: Any) -> None:
        for name, value in tensors.items():
            if isinstance(value, Tensor):
                self._device.check_tensor(name, value)

    @in_turn("get_next_low_latency_combine_buffer")
    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bf16 view [L, P, H] of registered memory for the next combine with zero_copy=True.

        Rows are H + H/64 elements apart (rounded up to 16 bytes). Call it between the dispatch and that combine.
        """
        self._check_low_latency(False, False)
        check_handle(handle, self.group_size, self._low_latency.life)
        self._low_latency.wait_for_zero_copy()
        return self._low_latency.zero_copy_rows(handle, self._low_latency.next_combine_epoch())

    @in_turn("clean_low_latency_buffer")
    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Readies low latency for these sizes after throughput calls. Collective.

        The two modes share no memory here and epochs never reset, so there is nothing to zero; what remains is
        upstream's barrier and the check that the sizes fit.
        """
        self._check_low_latency(False, False)
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        self._collective.barrier()


@in_turn("a receive hook")
def _receive(buffer: LowLatencyApi, hook: Callable[[], None]) -> None:
    """What a receive hook is: a call of its Buffer."""
    hook()
