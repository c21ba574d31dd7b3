"""ElasticBuffer.combine: expanded or plain rows back to their tokens, with V2's arguments and roundings."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.buffer import Buffer
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic import expand
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.errors import refuse
from uccl_ep.events import EventOverlap
from uccl_ep.system.ownership import in_turn

Tensor = torch.Tensor


class CombineApi:
    """What ElasticBuffer inherits; see ElasticBuffer for the letters in shapes."""

    allow_multiple_reduction: bool
    _buffer: Buffer

    @in_turn("combine")
    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap[EventHandle]]:
        """Adds up, for each token, the rows that its experts gave. Weights must have been applied to x already.

        Args:
            x: bf16 [rows, H] contiguous, rows as the handle's dispatch returned them.
            handle: of the dispatch. num_sms and num_qps have no effect: the handle's channels are used.
            topk_weights: f32 [n, K], or [rows] when expanded (only with allow_multiple_reduction), or None.
            bias: bf16 [T, H], a pair of such, or None; added first.
            previous_event, allocate_on_comm_stream, async_with_compute_stream: as in dispatch.

        Returns:
            (combined_x bf16 [T, H], combined_topk_weights f32 [T, K] or None, event). With allow_multiple_reduction:
            expanded rows of a token are summed per rank in f32 over ascending k and rounded; then bias and ranks,
            ascending, in f32, rounded (each node's ranks first where there are several). Without it: bias and all rows
            in ascending top-k position, in f32, rounded once; that takes K passes over the network. (Not expanded, a
            rank's row stands at the last position that names the rank.) A weight is that of the rank that has the
            expert, 0 where topk_idx is -1.

        Raises:
            InvalidArgument: before anything is sent.
        """
        x, weights = self._checked(x, handle, topk_weights, (num_sms, num_qps))
        if previous_event is not None and not allocate_on_comm_stream:
            refuse("previous_event", previous_event, "None without allocate_on_comm_stream=True")
        given = {"previous_event": previous_event, "previous_event_before_epilogue": previous_event_before_epilogue}
        for event in [checks.event(name, value) for name, value in given.items()]:
            if event is not None:
                event.current_stream_wait()  # what torch does below reads x as well
        if weights is not None:
            rows, idx = handle.expanded_rows, handle.recv_topk_idx
            weights = expand.gather_weights(weights, rows) if handle.do_expand else torch.where(idx >= 0, weights, 0.0)
        if self.allow_multiple_reduction:
            reduced = expand.reduce_rows(x, handle.expanded_rows) if handle.do_expand else x
            combined, combined_weights, _ = self._buffer.combine(reduced, handle.routing, weights, bias)
        else:
            combined, combined_weights = self._combine_once(x, handle, weights, bias)
        if combined_weights is not None:
            combined_weights = torch.where(handle.topk_idx >= 0, combined_weights, 0.0)
        event_of = EventOverlap(EventHandle()) if async_with_compute_stream else EventOverlap[EventHandle]()
        return combined, combined_weights, event_of

    def _combine_once(
        self, x: Tensor, handle: EPHandle, weights: Tensor | None, bias: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One pass for each top-k position: in a pass a token has one row that is not zero, so nothing is rounded."""
        biases = [b for b in self._buffer._unpack_bias(bias) if b is not None]
        tokens, hidden = handle.topk_idx.shape[0], x.shape[1]
        for b in biases:
            if tuple(checks.check_matrix("bias", b, (torch.bfloat16,)).shape) != (tokens, hidden):
                refuse("bias", tuple(b.shape), f"shape {(tokens, hidden)}")
        total = torch.zeros(tokens, hidden, dtype=torch.float32, device=x.device)
        for b in biases:
            total += b.float()
        position = expand.last_choice(handle.recv_topk_idx)  # where upstream adds what a rank gives for a token
        combined_weights: Tensor | None = None
        for k in range(handle.topk_idx.shape[1]):
            if handle.do_expand:
                part = expand.row_of_choice(x, handle.expanded_rows, k)
            else:
                part = torch.where((position == k).unsqueeze(1), x, torch.zeros((), dtype=x.dtype, device=x.device))
            own, own_weights, _ = self._buffer.combine(part, handle.routing, weights if k == 0 else None)
            total += own.float()
            combined_weights = own_weights if k == 0 else combined_weights
        return total.bfloat16(), combined_weights

    def _checked(
        self, x: Tensor, handle: EPHandle, topk_weights: Tensor | None, unused: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        if not isinstance(handle, EPHandle):
            refuse("handle", type(handle).__name__, "the EPHandle that dispatch returned")
        for name, value in zip(("num_sms", "num_qps"), unused, strict=True):
            checks.check_int(name, value, 0, 1 << 16)
        _ = handle.topk_idx  # unchanged?
        x = checks.check_matrix("x", x, (torch.bfloat16,))
        rows = handle.num_expanded_tokens
        if x.shape[0] != rows:
            refuse("x", tuple(x.shape), f"{rows} rows, as the handle's dispatch returned")
        if topk_weights is None:
            return x, None
        if not handle.do_expand:
            return x, checks.weights("topk_weights", topk_weights, tuple(handle.recv_topk_idx.shape))
        if not self.allow_multiple_reduction:
            refuse("topk_weights", "given", "None for expanded rows without allow_multiple_reduction")
        return x, checks.check_vector("topk_weights", topk_weights, torch.float32, rows)
