"""One rank's dispatch and combine: buffers, inputs, calls, and the check of every result that is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.device.platforms import Platform
from bench.device.shapes import LOW_LATENCY, Shape
from uccl_ep import Buffer
from uccl_ep.errors import UcclEpError
from uccl_ep.tools.bench.inputs import Inputs, make_inputs, num_visits
from uccl_ep.tools.bench.options import BenchOptions

Tensor = torch.Tensor
WORST_FP8, WORST_BF16 = 4e-3, 1e-4  # 1 - cosine-like similarity of the worst token's row; a wrong row gives about 1


def unchanged_rows_combined(options: BenchOptions, inputs: Inputs) -> torch.Tensor:
    """What comes back when experts return their rows unchanged: bf16 [T, H].

    Throughput: x times the number of ranks that a token visits. Low latency: the fp32 sum of weight * x over k. Nodes
    and peers round in between, so a comparison needs a tolerance of bf16's size.
    """
    x = inputs.x.float()
    if options.mode == "throughput":
        return (x * num_visits(options, inputs).sum(1, keepdim=True)).bfloat16()
    return (x * inputs.weights.sum(1, keepdim=True)).bfloat16()


@dataclass(frozen=True)
class Case:
    """Inputs on the device, and what an exchange whose experts return their rows must give."""

    inputs: Inputs
    expected: Tensor  # f32 [T, H]


def worst_row(seen: Tensor, due: Tensor) -> float:
    """1 - 2 x.y / (x.x + y.y) of the worst row; 0 is equal. NaN counts as wrong."""
    if seen.shape[0] == 0:
        return 0.0
    a, b = seen.double(), due.double()
    similar = 2 * (a * b).sum(1) / (a * a + b * b).sum(1).clamp_min(1e-30)
    return float((1 - similar).nan_to_num(nan=1.0).max())


class Exchange:
    """A Buffer for a shape, and two input sets that take turns: stale results of the round before are wrong ones.

    Raises:
        UcclEpError: as Buffer.
    """

    def __init__(self, group: Any, platform: Platform, shape: Shape) -> None:
        self.shape, self.platform = shape, platform
        self.low_latency = shape.mode == LOW_LATENCY
        nvl, rdma = buffer_bytes(shape)
        self.buffer = Buffer(
            group, nvl, rdma, low_latency_mode=self.low_latency, explicitly_destroy=True, device=platform.device
        )
        self.cases = [self._case(seed) for seed in (1, 2)]
        self._rows: dict[int, Tensor] = {}
        self.handle: Any = None

    def _case(self, seed: int) -> Case:
        s = self.shape
        mode = "low-latency" if self.low_latency else "throughput"
        options = BenchOptions(mode, s.ranks, s.ranks_per_node, s.tokens, s.hidden, s.topk, s.experts, seed=seed)
        inputs = make_inputs(options, self.buffer.rank)
        expected = unchanged_rows_combined(options, inputs).float().to(self.platform.where)
        moved = (t.to(self.platform.where) for t in (inputs.x, inputs.ids, inputs.weights))
        return Case(Inputs(*moved), expected)

    # ---- low latency: fp8 rows out, bf16 rows back --------------------------------------------------------------

    def low_latency_dispatch(self, case: Case, hook: bool = False) -> Any:
        """(received, handle, hook): the call's results that combine needs."""
        s, i = self.shape, case.inputs
        fp8 = s.hidden % 128 == 0
        received, _, handle, _, receive = self.buffer.low_latency_dispatch(
            i.x, i.ids, s.tokens, s.experts, use_fp8=fp8, return_recv_hook=hook
        )
        return received, handle, receive

    def low_latency_rows(self, received: Any) -> Tensor:
        """bf16 [L, P, H]: what experts that return their rows give back. Not timed."""
        self.platform.synchronize()
        if not isinstance(received, tuple):
            return received  # type: ignore[no-any-return]
        data, scales = received
        groups = data.float().unflatten(2, (-1, 128)) * scales.unsqueeze(3)
        # Rows that nobody sent are undefined, and may be NaN; combine does not read them.
        rows: Tensor = groups.flatten(2).bfloat16()
        return rows

    def low_latency_combine(self, case: Case, rows: Tensor, handle: Any, hook: bool = False) -> tuple[Tensor, Any]:
        """(combined rows, hook)."""
        i = case.inputs
        out, _, receive = self.buffer.low_latency_combine(rows, i.ids, i.weights, handle, return_recv_hook=hook)
        return out, receive

    # ---- throughput: bf16 both ways -------------------------------------------------------------------------------

    def dispatch(self, case: Case) -> tuple[Tensor, Any]:
        """(rows, handle) of layout and dispatch; waits for the counts, so for the other ranks."""
        i = case.inputs
        ranks, nodes, experts, in_rank, _ = self.buffer.get_dispatch_layout(i.ids, self.shape.experts)
        rows, _, _, _, handle, _ = self.buffer.dispatch(
            i.x,
            num_tokens_per_rank=ranks,
            num_tokens_per_rdma_rank=nodes,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=experts,
            topk_idx=i.ids,
            topk_weights=i.weights,
        )
        return rows, handle

    def dispatch_cached(self, case: Case, handle: Any) -> Tensor:
        """Rows on a known routing."""
        return self.buffer.dispatch(case.inputs.x, handle=handle)[0]  # type: ignore[no-any-return]

    def combine(self, rows: Tensor, handle: Any) -> Tensor:
        """Combined rows."""
        return self.buffer.combine(rows, handle)[0]

    # ---- results --------------------------------------------------------------------------------------------------

    def check(self, out: Tensor, case: Case, when: str) -> float:
        """The worst row's distance from what is due.

        Raises:
            UcclEpError: a row is wrong.
        """
        self.platform.synchronize()
        worst = worst_row(out, case.expected)
        allowed = WORST_FP8 if self.low_latency else WORST_BF16
        if not worst <= allowed:
            raise UcclEpError(
                f"{self.shape.label}, {when}: a row differs from what is due by {worst:.3g} of at most {allowed}"
            )
        return worst

    def close(self) -> None:
        """Frees the Buffer."""
        self.buffer.destroy()


def buffer_bytes(shape: Shape) -> tuple[int, int]:
    """(num_nvl_bytes, num_rdma_bytes): rings that hold some hundred rows a stream, or the low-latency slots."""
    if shape.mode == LOW_LATENCY:
        hint = Buffer.get_low_latency_rdma_size_hint(shape.tokens, shape.hidden, shape.ranks, shape.experts)
        return 0, hint
    row = 2 * shape.hidden + 1024
    return (8 + 4 * shape.ranks) * 256 * row // 128 * 128, 0
