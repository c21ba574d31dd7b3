# The routed experts of a layer spread over ranks: dispatch and combine of examples/expert_parallel.py, which go through
# the public DeepEP V1 methods of uccl_ep.Buffer in the way trainers call them, for the batches of this model.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from uccl_ep.examples.expert_parallel import combine, dispatch
from uccl_ep.tools.demo.model import Experts, Routed


class Buffer(Protocol):
    """The part of uccl_ep.Buffer that a trainer calls; tests put a plain-torch one in its place."""

    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int) -> Any: ...

    @property
    def dispatch(self) -> Callable[..., Any]: ...

    def combine(self, x: Tensor, handle: Any, topk_weights: Tensor | None = None) -> Any: ...

    def stats(self) -> dict[str, Any]: ...

    def destroy(self) -> None: ...


class ExpertParallel:
    """The `Exchange` of a rank that holds some of each layer's experts and one micro-batch."""

    def __init__(self, buffer: Buffer, num_experts: int, fp8: bool) -> None:
        self.buffer, self.num_experts, self.fp8 = buffer, num_experts, fp8

    def __call__(self, batches: Sequence[Routed], experts: Experts) -> list[Tensor]:
        (batch,) = batches
        rows, local_idx, weights, handle = dispatch(
            batch.rows, batch.topk_idx, batch.topk_weights, self.buffer, self.num_experts, self.fp8
        )
        results = experts(rows, local_idx, weights, 0, len(experts.up))
        return [combine(results, rows, self.buffer, handle)]
