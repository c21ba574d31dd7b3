"""ElasticBuffer: DeepEP's V2 interface. One throughput Buffer does the work; this file is its life and its sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import _native, checks
from uccl_ep.buffer import Buffer
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic import sizes
from uccl_ep.elastic.arguments import behind, check_ignored, ended
from uccl_ep.elastic.combine import ElasticCombine
from uccl_ep.elastic.dispatch import Call, Results
from uccl_ep.elastic.handle import EPHandle
from uccl_ep.elastic.into import IntoCalls
from uccl_ep.elastic.members import ElasticMembers
from uccl_ep.errors import InvalidArgument, named, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group.group import as_group
from uccl_ep.refused import EXPERIMENTAL, refusal
from uccl_ep.survival.sleep import SleepReport
from uccl_ep.system import process_end
from uccl_ep.system.ownership import NoCopies, Owner, in_turn

Tensor = torch.Tensor
Event = EventOverlap[EventHandle]
_ENGRAM, _ALL_GATHER = f"Engram {EXPERIMENTAL}", f"all-gather {EXPERIMENTAL}"
_PIPELINE = f"pipeline send and receive {EXPERIMENTAL}"


class _ElasticRows(Buffer):
    """The Buffer behind an ElasticBuffer, whose ranks must also agree on `hidden`."""

    def __init__(self, group: Any, num_bytes: int, hidden: int, device: str | None) -> None:
        self._alike = {"hidden": hidden}
        super().__init__(group, num_bytes, device=device)


class ElasticBuffer(IntoCalls, ElasticMembers, NoCopies):
    """Memory, proxy and kernels of one rank for V2's dispatch and combine. Making one is collective.

    Shapes use T = this rank's tokens, K = top-k, N = ranks, E = experts, L = E / N local experts, H = hidden channels,
    M = num_max_tokens_per_rank.

    Args:
        group: torch ProcessGroup of any backend, or a ThreadGroup.
        num_bytes: bytes of this rank, a multiple of 2 MiB; None computes them from the next four.
        num_cpu_bytes: of num_bytes, for upstream's experimental parts: must be 0.
        num_max_tokens_per_rank: M, the same on all ranks; a dispatch may name its own. num_topk: 0 means 32.
        hidden: H, the same on all ranks, a multiple of 8 (16 with use_fp8_dispatch); a dispatch's may be another.
        use_fp8_dispatch: rows will be one-byte with scales; they need no more memory than bf16 rows.
        deterministic: accepted; rows always come in the same order here, so True and False are the same.
        allow_hybrid_mode: accepted; rows are never forwarded here (see ARCHITECTURE.md), so there is one mode.
        allow_multiple_reduction: combine may round sums per rank and per node; False sums all rows once (K passes).
        explicitly_destroy: destroy() will be called; a reminder is printed when it was not.
        device: as Buffer's.

    prefer_overlap_with_compute, sl_idx, num_allocated_qps, num_cpu_timeout_secs and num_gpu_timeout_secs belong to
    upstream's network: accepted; the time-out is UCCL_EP_TIMEOUT_S.

    Raises:
        InvalidArgument: an argument is out of range. SettingsMismatch, UcclEpError: as Buffer.
    """

    @named
    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        device: str | None = None,
    ) -> None:
        self.runtime: Any = None
        self._owner = Owner()  # a call here may make several of the Buffer's
        self.explicitly_destroy = checks.check_bool("explicitly_destroy", explicitly_destroy)
        if num_cpu_bytes:
            refuse("num_cpu_bytes", num_cpu_bytes, "0: only upstream's experimental parts use CPU bytes")
        checks.check_int("num_max_tokens_per_rank", num_max_tokens_per_rank, 0, _native.MAX_TOKENS_PER_RANK)
        sizes.check_hidden("hidden", hidden, checks.check_bool("use_fp8_dispatch", use_fp8_dispatch))
        self._computed, self._sizes = num_bytes is None, (num_max_tokens_per_rank, hidden, num_topk)
        if num_bytes is None:
            num_bytes = self.get_buffer_size_hint(
                group, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, allow_hybrid_mode
            )
        elif isinstance(num_bytes, bool) or num_bytes <= 0 or num_bytes % sizes.GRANULE:
            refuse("num_bytes", num_bytes, "a multiple of 2 MiB", "ElasticBuffer.get_buffer_size_hint gives one.")
        self.num_max_tokens_per_rank, self.hidden, self.num_topk = num_max_tokens_per_rank, hidden, num_topk
        self.use_fp8_dispatch = checks.check_bool("use_fp8_dispatch", use_fp8_dispatch)
        self.deterministic = checks.check_bool("deterministic", deterministic)
        self.allow_hybrid_mode = checks.check_bool("allow_hybrid_mode", allow_hybrid_mode)
        self.allow_multiple_reduction = checks.check_bool("allow_multiple_reduction", allow_multiple_reduction)
        self.prefer_overlap_with_compute = checks.check_bool("prefer_overlap_with_compute", prefer_overlap_with_compute)
        check_ignored(num_allocated_qps=num_allocated_qps)
        self.num_allocated_qps = int(num_allocated_qps)
        self._buffer = _ElasticRows(group, num_bytes, hidden, device)
        self._combine = ElasticCombine(self._buffer)
        self._meet()
        self.nccl_comm_handle = None
        process_end.end_with_process(self)

    # ---- life --------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Frees the memory and ends the proxy. Not collective; idempotent.

        Raises:
            InvalidArgument: the buffer was made without explicitly_destroy=True.
        """
        if not self.explicitly_destroy:
            raise InvalidArgument("destroy() needs an ElasticBuffer made with explicitly_destroy=True")
        self._end()

    def _end(self) -> None:
        try:
            self._buffer.destroy()
        finally:
            self.runtime = self._buffer.runtime  # None, unless it was refused

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None:
            return
        if self.explicitly_destroy and not self._owner.elsewhere:
            process_end.warn_forgotten("ElasticBuffer")
        self._end()

    @in_turn("pause")
    def pause(self) -> SleepReport:
        """Gives the memory of rows back to the system, until resume(); as Buffer.pause(). Collective."""
        return self._buffer.pause()

    @in_turn("resume")
    def resume(self) -> SleepReport:
        """Wakes up after pause(); as Buffer.resume(). Collective."""
        return self._buffer.resume()

    @in_turn("barrier")
    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Returns when every rank has entered it and everything sent before is delivered. Collective.

        The host always waits, so the arguments, which say where upstream waits, make no difference.
        """
        self._buffer.barrier()

    # ---- calls -------------------------------------------------------------------------------------------------

    @in_turn("dispatch")
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        *,
        max_recv_tokens_per_rank: int | None = None,
        overflow_policy: str = "trap",
    ) -> tuple[Any, Tensor | None, Tensor | None, EPHandle, Event]:
        """Sends each token once to every rank that holds one of its experts.

        Args:
            x: bf16 [T, H], or (one-byte data [T, H], scales of a 4-byte dtype [T, packs], any strides); T <= M.
            topk_idx: int64 [T, K], -1 = not routed, a token's experts distinct; None with a handle.
            topk_weights: f32 [T, K] or None.
            cumulative_local_expert_recv_stats: int32 [L], tokens per expert are added to it; not with a handle.
            num_experts: E, needed without a handle. num_max_tokens_per_rank: M, None means the buffer's.
            expert_alignment: None means 1, or the handle's.
            num_sms: 0 chooses; num_qps has no effect, our proxies choose their own queue pairs.
            previous_event: start behind it only; with allocate_on_comm_stream, as upstream.
            previous_event_before_epilogue: the expansion, which torch does on the current stream, waits for it.
            async_with_compute_stream: return an event; the current stream is behind the result in any case.
            handle: of an earlier dispatch: same routing again, without counting.
            do_handle_copy: the handle keeps a copy of topk_idx, so that the caller may overwrite it.
            do_cpu_sync: False leaves the host ignorant of the counts: outputs have the worst size, and rows from
                handle.psum_num_recv_tokens_per_scaleup_rank[-1] on are undefined. None: True without a handle.
            do_expand: one row for each local (token, expert), grouped by expert, each group padded to the alignment.
            do_zero_padding: that padding is zero; needs do_expand.
            use_tma_aligned_col_major_sf: scales with strides (1, rows rounded up to 4).
            max_recv_tokens_per_rank: with do_cpu_sync=False, the tokens that this rank takes in; None: all that could
                come. overflow_policy: "trap" makes more of them a fault; with "drop" the last are not sent, add nothing
                to combine, and show in handle.overflow and handle.recv_totals. Ours; the words are NCCL EP's.

        Returns:
            (recv_x or (recv_x, recv_sf), recv_topk_idx, recv_topk_weights, handle, event). Rows are ordered by source
            rank, then token, always. recv_topk_idx is int64 [n, K], local experts or -1, or None when expanded;
            recv_topk_weights f32 [n, K] as the source had them, or [rows] when expanded, or None without weights.

        Raises:
            InvalidArgument: before anything is sent.
        """
        check_ignored(num_qps=num_qps)
        call = Call(
            given=(num_experts, num_max_tokens_per_rank, expert_alignment),
            num_sms=num_sms,
            stats=cumulative_local_expert_recv_stats,
            before=(behind(previous_event, allocate_on_comm_stream), previous_event_before_epilogue),
            copies=checks.check_bool("do_handle_copy", do_handle_copy),
            cpu_sync=do_cpu_sync,
            expand=checks.check_bool("do_expand", do_expand),
            zero_padding=checks.check_bool("do_zero_padding", do_zero_padding),
            column_major=checks.check_bool("use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf),
            bound=(max_recv_tokens_per_rank, overflow_policy),
        )
        results = self._start(x, topk_idx, topk_weights, handle, call)()
        return *results, ended(async_with_compute_stream)

    def _start(
        self, x: Any, topk_idx: Tensor | None, topk_weights: Tensor | None, handle: EPHandle | None, call: Call
    ) -> Callable[[], Results]:
        """Sends; what it returns gives the results of a dispatch when it is called."""
        return self._dispatch.start(x, topk_idx, topk_weights, handle, call, self.get_theoretical_num_sms)

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
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Event]:
        """Adds up, for each token, the rows that its experts gave. Weights must have been applied to x already.

        Args:
            x: bf16 [rows, H] contiguous, rows as the handle's dispatch returned them.
            handle: of the dispatch. num_sms and num_qps have no effect: the handle's channels are used.
            topk_weights: f32 [n, K], or [rows] when expanded (only with allow_multiple_reduction), or None.
            bias: bf16 [T, H], a pair of such, or None; added first.
            previous_event, allocate_on_comm_stream, async_with_compute_stream: as in dispatch.
            out: contiguous bf16 [T, H] to write into, apart from what is read; None makes one. Not in DeepEP.

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
        check_ignored(num_sms=num_sms, num_qps=num_qps)
        own = behind(previous_event, allocate_on_comm_stream)
        before = {"previous_event": own, "previous_event_before_epilogue": previous_event_before_epilogue}
        results = self._combine.combine(x, handle, topk_weights, bias, before, self.allow_multiple_reduction, out)
        return *results, ended(async_with_compute_stream)

    # ---- streams and domains -----------------------------------------------------------------------------------

    @staticmethod
    def capture() -> EventHandle:
        """An event on the current stream; a bare one, unlike V1's."""
        return EventHandle()

    _unpack_bias = staticmethod(Buffer._unpack_bias)

    def get_comm_stream(self) -> Any:
        """The stream that communication kernels run on."""
        return self._buffer.get_comm_stream()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of the largest node)."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(1, N): rows are never forwarded, so all ranks are one scale-up domain."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    # ---- sizes -------------------------------------------------------------------------------------------------

    @staticmethod
    @named
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """num_bytes for these sizes, a multiple of 2 MiB: rings, which do not grow with the number of experts.

        Raises:
            InvalidArgument: num_max_tokens_per_rank or hidden is 0 or too large.
        """
        checks.check_int("num_max_tokens_per_rank", num_max_tokens_per_rank, 1, _native.MAX_TOKENS_PER_RANK)
        checks.check_int("hidden", hidden, 1, _native.MAX_HIDDEN // 2)
        checks.check_int("num_topk", num_topk, 0, _native.MAX_TOPK)
        return sizes.buffer_size(as_group(group).size(), num_max_tokens_per_rank, hidden, num_topk)

    @named
    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """Multiprocessors that keep the network busy: even, at least 4. Bandwidths in GB/s; 0 means not known.

        Raises:
            InvalidArgument: num_scaleout_topk is not 0, or a count is out of range.
        """
        if num_scaleout_topk:
            refuse("num_scaleout_topk", num_scaleout_topk, "0")
        gbs = sizes.Bandwidths(rdma_gbs, nvlink_gbs, sm_read_gbs, sm_write_gbs)
        return sizes.num_sms(num_experts, num_topk, self.num_ranks, self.num_rdma_ranks, gbs)

    @named
    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs that upstream would use for a number of multiprocessors; our proxies choose their own."""
        return sizes.num_qps(checks.check_int("num_sms", num_sms, 0, 1 << 16), self.num_allocated_qps)

    # ---- what upstream calls experimental ------------------------------------------------------------------------

    get_engram_storage_size_hint = refusal("ElasticBuffer.get_engram_storage_size_hint", _ENGRAM)
    engram_write = refusal("ElasticBuffer.engram_write", _ENGRAM)
    engram_fetch = refusal("ElasticBuffer.engram_fetch", _ENGRAM)
    get_pp_buffer_size_hint = refusal("ElasticBuffer.get_pp_buffer_size_hint", _PIPELINE)
    pp_set_config = refusal("ElasticBuffer.pp_set_config", _PIPELINE)
    pp_send = refusal("ElasticBuffer.pp_send", _PIPELINE)
    pp_recv = refusal("ElasticBuffer.pp_recv", _PIPELINE)
    get_agrs_num_max_session_bytes = refusal("ElasticBuffer.get_agrs_num_max_session_bytes", _ALL_GATHER)
    get_agrs_buffer_size_hint = refusal("ElasticBuffer.get_agrs_buffer_size_hint", _ALL_GATHER)
    agrs_set_config = refusal("ElasticBuffer.agrs_set_config", _ALL_GATHER)
    create_agrs_session = refusal("ElasticBuffer.create_agrs_session", _ALL_GATHER)
    destroy_agrs_session = refusal("ElasticBuffer.destroy_agrs_session", _ALL_GATHER)
    agrs_new_session = refusal("ElasticBuffer.agrs_new_session", _ALL_GATHER)
    agrs_get_inplace_tensor = refusal("ElasticBuffer.agrs_get_inplace_tensor", _ALL_GATHER)
    all_gather = refusal("ElasticBuffer.all_gather", _ALL_GATHER)
