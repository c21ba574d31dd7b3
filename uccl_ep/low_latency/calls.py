"""What the low-latency calls of a Buffer do: dispatch, combine, zero-copy rows. Their contract is in buffer.py."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from uccl_ep import _native, checks
from uccl_ep.device.kept_until_run import kept_until_run, locals_of
from uccl_ep.device.protocol import Device, EventHandle
from uccl_ep.errors import Described, InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.layout.combine_formats import KEYWORDS, RowFormat, combine_format
from uccl_ep.low_latency.dispatch_formats import BF16, FP8, FP8_UE8M0, NVFP4, NVFP4_UNIT, Format, global_scale_of
from uccl_ep.low_latency.handle import Handle as LowLatencyHandle
from uccl_ep.low_latency.handle import check_handle, planes_of, unchanged
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.low_latency.overlap import Overlap, OverlapArguments, warn_of_lazy_loading
from uccl_ep.recorder.calls import log_of
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session

Tensor = torch.Tensor
_MOST_KNOWN = 256


RunHook = Callable[[Session, Callable[[], None]], None]
"""Runs a receive hook as a call of its Buffer, if that is still in the life of this session."""
Ending = tuple[EventOverlap[EventHandle], Callable[[], None] | None]
"""The event and the hook of a call."""


class _Flags(NamedTuple):
    """What a dispatch's keywords say of the format of its rows."""

    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool
    use_nvfp4: bool

    @classmethod
    def checked(cls, *values: Any) -> _Flags:
        """In this order; raises InvalidArgument."""
        return cls(*(checks.check_bool(name, value) for name, value in zip(cls._fields, values, strict=True)))


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[key] = value


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
        self._log = log_of(session)
        # Arguments that were looked at before, by their sizes, types and devices.
        self._dispatches: dict[Any, Format] = {}
        self._combines: dict[Any, RowFormat] = {}

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
        self._session.settle()
        key = None
        # Types too: 1.0 equals True and 1, and is refused.
        if (
            type(x) is type(topk_idx) is Tensor
            and type(use_fp8) is type(round_scale) is type(use_ue8m0) is bool
            and type(num_max_dispatch_tokens_per_rank) is type(num_experts) is int
            and x_global_scale is None
            and use_nvfp4 is False
            and use_ue8m0_for_sf is False
            and x.is_contiguous()
            and topk_idx.is_contiguous()
        ):
            key = (
                *(x.shape, x.dtype, x.layout, x.device),
                *(topk_idx.shape, topk_idx.dtype, topk_idx.layout, topk_idx.device),
                *(num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, use_ue8m0),
            )
        if key in self._dispatches:
            form = self._dispatches[key]
            ids = topk_idx if topk_idx.dtype == torch.int64 else topk_idx.to(torch.int64)
            if self._device.host_memory:
                checks.range_of_ids("topk_idx", ids, num_experts)
            if cumulative_local_expert_recv_stats is not None or dispatch_wait_recv_cost_stats is not None:
                self._check_devices(
                    cumulative_local_expert_recv_stats=cumulative_local_expert_recv_stats,
                    dispatch_wait_recv_cost_stats=dispatch_wait_recv_cost_stats,
                )
        else:
            given = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
            num_max_dispatch_tokens_per_rank, num_experts, ids, form = self._checked_dispatch(
                (x, topk_idx, x_global_scale, *given), num_max_dispatch_tokens_per_rank, num_experts,
                (use_fp8, round_scale, use_ue8m0, use_nvfp4), use_ue8m0_for_sf,
            )  # fmt: skip
            if key is not None:
                _remember(self._dispatches, key, form)
        x = x if x.data_ptr() % 16 == 0 else checks.aligned(x)
        stats = waits = None
        if cumulative_local_expert_recv_stats is not None:
            stats = checks.check_vector(
                "cumulative_local_expert_recv_stats",
                cumulative_local_expert_recv_stats,
                torch.int32,
                num_experts // self._num_ranks,
            )
        if dispatch_wait_recv_cost_stats is not None:
            waits = checks.check_vector(
                "dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats, torch.int64, self._num_ranks
            )
        place = self._begin(return_recv_hook, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        rows, count, handle, receive, keep = self._low_latency.dispatch(x, ids, form, stats, waits)
        event, hook = self._finish(run_hook, place, receive, keep, async_finish, return_recv_hook)
        return rows, count, handle, event, hook

    def _checked_dispatch(
        self, tensors: tuple[Any, ...], max_tokens: Any, num_experts: Any, flags: tuple[Any, ...], use_ue8m0_for_sf: Any
    ) -> tuple[int, int, Tensor, Format]:
        """(M, E, topk_idx as int64, format) of arguments that were not looked at before."""
        if checks.check_bool("use_ue8m0_for_sf", use_ue8m0_for_sf):
            raise NotSupported("use_ue8m0_for_sf: ask for packed scales by use_ue8m0=True with round_scale=True")
        x, topk_idx, x_global_scale, stats, waits = tensors
        self._check_devices(
            x=x,
            topk_idx=topk_idx,
            x_global_scale=x_global_scale,
            cumulative_local_expert_recv_stats=stats,
            dispatch_wait_recv_cost_stats=waits,
        )
        known = _Flags.checked(*flags)
        most = _native.MAX_TOKENS_PER_RANK
        max_tokens = checks.check_int("num_max_dispatch_tokens_per_rank", max_tokens, 1, most)
        num_experts = checks.check_int("num_experts", num_experts, 1, _native.MAX_EXPERTS)
        ids = self._checked_rows(x, topk_idx, max_tokens, num_experts)
        return max_tokens, num_experts, ids, self._format(known, x.shape[1], x_global_scale)

    def _checked_rows(self, x: Any, topk_idx: Any, max_tokens: int, num_experts: int) -> Tensor:
        """topk_idx as int64; x and it fit together."""
        x = checks.check_matrix("x", x, (torch.bfloat16,))
        ids = checks.row_ids("topk_idx", topk_idx, num_experts if self._device.host_memory else None)
        tokens = x.shape[0]
        if ids.shape[0] != tokens:
            refuse("topk_idx", ids, f"of {tokens} rows, as x has")
        if tokens > max_tokens:
            refuse("x", tokens, f"of up to num_max_dispatch_tokens_per_rank={max_tokens} rows")
        return ids

    def _format(self, flags: _Flags, hidden: int, x_global_scale: Any) -> Format:
        if flags.use_fp8 and hidden % 128:
            refuse("x", hidden, "of a multiple of 128 channels with use_fp8=True")
        if flags.use_ue8m0 and not (flags.use_fp8 and flags.round_scale):
            refuse("use_ue8m0", True, "False without use_fp8=True and round_scale=True")
        if flags.use_nvfp4 and flags.use_fp8:
            refuse("use_nvfp4", True, "False with use_fp8=True, which is the default", "Pass use_fp8=False with it.")
        if flags.use_nvfp4 and hidden % NVFP4_UNIT:
            refuse("x", hidden, f"of a multiple of {NVFP4_UNIT} channels with use_nvfp4=True")
        if flags.use_nvfp4:
            return Format(NVFP4, global_scale=global_scale_of(x_global_scale, look=self._device.host_memory))
        return Format(BF16 if not flags.use_fp8 else FP8_UE8M0 if flags.use_ue8m0 else FP8, flags.round_scale)

    @kept_until_run
    def combine(
        self,
        run_hook: RunHook,
        x: Tensor,
        topk_idx: Tensor,
        topk_weights: Tensor,
        handle: LowLatencyHandle,
        asked: tuple[bool, ...],
        zero_copy: bool,
        async_finish: bool,
        return_recv_hook: bool,
        out: Tensor | None,
        combine_wait_recv_cost_stats: Tensor | None,
        overlap: OverlapArguments | None,
    ) -> tuple[Tensor, EventOverlap[EventHandle], Callable[[], None] | None]:
        """Sends experts' rows back, and sums those that come now, after the event or in the hook.

        `asked`: for formats of rows, in the order of KEYWORDS.
        """
        self._check(async_finish, return_recv_hook)
        life, key, beside = self._low_latency.life, None, None
        made = unchanged(handle, life)
        if (
            made is not None
            and type(x) is type(topk_idx) is type(topk_weights) is Tensor
            and type(zero_copy) is bool
            and set(map(type, asked)) == {bool}
            and overlap is None
            and (zero_copy or x.is_contiguous())
            and topk_idx.is_contiguous()
            and topk_weights.is_contiguous()
        ):
            key = (
                *(x.shape, x.dtype, x.layout, x.device),
                *(topk_idx.shape, topk_idx.dtype, topk_idx.layout, topk_idx.device),
                *(topk_weights.shape, topk_weights.dtype, topk_weights.layout, topk_weights.device),
                *(made.sizes, asked, zero_copy),
            )
        if key in self._combines and made is not None:
            form, planes = self._combines[key], made.planes
            max_tokens, hidden, num_experts = made.sizes
            ids = topk_idx if topk_idx.dtype == torch.int64 else topk_idx.to(torch.int64)
            if self._device.host_memory:
                checks.range_of_ids("topk_idx", ids, num_experts)
            if out is not None or combine_wait_recv_cost_stats is not None:
                self._check_devices(out=out, combine_wait_recv_cost_stats=combine_wait_recv_cost_stats)
        else:
            known = self._checked_combine(
                (x, topk_idx, topk_weights, out, combine_wait_recv_cost_stats), handle,
                asked, zero_copy, overlap,
            )  # fmt: skip
            (max_tokens, hidden, num_experts), ids, form, planes, beside = known
            if key is not None:
                _remember(self._combines, key, form)
        x = x if zero_copy or x.data_ptr() % 16 == 0 else checks.aligned(x)
        waits = None
        if out is not None:
            wanted = (ids.shape[0], hidden)
            if tuple(checks.check_matrix("out", out, (torch.bfloat16,)).shape) != wanted:
                refuse("out", out, f"of shape {wanted}")
            # What x holds has been sent before the first row is written here.
            checks.refuse_overlap("out", out, topk_idx=ids, topk_weights=topk_weights)
        if combine_wait_recv_cost_stats is not None:
            waits = checks.check_vector(
                "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, torch.int64, self._num_ranks
            )
        place = self._begin(return_recv_hook, max_tokens, hidden, num_experts)
        out, receive, keep = self._low_latency.combine(
            x, ids, topk_weights, handle, planes, out, form, bool(zero_copy), waits, beside, not return_recv_hook
        )
        # On a CPU the caller computes the rows that this waits for: it gets its thread back before they are read.
        running = beside is not None and beside.signals is not None and self._device.host_memory
        event, hook = self._finish(run_hook, place, receive, keep, async_finish, return_recv_hook, running)
        return out, event, hook

    def _checked_combine(
        self,
        tensors: tuple[Any, ...],
        handle: Any,
        asked: tuple[Any, ...],
        zero_copy: Any,
        overlap: OverlapArguments | None,
    ) -> tuple[tuple[int, int, int], Tensor, RowFormat, int, Overlap | None]:
        """((M, H, E), topk_idx as int64, format, planes, overlap) of arguments that were not looked at before."""
        x, topk_idx, topk_weights, out, waits = tensors
        zero_copy = checks.check_bool("zero_copy", zero_copy)
        flags = [checks.check_bool(keyword, given) for keyword, given in zip(KEYWORDS, asked, strict=True)]
        max_tokens, hidden, num_experts = check_handle(handle, self._num_ranks, self._low_latency.life)
        form = combine_format(flags, zero_copy, hidden)
        expected = (num_experts // self._num_ranks, self._num_ranks * max_tokens, hidden)
        self._check_devices(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            handle=handle[0],
            out=out,
            combine_wait_recv_cost_stats=waits,
            src_signals=None if overlap is None else overlap.src_signals,
            comp_signal=None if overlap is None else overlap.comp_signal,
        )
        beside = None if overlap is None else overlap.check(*expected[:2])
        if beside is not None and beside.signals is not None and not self._device.host_memory:
            warn_of_lazy_loading(self._session.hellos[self._session.rank].device, os.environ)
        good = isinstance(x, Tensor) and tuple(x.shape) == expected and x.dtype == torch.bfloat16
        if not good or not (zero_copy or x.is_contiguous()):
            refuse("x", x, f"a contiguous bf16 tensor of shape {expected}, as the handle's dispatch returned rows")
        ids = checks.row_ids("topk_idx", topk_idx, num_experts if self._device.host_memory else None)
        checks.weights("topk_weights", topk_weights, tuple(ids.shape))
        if ids.shape[0] > max_tokens:
            refuse("topk_idx", ids, f"of up to {max_tokens} rows, as the dispatch allowed")
        return (max_tokens, hidden, num_experts), ids, form, planes_of(handle), beside

    def _check(self, async_finish: bool, return_recv_hook: bool) -> None:
        self._session.check()
        if not self._allowed:
            raise InvalidArgument("this Buffer was made with low_latency_mode=False; low_latency_* calls need True")
        if async_finish is False and (return_recv_hook is False or return_recv_hook is True):
            return
        if checks.check_bool("async_finish", async_finish) & checks.check_bool("return_recv_hook", return_recv_hook):
            refuse("async_finish and return_recv_hook", Described("both True"), "True one at a time")

    def _begin(self, on_caller: bool, max_tokens: int, hidden: int, num_experts: int) -> int:
        """Starts a call of these sizes; what `end` of its other half is told."""
        place = self._device.begin(on_caller)
        if self._low_latency.set_shape(max_tokens, hidden, num_experts, self._collective.barrier):
            place = self._device.begin(on_caller)
        return place

    def _finish(
        self,
        run_hook: RunHook,
        place: int,
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
                    try:
                        self._device.begin(True)
                        receive()
                        self._device.end(pending.pop(), place)
                    except BaseException:  # as in kept_until_run
                        self._device.break_off(locals_of(sys.exc_info()[2]))
                        raise
                    self._low_latency.leave_shape(leave)

            recorded_hook = hook if self._log is None else self._log.hook(hook)
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
        if unchanged(handle, self._low_latency.life) is None:
            check_handle(handle, self._num_ranks, self._low_latency.life)
        self._low_latency.wait_for_zero_copy()
        return self._low_latency.zero_copy_rows(handle, self._low_latency.next_combine_epoch())

    def clean(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Lays the rows out for these sizes, and meets all ranks."""
        self._check(False, False)
        self._session.settle()
        self._begin(False, num_max_dispatch_tokens_per_rank, hidden, num_experts)
        self._collective.barrier()

    def refresh_tag(self) -> None:
        """The session's call tag has changed: kernels get it from the next call on."""
        self._low_latency.refresh()
