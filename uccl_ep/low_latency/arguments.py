"""Arguments of the low-latency kernels: what the sizes of calls fix is filled in once, each call fills in a copy."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.session.session import Session

_STAGING_TICKETS = 1 << 10
_KERNELS = 5
_Arguments = TypeVar("_Arguments", bound=Any)


class Prototypes:
    """Of one LowLatency, with the memory that its kernels count in.

    A call launches a kernel with a copy, `_native.DispatchSendArgs(prototypes.dispatch_send)`, in which it sets `epoch`
    and what is its own.

    Attributes:
        dispatch_send, dispatch_receive, combine_send, combine_receive, combine_reduce: arguments of these kernels, once
            `lay_out` was called.
    """

    dispatch_send: _native.DispatchSendArgs
    dispatch_receive: _native.DispatchReceiveArgs
    combine_send: _native.CombineSendArgs
    combine_receive: _native.CombineReceiveArgs
    combine_reduce: _native.CombineReduceArgs

    def __init__(self, session: Session, device: Device) -> None:
        self._session = session
        self._state = device.zeros(_native.low_latency_state_bytes(session.num_ranks) // 8, dtype=torch.int64)
        self._tickets = device.zeros(_KERNELS, dtype=torch.int32)
        self._grid_barrier = device.zeros(_KERNELS * _native.GRID_BARRIER_WORDS, dtype=torch.int32)
        self._num_writes = device.zeros(session.topology.num_cells, dtype=torch.int32)
        self._num_writes_of_sums = device.zeros(session.num_ranks, dtype=torch.int32)
        self._staging_tickets = device.zeros(_STAGING_TICKETS, dtype=torch.int64)

    def refresh(self) -> None:
        """The session's context has changed: calls from now on have it."""
        if hasattr(self, "dispatch_send"):
            self.lay_out(self.dispatch_send.call.layout, self.dispatch_send.call.num_experts)

    def lay_out(self, layout: _native.LowLatencyLayout, num_experts: int) -> None:
        """From now on calls have these sizes."""
        call = _native.LowLatencyCall()
        call.layout, call.num_experts = layout, num_experts
        call.num_local_experts = num_experts // self._session.num_ranks
        call.state = self._state.data_ptr()
        self.dispatch_send = self._of(_native.DispatchSendArgs(), call, 0)
        self.dispatch_send.num_writes = self._num_writes.data_ptr()
        self.dispatch_receive = self._of(_native.DispatchReceiveArgs(), call, 1)
        self.combine_send = self._of(_native.CombineSendArgs(), call, 2)
        self.combine_send.staging_ticket = self._staging_tickets.data_ptr()
        self.combine_receive = self._of(_native.CombineReceiveArgs(), call, 3)
        self.combine_reduce = self._of(_native.CombineReduceArgs(), call, 4)
        self.combine_reduce.num_writes = self._num_writes_of_sums.data_ptr()

    def _of(self, args: _Arguments, call: _native.LowLatencyCall, kernel: int) -> _Arguments:
        call.ticket = self._tickets.data_ptr() + 4 * kernel
        call.grid_barrier = self._grid_barrier.data_ptr() + 4 * kernel * _native.GRID_BARRIER_WORDS
        args.rank, args.call = self._session.context, call
        return args
