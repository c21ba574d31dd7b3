"""What a type checker sees of Buffer's dispatches: which kind of rows comes back for which arguments.

`typing.overload` beside the methods themselves would bury their one docstring under every combination, so each method
is decorated instead: it stays as it is, and a type checker takes its calls for those of a class below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast, overload

import torch

from uccl_ep.config import Config
from uccl_ep.device.protocol import EventHandle
from uccl_ep.events import EventOverlap
from uccl_ep.low_latency.handle import Handle as LowLatencyHandle
from uccl_ep.throughput.handle import ThroughputHandle

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]  # rows and their scales
Event = EventOverlap[EventHandle]
Hook = Callable[[], None]
Cached = tuple[None, None, None, None]  # what a cached call returns between rows and event
_Call = TypeVar("_Call", covariant=True)


class Method(Protocol[_Call]):
    """A method whose calls are those of a class with overloads."""

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Call: ...


class DispatchCall(Protocol):
    """Buffer.dispatch: rows in, rows out; rows with scales in, both out; with a handle nothing else is new."""

    @overload
    def __call__(
        self, x: Tensor, handle: None = None, num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Config | None = None, previous_event: Event | None = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        *, overflow_policy: Literal["trap", "drop"] = "trap",
    ) -> tuple[Tensor, Tensor | None, Tensor | None, list[int], ThroughputHandle, Event]: ...  # fmt: skip
    @overload
    def __call__(
        self, x: Pair, handle: None = None, num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Config | None = None, previous_event: Event | None = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        *, overflow_policy: Literal["trap", "drop"] = "trap",
    ) -> tuple[Pair, Tensor | None, Tensor | None, list[int], ThroughputHandle, Event]: ...  # fmt: skip
    @overload
    def __call__(
        self, x: Tensor, handle: tuple[Tensor, ...], num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: None = None, topk_weights: None = None,
        expert_alignment: int = 1, num_worst_tokens: int = 0, config: Config | None = None,
        previous_event: Event | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
        *, overflow_policy: Literal["trap", "drop"] = "trap",
    ) -> tuple[Tensor, None, None, None, None, Event]: ...  # fmt: skip
    @overload
    def __call__(
        self, x: Pair, handle: tuple[Tensor, ...], num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: None = None, topk_weights: None = None,
        expert_alignment: int = 1, num_worst_tokens: int = 0, config: Config | None = None,
        previous_event: Event | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
        *, overflow_policy: Literal["trap", "drop"] = "trap",
    ) -> tuple[Pair, None, None, None, None, Event]: ...  # fmt: skip


class CombineCall(Protocol):
    """Buffer.combine; its handle is what dispatch returned."""

    def __call__(
        self, x: Tensor, handle: tuple[Tensor, ...], topk_weights: Tensor | None = None,
        bias: Tensor | tuple[Tensor | None, Tensor | None] | None = None, config: Config | None = None,
        previous_event: Event | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
        *, out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Event]: ...  # fmt: skip


class LowLatencyDispatchCall(Protocol):
    """Buffer.low_latency_dispatch: bf16 rows are a tensor, FP8 (the default) and NVFP4 rows come with their scales."""

    @overload
    def __call__(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None, dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: Literal[True] = True, round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False, *, use_nvfp4: Literal[False] = False, x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False, topk_weights: Tensor | None = None, use_eager: bool = False,
        align_fp8_quantization: bool = False,
    ) -> tuple[Pair, Tensor, LowLatencyHandle, Event, Hook | None]: ...  # fmt: skip
    @overload
    def __call__(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None, dispatch_wait_recv_cost_stats: Tensor | None = None,
        *, use_fp8: Literal[False], round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False, use_nvfp4: Literal[False] = False, x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False, topk_weights: Tensor | None = None, use_eager: bool = False,
        align_fp8_quantization: bool = False,
    ) -> tuple[Tensor, Tensor, LowLatencyHandle, Event, Hook | None]: ...  # fmt: skip
    @overload
    def __call__(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None, dispatch_wait_recv_cost_stats: Tensor | None = None,
        *, use_fp8: Literal[False], round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False, use_nvfp4: Literal[True], x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False, topk_weights: Tensor | None = None, use_eager: bool = False,
        align_fp8_quantization: bool = False,
    ) -> tuple[Pair, Tensor, LowLatencyHandle, Event, Hook | None]: ...  # fmt: skip
    @overload  # what is only known when it runs
    def __call__(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None, dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True, round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False, *, use_nvfp4: bool = False, x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False, topk_weights: Tensor | None = None, use_eager: bool = False,
        align_fp8_quantization: bool = False,
    ) -> tuple[Any, Tensor, LowLatencyHandle, Event, Hook | None]: ...  # fmt: skip


def dispatch_call(method: Callable[..., Any]) -> Method[DispatchCall]:
    """Decorates dispatch."""
    return cast("Method[DispatchCall]", method)


def combine_call(method: Callable[..., Any]) -> Method[CombineCall]:
    """Decorates combine."""
    return cast("Method[CombineCall]", method)


def low_latency_dispatch_call(method: Callable[..., Any]) -> Method[LowLatencyDispatchCall]:
    """Decorates low_latency_dispatch."""
    return cast("Method[LowLatencyDispatchCall]", method)
