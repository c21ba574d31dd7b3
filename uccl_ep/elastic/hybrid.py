"""HybridEPBuffer: the interface of DeepEP's hybrid-ep branch that Megatron and TorchTitan call, over ElasticBuffer.

Only its permuted calls exist here: dispatch_with_permute and combine_with_unpermute.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from uccl_ep import _native, checks
from uccl_ep.elastic import expand
from uccl_ep.elastic.buffer import ElasticBuffer
from uccl_ep.elastic.dispatch import Call, split
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.elastic.sizes import check_hidden
from uccl_ep.errors import Described, named, refuse
from uccl_ep.group.group import as_group
from uccl_ep.refused import refusal
from uccl_ep.system.ownership import NoCopies, in_turn

Tensor = torch.Tensor


_MOST_ROWS = (1 << 31) - 1  # row numbers are int32


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        refuse(name, value, "a tensor, or None")
    return value


class HybridHandle(NamedTuple):
    """What combine_with_unpermute and a cached dispatch need. Upstream's is a tuple too; callers only pass it on."""

    dispatched: EPHandle
    rows: Tensor  # int32 [n, K]: the row of each (token, k) among those that were returned, or -1
    num_rows: int
    counts: Tensor  # tokens_per_expert, as returned
    overflow: Tensor  # bool: rows did not fit num_permuted_tokens and were left out


def indices_to_map(
    topk_idx: Tensor, topk_weights: Tensor | None, num_of_tokens: int, num_of_experts: int
) -> tuple[Tensor, Tensor | None]:
    """(routing_map bool [T, E], probs f32 [T, E] or None) of topk_idx int64 [T, K] (-1: not routed) and its weights."""
    ids = topk_idx.long()
    ids = torch.where((ids >= 0) & (ids < num_of_experts), ids, num_of_experts)
    shape = (num_of_tokens, num_of_experts + 1)  # the last column takes what is not routed
    routing_map = torch.zeros(shape, dtype=torch.bool, device=ids.device).scatter_(1, ids, True)
    if topk_weights is None:
        return routing_map[:, :-1].contiguous(), None
    probs = torch.zeros(shape, dtype=torch.float32, device=ids.device).scatter_(1, ids, topk_weights.float())
    return routing_map[:, :-1].contiguous(), probs[:, :-1].contiguous()


