"""Expanded dispatches into memory of the caller's, as OLMo-core calls them: servers and graphs own what they reuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic.arguments import behind, check_ignored, ended
from uccl_ep.elastic.dispatch import Call, Into, Results
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.errors import refuse
from uccl_ep.events import EventOverlap
from uccl_ep.system.ownership import Owner, in_turn

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]


class IntoCalls:
    """The two calls, for ElasticBuffer."""

    _owner: Owner
    _start: Callable[..., Callable[[], Results]]

    @in_turn("dispatch_expanded_into")
    def dispatch_expanded_into(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor,
        topk_weights: Tensor | None = None,
        *,
        recv_x_out: Tensor,
        recv_topk_weights_out: Tensor | None = None,
        recv_sf_out: Tensor | None = None,
        expanded_row_offset: int = 0,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_zero_padding: bool = False,
        max_recv_tokens_per_rank: int | None = None,
        overflow_policy: str = "trap",
    ) -> tuple[Any, None, Tensor | None, EPHandle, Event]:
        """dispatch with do_expand=True, whose rows are written into tensors of the caller's.

        Args that differ from dispatch's:
            recv_x_out: contiguous [C, H] of x's dtype, on a 16-byte border. C is this rank's own choice: how many rows
                it takes in. Combine then wants C rows. What no row is written to is undefined without do_zero_padding.
            recv_sf_out: [C, packs] of the dtype of x's scales, any strides. recv_topk_weights_out: f32 [C]. Each where,
                and only where, the call has such; all apart from each other and from what is sent.
            expanded_row_offset: 0. For another, pass recv_x_out.narrow(0, offset, rows).
            do_cpu_sync: False leaves out the rows that do not fit, and says so in handle.overflow, with the number that
                was needed in handle.num_expanded_rows_needed: look at them when the step is over, and dispatch again
                with more. True (or None) refuses a C that is too small, when all ranks have ended the call.
            max_recv_tokens_per_rank, overflow_policy: as dispatch's; they bound tokens, and C bounds their rows. What
                was dropped counts for nothing in num_expanded_rows_needed, and handle.overflow says either.

        Returns:
            (recv_x_out or (recv_x_out, recv_sf_out), None, recv_topk_weights_out, handle, event).

        Raises:
            InvalidArgument: before anything is sent, but for a C that is too small.
        """
        if expanded_row_offset:
            hint = "Pass recv_x_out.narrow(0, offset, rows) instead."
            refuse("expanded_row_offset", expanded_row_offset, "0", hint)
        given = num_experts, num_max_tokens_per_rank, expert_alignment
        call = self._into(
            Into(recv_x_out, recv_sf_out, recv_topk_weights_out), given, num_sms, num_qps, do_zero_padding
        )
        call = call._replace(
            stats=cumulative_local_expert_recv_stats,
            before=(behind(previous_event, allocate_on_comm_stream), None),
            copies=checks.check_bool("do_handle_copy", do_handle_copy),
            cpu_sync=do_cpu_sync,
            bound=(max_recv_tokens_per_rank, overflow_policy),
        )
        received, _, weights, handle = self._start(x, topk_idx, topk_weights, None, call)()
        return received, None, weights, handle, ended(async_with_compute_stream)

    @in_turn("dispatch_cached_expanded_into")
    def dispatch_cached_expanded_into(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        *,
        handle: EPHandle,
        recv_x_out: Tensor,
        topk_weights: Tensor | None = None,
        recv_topk_weights_out: Tensor | None = None,
        recv_sf_out: Tensor | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        do_zero_padding: bool = False,
    ) -> tuple[Any, None, Tensor | None, EPHandle, Event]:
        """The routing of an expanded handle again, without counting; rows as dispatch_expanded_into writes them.

        Args:
            x: as dispatch's; of another dtype than the handle's dispatch had, if that is wanted.
            handle: of any expanded dispatch. recv_x_out: as many rows as that returned; rows that did not fit there are
                left out here too.

        Returns:
            As dispatch_expanded_into, with the same handle.

        Raises:
            InvalidArgument: before anything is sent.
        """
        into = Into(recv_x_out, recv_sf_out, recv_topk_weights_out)
        call = self._into(into, (None, None, None), num_sms, num_qps, do_zero_padding)
        call = call._replace(before=(behind(previous_event, allocate_on_comm_stream), None))
        received, _, weights, _ = self._start(x, None, topk_weights, handle, call)()
        return received, None, weights, handle, ended(async_with_compute_stream)

    @staticmethod
    def _into(
        into: Into, given: tuple[int | None, int | None, int | None], num_sms: int, num_qps: int, zero_padding: bool
    ) -> Call:
        check_ignored(num_qps=num_qps)
        zeros = checks.check_bool("do_zero_padding", zero_padding)
        return Call(given, num_sms, None, (None, None), True, None, True, zeros, column_major=False, into=into)
