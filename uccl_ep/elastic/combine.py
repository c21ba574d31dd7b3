"""What ElasticBuffer.combine does: expanded or plain rows back to their tokens, with V2's arguments and roundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.buffer import Buffer
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic import expand
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.errors import refuse
from uccl_ep.throughput.calls import unpack_bias

Tensor = torch.Tensor


class ElasticCombine:
    """The combine of an ElasticBuffer, which documents it, on the throughput calls of `buffer`."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def combine(
        self,
        x: Tensor,
        handle: EPHandle,
        topk_weights: Tensor | None,
        bias: Any,
        before: Mapping[str, EventHandle | None],
        many_sums: bool,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Adds up.

        Args:
            before: events, by the names of their arguments.
            many_sums: the buffer's allow_multiple_reduction.
        """
        x, weights = self._checked(x, handle, topk_weights, many_sums)
        if out is not None:
            read = {"x": x, "topk_weights": weights, **dict(zip(("bias", "bias[1]"), unpack_bias(bias), strict=True))}
            checks.check_out("out", out, (handle.topk_idx.shape[0], x.shape[1]), torch.bfloat16, **read)
        for event in [checks.event(name, value) for name, value in before.items()]:
            if event is not None:
                event.current_stream_wait()  # what torch does below reads x as well
        if weights is not None:
            rows, idx = handle.expanded_rows, handle.recv_topk_idx
            weights = expand.gather_weights(weights, rows) if handle.do_expand else torch.where(idx >= 0, weights, 0.0)
        if many_sums:
            reduced = expand.reduce_rows(x, handle.expanded_rows) if handle.do_expand else x
            combined, combined_weights, _ = self._buffer.combine(reduced, handle.routing, weights, bias, out=out)
        else:
            combined, combined_weights = self._combine_once(x, handle, weights, bias)
            combined = combined if out is None else out.copy_(combined)
        if combined_weights is not None:
            combined_weights = torch.where(handle.topk_idx >= 0, combined_weights, 0.0)
        return combined, combined_weights

    def _combine_once(
        self, x: Tensor, handle: EPHandle, weights: Tensor | None, bias: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One pass for each top-k position: in a pass a token has one row that is not zero, so nothing is rounded."""
        biases = [b for b in unpack_bias(bias) if b is not None]
        tokens, hidden = handle.topk_idx.shape[0], x.shape[1]
        for b in biases:
            if tuple(checks.check_matrix("bias", b, (torch.bfloat16,)).shape) != (tokens, hidden):
                refuse("bias", b, f"of shape {(tokens, hidden)}")
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
        self, x: Tensor, handle: EPHandle, topk_weights: Tensor | None, many_sums: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not isinstance(handle, EPHandle):
            refuse("handle", handle, "the EPHandle that dispatch returned")
        _ = handle.topk_idx  # unchanged?
        x = checks.check_matrix("x", x, (torch.bfloat16,))
        rows = handle.num_expanded_tokens
        if x.shape[0] != rows:
            refuse("x", x, f"of {rows} rows, as the handle's dispatch returned")
        if topk_weights is None:
            return x, None
        if not handle.do_expand:
            return x, checks.weights("topk_weights", topk_weights, tuple(handle.recv_topk_idx.shape))
        if not many_sums:
            refuse("topk_weights", topk_weights, "None for expanded rows without allow_multiple_reduction")
        return x, checks.check_vector("topk_weights", topk_weights, torch.float32, rows)