def map_to_indices(routing_map: Tensor, probs: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """topk_idx int64 [T, K], ascending and then -1, and weights f32 [T, K]; K = min(E, 32), the same on all ranks."""
    topk = min(routing_map.shape[1], _native.MAX_TOPK)
    order = (~routing_map).byte().argsort(dim=1, stable=True)[:, :topk]
    chosen = routing_map.gather(1, order)
    weights = None if probs is None else torch.where(chosen, probs.float().gather(1, order), 0.0).contiguous()
    return torch.where(chosen, order, -1).contiguous(), weights


class HybridEPBuffer(NoCopies):
    """Dispatch of tokens to rows by expert, and back, by routing maps. Making one is collective.

    Shapes use T = this rank's tokens, E = experts, L = E / N local experts, H = hidden_dim.

    Args:
        group: torch ProcessGroup of any backend, or a ThreadGroup.
        hidden_dim, max_num_of_tokens_per_rank, num_local_experts: H, most tokens of a rank (only non-blocking calls
            hold T to it), and L.
        use_fp8: rows will be one-byte with scaling_factor; they need no more memory.

    The other arguments choose upstream's blocks and networks: accepted, without effect here.
    """

    @named
    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
    ) -> None:
        ranks = as_group(group).size()
        self.num_experts = (
            checks.check_int("num_local_experts", num_local_experts, 1, _native.MAX_EXPERTS // ranks) * ranks
        )
        topk = min(self.num_experts, _native.MAX_TOPK)
        check_hidden("hidden_dim", hidden_dim, checks.check_bool("use_fp8", use_fp8))
        most = _native.MAX_TOKENS_PER_RANK
        checks.check_int("max_num_of_tokens_per_rank", max_num_of_tokens_per_rank, 1, most)
        self._elastic = ElasticBuffer(group, None, 0, max_num_of_tokens_per_rank, hidden_dim, topk)
        self._owner = self._elastic._owner
        self.group, self.rank, self.group_size = group, self._elastic.rank_idx, ranks
        self.use_fp8 = checks.check_bool("use_fp8", use_fp8)
        sizes = SimpleNamespace(
            hidden_dim=hidden_dim,
            max_num_of_tokens_per_rank=max_num_of_tokens_per_rank,
            num_of_experts_per_rank=num_local_experts,
        )
        self.configurer = SimpleNamespace(buffer_config=sizes)

    @in_turn("dispatch_with_permute")
    def dispatch_with_permute(
        self,
        *,
        hidden: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: Tensor | None = None,
        probs: Tensor | None = None,
        scaling_factor: Tensor | None = None,
        num_permuted_tokens: int | None = None,
        pad_multiple: int | None = None,
        handle: HybridHandle | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, HybridHandle]:
        """Sends tokens to the ranks of their experts; rows come out grouped by expert.

        Args:
            hidden: bf16 [T, H], or one-byte with scaling_factor (4-byte dtype [T, packs]).
            routing_map, probs: bool and f32 [T, E]; or topk_idx, topk_weights [T, K]. None with a handle, except probs.
            pad_multiple: each expert's rows are padded to it with zeros; None: 1.
            num_permuted_tokens: rows to return; None: as many as there are.
            non_blocking: do not let the host learn the counts; needs num_permuted_tokens, and what does not fit is left
                out (handle.overflow says so). Otherwise too small a number is refused.
            handle: of an earlier dispatch: the same routing again.
            num_of_experts_per_rank, num_of_experts: checked against the buffer's when given.
            use_fp8: whether scaling_factor is given; None: not said.
            fuse_permute_dispatch, num_dispatched_tokens, use_host_meta: of upstream's kernels, without effect.

        Returns:
            (rows [R, H], probs f32 [R] or None, scales [R, packs] or None, tokens_per_expert int64 [L] with padding, on
            the CPU unless non_blocking, handle).

        Raises:
            InvalidArgument: before anything is sent, but for a num_permuted_tokens that is too small.
        """
        local = self.num_experts // self.group_size
        for name, value, own in (
            ("num_of_experts_per_rank", num_of_experts_per_rank, local),
            ("num_of_experts", num_of_experts, self.num_experts),
        ):
            if value is not None and value != own:
                refuse(name, value, f"{own}, as the buffer was made for")
        if checks.check_bool("non_blocking", non_blocking) and num_permuted_tokens is None and handle is None:
            refuse("non_blocking", True, "False without num_permuted_tokens")
        if use_fp8 is not None and checks.check_bool("use_fp8", use_fp8) != (scaling_factor is not None):
            refuse(
                "use_fp8",
                use_fp8,
                f"{scaling_factor is not None}, or None, {'with' if not use_fp8 else 'without'} scaling_factor",
            )
        x = hidden if scaling_factor is None else (hidden, scaling_factor)
        tokens = split(x, "hidden", "scaling_factor")[0].shape[0]
        if handle is not None:
            self._check_handle(handle)
            if tokens != handle.dispatched.topk_idx.shape[0]:
                refuse("hidden", hidden, f"of {handle.dispatched.topk_idx.shape[0]} rows, as the handle's dispatch had")
            weights = None if probs is None else self._cached_probs(probs, handle)
            call = self._call(None, not non_blocking, cached=True)
            results = self._elastic._start(x, None, weights, handle.dispatched, call)()
            return *self._cut(results, handle.num_rows), handle.counts, handle
        most = self.configurer.buffer_config.max_num_of_tokens_per_rank
        if non_blocking and tokens > most:
            refuse("hidden", hidden, f"of up to max_num_of_tokens_per_rank={most} rows where non_blocking is True")
        if num_permuted_tokens is not None:
            checks.check_int("num_permuted_tokens", num_permuted_tokens, 0, _MOST_ROWS)
        if routing_map is None:
            routing_map, probs = self._map_of(topk_idx, topk_weights, tokens)
        routing_map = self._checked_map(routing_map, probs, tokens)
        ids, weights = map_to_indices(routing_map, probs)
        call = self._call(checks.check_int("pad_multiple", pad_multiple or 1, 1, 1 << 16), not non_blocking)
        results = self._elastic._start(x, ids, weights, None, call)()
        made = self._made(results[3], num_permuted_tokens, bool(non_blocking))
        return *self._cut(results, made.num_rows), made.counts, made

    @in_turn("combine_with_unpermute")
    def combine_with_unpermute(
        self,
        *,
        hidden: Tensor,
        probs: Tensor | None = None,
        handle: HybridHandle | None = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Adds up each token's rows: (bf16 [T, H], probs f32 [T, E] or None).

        Args:
            hidden: bf16 [R, H], rows as dispatch_with_permute returned them. probs: f32 [R] or None.
            handle: of the dispatch. out: contiguous bf16 [T, H] to write into. The other arguments have no effect.

        Rounding is that of ElasticBuffer.combine with allow_multiple_reduction. A prob is that of the expert's row, 0
        where a token was not routed.
        """
        self._check_handle(handle)
        assert handle is not None
        x = checks.check_matrix("hidden", hidden, (torch.bfloat16,))
        if x.shape[0] != handle.num_rows:
            refuse("hidden", x, f"of {handle.num_rows} rows, as dispatch_with_permute returned")
        weights = None
        if probs is not None:
            flat = checks.check_vector("probs", probs, torch.float32, handle.num_rows)
            weights = expand.gather_weights(flat, handle.rows) if flat is not None else None
        made = handle.dispatched
        reduced = expand.reduce_rows(x, handle.rows)
        if out is not None:
            checks.check_out("out", out, (made.topk_idx.shape[0], x.shape[1]), torch.bfloat16, hidden=x, probs=probs)
        combined, own, _ = self._elastic._buffer.combine(reduced, made.routing, weights, out=out)
        if own is None:
            return combined, None
        return combined, indices_to_map(made.topk_idx, own, combined.shape[0], self.num_experts)[1]

    def empty_jit_cache(self) -> None:
        """Does nothing: no kernel is built for a shape here (`uccl-ep warmup` is about those of the GPU)."""

    @named
    def update_template_config(
        self,
        hidden_dim: int | None = None,
        num_of_tokens_per_rank: int | None = None,
        num_local_experts: int | None = None,
        pad_multiple: int | None = None,
        use_fp8: bool | None = None,
        fuse_permute_dispatch: bool = False,
        **settings: Any,
    ) -> SimpleNamespace:
        """Checks sizes against the buffer's, which upstream builds kernels for and may enlarge its memory for.

        Args:
            hidden_dim, num_of_tokens_per_rank: up to the buffer's. num_local_experts: the buffer's.
            pad_multiple, use_fp8, fuse_permute_dispatch, settings: what dispatch_with_permute is told in each call, and
                blocks and stages of upstream's kernels: without effect.

        Returns:
            The sizes, as `configurer.buffer_config` has them.

        Raises:
            InvalidArgument: a size that the buffer was not made for.
        """
        sizes = self.configurer.buffer_config
        for name, value, most in (
            ("hidden_dim", hidden_dim, sizes.hidden_dim),
            ("num_of_tokens_per_rank", num_of_tokens_per_rank, sizes.max_num_of_tokens_per_rank),
        ):
            if value is not None:
                checks.check_int(name, value, 1, most, "Make the buffer larger: its memory does not grow.")
        if num_local_experts is not None and num_local_experts != sizes.num_of_experts_per_rank:
            refuse(
                "num_local_experts", num_local_experts, f"{sizes.num_of_experts_per_rank}, as the buffer was made for"
            )
        return SimpleNamespace(**vars(sizes))

    dispatch = refusal("HybridEPBuffer.dispatch", "call dispatch_with_permute, or use ElasticBuffer")
    combine = refusal("HybridEPBuffer.combine", "call combine_with_unpermute")

    # ---- pieces ------------------------------------------------------------------------------------------------

    def _call(self, alignment: int | None, cpu_sync: bool, cached: bool = False) -> Call:
        # Where the host learns the counts, a rank may have any number of tokens: nothing has the worst size.
        most = _native.MAX_TOKENS_PER_RANK if cpu_sync else None
        given = (None, None, None) if cached else (self.num_experts, most, alignment)
        sync = None if cached else cpu_sync
        return Call(given, 0, None, (None, None), True, sync, expand=True, zero_padding=True, column_major=False)

    def _map_of(
        self, topk_idx: Tensor | None, topk_weights: Tensor | None, tokens: int
    ) -> tuple[Tensor, Tensor | None]:
        if topk_idx is None:
            refuse("routing_map", None, "a bool tensor [T, E] where neither topk_idx nor a handle is given")
        host = self._elastic._buffer._device.host_memory
        ids = topk_idx.contiguous() if isinstance(topk_idx, Tensor) else topk_idx
        ids = checks.row_ids("topk_idx", ids, self.num_experts if host else None)
        if ids.shape[0] != tokens:
            refuse("topk_idx", ids, f"of {tokens} rows, as hidden has")
        if topk_weights is not None and tuple(_tensor("topk_weights", topk_weights).shape) != tuple(ids.shape):
            refuse("topk_weights", topk_weights, f"of shape {tuple(ids.shape)}, as topk_idx")
        return indices_to_map(ids, topk_weights, tokens, self.num_experts)

    @staticmethod
    def _check_handle(handle: Any) -> None:
        if not isinstance(handle, HybridHandle):
            refuse("handle", handle, "the handle that dispatch_with_permute returned")

    def _checked_map(self, routing_map: Tensor, probs: Tensor | None, tokens: int) -> Tensor:
        routing_map = checks.check_matrix("routing_map", routing_map, (torch.bool,), self.num_experts)
        if routing_map.shape[0] != tokens:
            refuse("routing_map", routing_map, f"of {tokens} rows, as hidden has")
        if probs is not None and tuple(_tensor("probs", probs).shape) != tuple(routing_map.shape):
            refuse("probs", probs, f"of shape {tuple(routing_map.shape)}, as routing_map")
        most = _native.MAX_TOPK
        if self.num_experts > most and not routing_map.is_cuda and bool((routing_map.sum(1) > most).any()):
            refuse(
                "routing_map",
                Described(f"a token with {int(routing_map.sum(1).max())} experts"),
                f"of up to {most} experts a token",
            )
        return routing_map

    def _cached_probs(self, probs: Tensor, handle: HybridHandle) -> Tensor:
        ids = handle.dispatched.topk_idx
        if tuple(_tensor("probs", probs).shape) != (ids.shape[0], self.num_experts):
            refuse("probs", probs, f"of shape {(ids.shape[0], self.num_experts)}, as the handle's dispatch had")
        return torch.where(ids >= 0, probs.float().gather(1, ids.clamp(min=0)), 0.0).contiguous()

    def _made(self, made: EPHandle, num_rows: int | None, non_blocking: bool) -> HybridHandle:
        needed = made.num_expanded_tokens
        rows = made.expanded_rows
        if num_rows is None:
            num_rows = needed
        if not non_blocking and num_rows < needed:
            refuse("num_permuted_tokens", num_rows, f"{needed} or more here")
        counts = made.num_unaligned_recv_tokens_per_expert.long()
        counts = (counts + made.expert_alignment - 1) // made.expert_alignment * made.expert_alignment
        overflow = counts.sum() > num_rows
        if not non_blocking:
            counts = torch.tensor(made.num_recv_tokens_per_expert_list, dtype=torch.int64)
        return HybridHandle(made, torch.where(rows < num_rows, rows, -1), num_rows, counts, overflow)

    @staticmethod
    def _cut(results: tuple[Any, ...], num_rows: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """rows, probs and scales of an expanded dispatch, cut or padded with zeros to `num_rows`."""
        received, _, weights, _ = results
        data, scales = received if isinstance(received, tuple) else (received, None)
        return _fit(data, num_rows), _fit(weights, num_rows), _fit(scales, num_rows)


def _fit(values: Any, num_rows: int) -> Any:
    if values is None or values.shape[0] == num_rows:
        return values
    if values.shape[0] > num_rows:
        return values[:num_rows].contiguous()
    raw = values.view(torch.uint8) if values.element_size() == 1 else values
    more = raw.new_zeros(num_rows - raw.shape[0], *raw.shape[1:])
    return torch.cat([raw, more]).view(values.dtype)
