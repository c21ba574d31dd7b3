"""What the low-latency calls of a Buffer do: dispatch, combine, zero-copy rows. Their contract is in buffer.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import _native, checks
from uccl_ep.device.kept_until_run import KeptUntilRun, kept_until_run
from uccl_ep.device.protocol import Device, EventHandle
from uccl_ep.errors import Described, InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.layout.combine_formats import combine_format
from uccl_ep.low_latency.dispatch_formats import BF16, FP8, FP8_UE8M0, NVFP4, NVFP4_UNIT, Format, global_scale_of
from uccl_ep.low_latency.handle import Handle as LowLatencyHandle
from uccl_ep.low_latency.handle import check_handle
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.low_latency.overlap import OverlapArguments
from uccl_ep.recorder.calls import log_of
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session

Tensor = torch.Tensor


RunHook = Callable[[Session, Callable[[], None]], None]
"""Runs a receive hook as a call of its Buffer, if that is still in the life of this session."""
Ending = tuple[EventOverlap[EventHandle], Callable[[], None] | None]
"""The event and the hook of a call."""


class LowLatencyCalls:
    """The low-latency calls of a Buffer in one of its lives. Buffer documents their arguments and results.

    Args:
        collective: the barrier between calls of other sizes.
        low_latency: queues their kernels.
        allowed: the Buffer was made with low_latency_mode.
    """

    def __init__(
        self, session: Session, device: Device, collective: Collective, low_latency: LowLatency, allowed: bool
    ) -> None:
        self._session, self._device, self._collective = session, device, collective
        self._low_latency, self._allowed = low_latency, allowed
        self._num_ranks = session.num_ranks

    @kept_until_run
    def dispatch(
        self,
        run_hook: RunHook,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None,
        dispatch_wait_recv_cost_stats: Tensor | None,
        use_fp8: bool,
        round_scale: bool,
        use_ue8m0: bool,
        async_finish: bool,
        return_recv_hook: bool,
        use_nvfp4: bool,
        x_global_scale: Tensor | None,
        use_ue8m0_for_sf: bool,
    ) -> tuple[Any, Tensor, LowLatencyHandle, EventOverlap[EventHandle], Callable[[], None] | None]:
        """Sends tokens to their experts, and takes in what comes now, after the event or in the hook."""
        self._check(async_finish, return_recv_hook)
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
            refuse("topk_idx", ids, f"of {tokens} rows, as x has")
        if tokens > num_max_dispatch_tokens_per_rank:
            refuse(
                "x",
                tokens,
                f"of up to num_max_dispatch_tokens_per_rank={num_max_dispatch_tokens_per_rank} rows",
            )
        if use_fp8 and hidden % 128:
            refuse("x", hidden, "of a multiple of 128 channels with use_fp8=True")
        if use_ue8m0 and not (use_fp8 and round_scale):
            refuse("use_ue8m0", use_ue8m0, "False without use_fp8=True and round_scale=True")
        if use_nvfp4 and use_fp8:
            refuse("use_nvfp4", True, "False with use_fp8=True, which is the default", "Pass use_fp8=False with it.")
        if use_nvfp4 and hidden % NVFP4_UNIT:
            refuse("x", hidden, f"of a multiple of {NVFP4_UNIT} channels with use_nvfp4=True")
        form = Format(BF16 if not use_fp8 else FP8_UE8M0 if use_ue8m0 else FP8, round_scale)
        if use_nvfp4:
            form = Format(NVFP4, global_scale=global_scale_of(x_global_scale, look=self._device.host_memory))
        stats = checks.check_vector(
            "cumulative_local_expert_recv_stats",
            cumulative_local_expert_recv_stats,
            torch.int32,
            num_experts // self._num_ranks,
        )
        waits = checks.check_vector(
            "dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats, torch.int64, self._num_ranks
        )
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        self._device.begin(on_caller=return_recv_hook)
        received = self._low_latency.dispatch(x, ids, form, stats, waits)
        event, hook = self._finish(run_hook, received.receive, received.keep, async_finish, return_recv_hook)
        return received.x, received.count, received.handle, event, hook

    @kept_until_run
    def combine(
        self,
        run_hook: RunHook,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool,
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Tensor | None,
        combine_wait_recv_cost_stats: Tensor | None,
        use_fp8: bool,
        overlap: OverlapArguments,
    ) -> tuple[Tensor, EventOverlap[EventHandle], Callable[[], None] | None]:
        """Sends experts' rows back, and sums those that come now, after the event or in the hook."""
        self._check(async_finish, return_recv_hook)
        zero_copy, use_logfmt = checks.check_bool("zero_copy", zero_copy), checks.check_bool("use_logfmt", use_logfmt)
        max_tokens, hidden, num_experts = check_handle(handle, self._num_ranks, self._low_latency.life)
        form = combine_format(use_logfmt, checks.check_bool("use_fp8", use_fp8), zero_copy, hidden)
        expected = (num_experts // self._num_ranks, self._num_ranks * max_tokens, hidden)
        self._check_devices(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            handle=handle[0],
            out=out,
            combine_wait_recv_cost_stats=combine_wait_recv_cost_stats,
            src_signals=overlap.src_signals,
            comp_signal=overlap.comp_signal,
        )
        beside = overlap.check(*expected[:2])
        good = isinstance(x, Tensor) and tuple(x.shape) == expected and x.dtype == torch.bfloat16
        if not good or not (zero_copy or x.is_contiguous()):
            refuse("x", x, f"a contiguous bf16 tensor of shape {expected}, as the handle's dispatch returned rows")
        x = x if zero_copy else checks.aligned(x)
        ids = checks.row_ids("topk_idx", topk_idx, num_experts if self._device.host_memory else None)
        topk_weights = checks.weights("topk_weights", topk_weights, tuple(ids.shape))
        if ids.shape[0] > max_tokens:
            refuse("topk_idx", ids, f"of up to {max_tokens} rows, as the dispatch allowed")
        if out is None:
            out = self._device.empty(ids.shape[0], hidden, dtype=torch.bfloat16)
        elif tuple(checks.check_matrix("out", out, (torch.bfloat16,)).shape) != (ids.shape[0], hidden):
            refuse("out", out, f"of shape {(ids.shape[0], hidden)}")
        waits = checks.check_vector(
            "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, torch.int64, self._num_ranks
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
        event, hook = self._finish(run_hook, receive, keep, async_finish, return_recv_hook, running)
        return out, event, hook

    def _check(self, async_finish: bool, return_recv_hook: bool) -> None:
        self._session.check()
        if not self._allowed:
            raise InvalidArgument("this Buffer was made with low_latency_mode=False; low_latency_* calls need True")
        if checks.check_bool("async_finish", async_finish) & checks.check_bool("return_recv_hook", return_recv_hook):
            refuse("async_finish and return_recv_hook", Described("both True"), "True one at a time")

    def _finish(
        self,
        run_hook: RunHook,
        receive: Callable[[], None],
        keep: tuple[Any, ...],
        async_finish: bool,
        return_recv_hook: bool,
        running: bool = False,
    ) -> Ending:
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
                session.check()  # kernels of a destroyed buffer would touch memory that is gone
                if pending:
                    with KeptUntilRun(self._device):
                        self._device.begin(on_caller=True)
                        receive()
                        self._device.end(pending.pop())
                    self._low_latency.leave_shape(leave)

            log = log_of(session)
            recorded_hook = hook if log is None else log.hook(hook)
            return EventOverlap(), functools.partial(run_hook, session, recorded_hook)
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

    def next_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """The rows of the next combine with zero_copy, when they may be written."""
        self._check(False, False)
        check_handle(handle, self._num_ranks, self._low_latency.life)
        self._low_latency.wait_for_zero_copy()
        return self._low_latency.zero_copy_rows(handle, self._low_latency.next_combine_epoch())

    def clean(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Lays the rows out for these sizes, and meets all ranks."""
        self._check(False, False)
        self._low_latency.set_shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._collective.barrier)
        self._collective.barrier()

    def refresh_tag(self) -> None:
        """The session's call tag has changed: kernels get it from the next call on."""
        self._low_latency.refresh()
