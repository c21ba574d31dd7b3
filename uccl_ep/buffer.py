"""Buffer: DeepEP's V1 interface, with the union of all branches' keyword arguments.

Shapes use T = this rank's tokens, K = top-k, N = ranks, E = experts, L = E / N local experts, H = hidden channels,
M = num_max_dispatch_tokens_per_rank, P = N * M, R = nodes. The contract's numbers (orders, roundings, strides) are
what `uccl_ep.reference.calls` computes; tests hold the two together row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from uccl_ep import checks
from uccl_ep.call_types import Event, Hook, combine_call, dispatch_call, low_latency_dispatch_call
from uccl_ep.config import Config, combine_config, dispatch_config
from uccl_ep.device.protocol import Device, EventHandle
from uccl_ep.errors import InvalidArgument, NotSupported, named, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group.group import as_group
from uccl_ep.layout.plan import MemoryBill, low_latency_size_hint
from uccl_ep.low_latency.handle import Handle as LowLatencyHandle
from uccl_ep.low_latency.overlap import OverlapArguments
from uccl_ep.recorder.calls import recorded
from uccl_ep.refused import FORKS_CAST, BranchCalls
from uccl_ep.session.session import Session
from uccl_ep.session.stats import collect_stats
from uccl_ep.survival.life import Life, Terms
from uccl_ep.survival.members import MemberChanges
from uccl_ep.survival.recovery import Recovery, RecoveryReport
from uccl_ep.system import process_end
from uccl_ep.system.ownership import NoCopies, Owner, in_turn
from uccl_ep.throughput.bounded import bounded
from uccl_ep.throughput.calls import unpack_bias
from uccl_ep.throughput.handle import ThroughputHandle

Tensor = torch.Tensor


class Buffer(MemberChanges, BranchCalls, NoCopies):
    """Memory, proxy and kernels of one rank for expert-parallel dispatch and combine. Making one is collective.

    Args:
        group: torch ProcessGroup of any backend (only rank, size and all_gather_object are used), a ThreadGroup, or
            None with `comm`.
        num_nvl_bytes: bytes for throughput rings, per rank; see Config.get_nvl_buffer_size_hint.
        num_rdma_bytes: for low-latency rows (get_low_latency_rdma_size_hint); without low_latency_mode more for rings.
        low_latency_mode: allow low_latency_dispatch and low_latency_combine.
        explicitly_destroy: destroy() will be called; a reminder is printed when it was not.
        enable_shrink: a peer that does not come within the deadline, or ends, is masked instead of failing the call, in
            both modes. Each rank then takes in other nodes' rows itself: more bytes and memory (memory_bill).
        comm: an mpi4py-like communicator instead of `group`.
        device: "cpu", "cuda", "cuda:1", "hip", "auto" (a GPU where one can be used), or None for what UCCL_EP_DEVICE
            says; the same kind on all ranks. `device_reason` says why. Tensors elsewhere are refused.

        allow_mnnvl: hosts whose GPUs share an NVLink domain are one node, as in a rack: no row crosses a network there.
            Without effect where GPUs cannot open each other's memory (UCCL_EP_EXPLAIN=1 says why), or use_fabric=False.
            UCCL_EP_MNNVL=1 asks the same of every kind of Buffer.

    The other arguments belong to DeepEP's networks (num_qps_per_rank, allow_nvlink_for_low_latency_mode,
    use_fabric=True, allow_nvlink_for_normal_mode, eager_support, is_intranode): accepted, and without effect here.

    Raises:
        InvalidArgument: an argument or a UCCL_EP_* variable is out of range.
        SettingsMismatch: ranks were started with different arguments; names each and every rank's value.
        UcclEpError: a rank failed to start; every rank raises the same message.

    Every other method raises PeerTimeout when a wait for a peer passes UCCL_EP_TIMEOUT_S and PeerLost when a peer's
    process or connection has ended; after either, only recover() and destroy() can be called.

    A Buffer makes one call at a time, on any thread: a second one meanwhile raises InvalidArgument, as does every call
    in a child of fork(), where destroy() and the end of the process have no effect on the parent. It cannot be copied.

    On a CPU a synchronous call returns when it is done. On a GPU no call waits on the host, except barrier, destroy and
    a dispatch without handle and num_worst_tokens, which returns counts: kernels run behind the caller's current stream
    (or previous_event), and that stream goes on behind them. So a fault of a call is raised by a later one, by waiting
    for an event, or by destroy. Calls that do not wait may be captured into CUDA graphs; keep the Buffer, and handles
    that captured calls use, as long as the graph. Two ranks of a process must not call from one stream.
    """

    num_sms: ClassVar[int] = 20
    _alike: Mapping[str, Any] = MappingProxyType({})  # what its ranks must have alike besides its own arguments

    @named
    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool | None = None,
        allow_nvlink_for_normal_mode: bool = True,
        eager_support: bool = False,
        is_intranode: bool | None = None,
        device: str | None = None,
    ) -> None:
        self.runtime: Session | None = None
        self._owner = Owner()
        checks.check_unused_int("num_qps_per_rank", num_qps_per_rank, 1, 1 << 16)
        cls, budgets = type(self), (num_nvl_bytes, num_rdma_bytes)
        modes = low_latency_mode, enable_shrink, use_fabric is not False and allow_mnnvl
        terms = Terms.checked(device, budgets, modes, self._alike, lambda ranks: cls.get_dispatch_config(ranks))
        self.low_latency_mode, self.enable_shrink = terms.low_latency_mode, terms.enable_shrink
        self.device_reason = terms.choice.reason
        self.group = group if group is not None else comm
        adapted = as_group(group, comm)
        self.rank, self.group_size = adapted.rank(), adapted.size()
        self.num_nvl_bytes, self.num_rdma_bytes = budgets
        self.explicitly_destroy = bool(explicitly_destroy)
        self.nvshmem_qp_depth = 1 << 16  # integrators compare it with their token count; rings have no such limit
        self.recoveries: list[RecoveryReport] = []  # one for each recover() that succeeded, oldest first
        self._life = Life(adapted, terms)
        self.runtime = self._life.session
        process_end.end_with_process(self)

    # ---- life --------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Waits for this rank's kernels, ends the proxy and frees the memory. Not collective; idempotent.

        Raises:
            PeerTimeout, PeerLost, ...: on a GPU, a fault that no call has raised yet. The memory is freed all the same.
            InvalidArgument: a call is under way; nothing was done.
        """
        if self._owner.elsewhere:
            self.runtime = None  # what it stands for is the parent's
        if self.runtime is not None:
            self._destroy()

    @in_turn("destroy")
    def _destroy(self) -> None:
        session, self.runtime = self.runtime, None
        if session is not None:
            try:
                self._life.end()
            finally:
                self._end_change()

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None:
            return
        if self.explicitly_destroy and not self._owner.elsewhere:
            process_end.warn_forgotten("Buffer")
        self.destroy()

    @property
    def _session(self) -> Session:
        return self._resting.session

    @property
    def _device(self) -> Device:
        return self._living.device

    @in_turn("a receive hook")
    def _run_hook(self, session: Session, hook: Hook) -> None:
        """A receive hook: a call of its Buffer, which lives as long as the hook."""
        if session is not self._living.session:
            raise InvalidArgument(
                "this receive hook is of a call before recover() or switch_members(): its rows are gone"
            )
        hook()

    # ---- static helpers ----------------------------------------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 paths exist; they do, on every device."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets the SMs of configs made from now on (class attribute num_sms): an even number, or InvalidArgument."""
        if new_num_sms < 0 or new_num_sms % 2:
            refuse("new_num_sms", new_num_sms, "an even number, 0 or more")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap[EventHandle]:
        """An event on the current stream: of torch where this process uses a GPU."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_ranks: int,
        num_experts: int,
        *,
        eager_support: bool = False,
    ) -> int:
        """The bytes that low latency takes as num_rdma_bytes: slots per peer node (uccl_ep.memory_bill lists them)."""
        return low_latency_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The dispatch Config for a rank count; any count from 1. Raises InvalidArgument below that."""
        return dispatch_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The combine Config for a rank count; any count from 1. Raises InvalidArgument below that."""
        return combine_config(num_ranks, Buffer.num_sms)

    _unpack_bias = staticmethod(unpack_bias)

    def get_comm_stream(self) -> Any:
        """The stream that communication kernels run on; on a GPU a torch.cuda.Stream."""
        return self._living.device.comm_stream

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Tensor:
        """A view of this rank's raw memory: the low-latency rows with use_rdma_buffer, else the throughput rings.

        Args:
            dtype: element type of the view.
            size: shape; None gives all of it, flat.
            offset: where it starts, in bytes (as upstream's runtime has it), a multiple of the element size.
        """
        return self._living.memory(dtype, size, offset, use_rdma_buffer)

    def empty_rows(self, num_rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An uninitialised tensor [num_rows, hidden] for experts to write what they return into. Ours, not DeepEP's.

        On a CPU such rows, like those that dispatch returned, lie where the node's ranks reach them: combine copies
        none of them. When it has returned (its event has happened) they are the caller's again. On a GPU: torch.empty.

        Raises:
            InvalidArgument: a size that is negative or no int.
        """
        return self._living.empty_rows(num_rows, hidden, dtype)

    @in_turn("set_call_tag")
    def set_call_tag(self, tag: int) -> None:
        """Names the step that calls from now on belong to, so that ranks which are in different steps refuse the call.

        Calls are compared by number, shape, dtype and the dispatch that they answer. A rank that left out a whole step
        (dispatch and combine) is only noticed by its tag. Ours; captured graphs keep the tag of their capture.

        Args:
            tag: 0 to 2**32 - 1 (else InvalidArgument), the same on all ranks in the same step, such as its number.
        """
        self._living.set_tag(tag)

    def memory_bill(self) -> MemoryBill:
        """What this rank has allocated, by purpose, in a change of members for both lives; print it."""
        return self._bill(self._session.bill())

    def stats(self) -> dict[str, Any]:
        """Counters since the start: rows, bytes, waiting time per peer, and the proxy's (uccl_ep/session/stats.py)."""
        return collect_stats(self._session)

    def dump_flight_record(self, path: str = "") -> str:
        """Writes down what this rank has done in its last moments, for `uccl-ep explain`; returns the file's path.

        `path`: a folder, made when missing; empty: that of records of faults (UCCL_EP_FLIGHT_RECORDER). Raises OSError.
        """
        return self._resting.dump_flight_record(path)

    @in_turn("barrier")
    @recorded("barrier")
    def barrier(self) -> None:
        """Returns when every rank has entered it and everything sent before is delivered. Collective."""
        self._living.barrier()

    # ---- throughput --------------------------------------------------------------------------------------------

    @in_turn("get_dispatch_layout")
    @recorded("get_dispatch_layout")
    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Event]:
        """Counts where this rank's tokens go.

        Args:
            topk_idx: int64 (or int32) [T, K]; -1 = not routed. On a GPU, where the host does not look at them, so is
                any other id that names no expert.
            num_experts: E, a multiple of N.

        Returns:
            (num_tokens_per_rank int32 [N], num_tokens_per_rdma_rank int32 [R] or None on one node,
            num_tokens_per_expert int32 [E], is_token_in_rank bool [T, N], event).

        Raises:
            InvalidArgument: before anything is queued.
        """
        return self._living.throughput.get_dispatch_layout(
            topk_idx, num_experts, previous_event, async_finish, allocate_on_comm_stream
        )

    @dispatch_call
    @in_turn("dispatch")
    @recorded("dispatch")
    def dispatch(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        handle: Any = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        *,
        overflow_policy: str = "trap",
    ) -> tuple[Any, Tensor | None, Tensor | None, list[int] | None, ThroughputHandle | None, Event]:
        """Sends each token once to every rank that holds one of its experts.

        Args:
            x: [T, H] with rows of a multiple of 16 bytes, or (one-byte data, scales float32 or int32 [T, S]).
            handle: of an earlier dispatch: same routing again, without counting (a cached call).
            num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert: what
                get_dispatch_layout returned, without a handle. The kernel that counts compares them with topk_idx;
                without topk_idx, with each other. What goes to masked ranks may be in them or not.
            topk_idx, topk_weights: int64 [T, K], as get_dispatch_layout was given, and float32 [T, K], both or
                neither; not with a handle.
            expert_alignment: counts per expert are rounded up to it; rows are not.
            num_worst_tokens: when not 0, outputs have that many rows and the call does not wait for counts; rows
                beyond the real number have recv_topk_idx = -1. Needs topk_idx.
            config: Config; its num_sms / 2 is the number of channels (a CPU uses fewer).
            previous_event, async_finish, allocate_on_comm_stream: as upstream; the last needs both others.
            overflow_policy: of rows beyond num_worst_tokens. "trap": a fault that names the rank and its count. "drop":
                the last rows are not sent, and every rank is told (guide: Without waiting for counts). Ours.

        Returns:
            (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event). Rows are
            ordered by source rank, then token. recv_topk_idx [n, K] holds local experts or -1, recv_topk_weights 0
            where it is -1. A cached call returns None for all between recv_x and event.

        Raises:
            InvalidArgument: before any row is sent. Where the layout disagrees with topk_idx, the other ranks raise
                SettingsMismatch in the same call; with num_worst_tokens all do in every later one, until recover().
        """
        bound = overflow_policy, num_worst_tokens, handle is not None, self.enable_shrink
        return bounded(self._living.throughput, *bound).dispatch(
            x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert,
            topk_idx, topk_weights, expert_alignment, num_worst_tokens, config,
            previous_event, async_finish, allocate_on_comm_stream,
        )  # fmt: skip

    @combine_call
    @in_turn("combine")
    @recorded("combine")
    def combine(
        self,
        x: Tensor,
        handle: Any,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Event]:
        """Adds up, for each token, the rows that its ranks hold. Weights must have been applied to x already.

        Args:
            x: bf16 [n, H], rows as received. handle: of the dispatch; its channel count is used.
            topk_weights: float32 [n, K] or None; summed the same way.
            bias: bf16 [T, H], a pair of such, or None; added first.
            out: contiguous bf16 [T, H] to write into, apart from what is read; None makes one. Not in DeepEP.

        Returns:
            (combined_x bf16 [T, H], combined_topk_weights float32 [T, K] or None, event). fp32 sum over ascending
            ranks, rounded once; with several nodes each node's sum is rounded to bf16 first, then nodes ascending.
            With enable_shrink rows of other nodes' ranks are added one by one instead, each at its rank's place.

        Raises:
            InvalidArgument: before anything is sent.
        """
        return self._living.throughput.combine(
            x, handle, topk_weights, bias, out, previous_event, async_finish, allocate_on_comm_stream
        )

    internode_dispatch, internode_combine = dispatch, combine  # which handle any number of nodes

    # ---- low latency -------------------------------------------------------------------------------------------

    @low_latency_dispatch_call
    @in_turn("low_latency_dispatch")
    @recorded("low_latency_dispatch")
    def low_latency_dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Tensor | None = None,
        dispatch_wait_recv_cost_stats: Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        use_nvfp4: bool = False,
        x_global_scale: Tensor | None = None,
        use_ue8m0_for_sf: bool = False,
        topk_weights: Tensor | None = None,
        use_eager: bool = False,
        align_fp8_quantization: bool = False,
    ) -> tuple[Any, Tensor, LowLatencyHandle, Event, Hook | None]:
        """Sends every token to its experts; rows come out packed by expert.

        Args:
            x: bf16 [T, H], T <= M; H a multiple of 128 with use_fp8, else of 8.
            topk_idx: int64 (or int32) [T, K], K <= 32; -1 = not routed. An expert named twice by a token gets it once.
            num_max_dispatch_tokens_per_rank, num_experts: M and E, the same on all ranks.
            cumulative_local_expert_recv_stats: int32 [L], rows per expert are added to it.
            dispatch_wait_recv_cost_stats: int64 [N], nanoseconds waited for each source are added to it.
            use_fp8: cast to e4m3 with one scale per 128 channels; round_scale rounds scales up to powers of two;
                use_ue8m0 (with round_scale) packs their exponents, four to an int32.
            use_nvfp4 (with use_fp8=False): cast to e2m1, two channels a byte, with one e4m3 scale per 16; H a multiple
                of 64. Scales are e4m3(g * amax / 6) and stand for scale / g.
            x_global_scale: g, float32 of one element, the same on all ranks that share experts; 448 * 6 / (largest
                magnitude) uses the formats' whole range. Not looked at without use_nvfp4.
            async_finish: return at once; wait on the event. return_recv_hook: return after sending; the hook receives.
            topk_weights, use_eager: of branches, without effect. align_fp8_quantization: a fork's cast: False.

        Returns:
            (recv_x, recv_count, handle, event, hook). recv_x is bf16 [L, P, H], or (e4m3 [L, P, H], scales f32
            [L, P, H/128] or int32 [L, P, ceil(H/512)], both column-major), or with use_nvfp4 (uint8 [P, H/2, L], stored
            as [L, P, H/2], the first channel of a byte in its low half; e4m3 [32, 4, ceil(P/128), 4, H/64, L], stored
            as [L, ceil(P/128), H/64, 32, 4, 4]: that of row 128 t + 32 j + i and channels from 64 w + 16 s on is at
            [i, j, t, s, w]). Rows of an expert are ordered by source rank, then token; those from recv_count[e] on are
            undefined. handle = (src_info int32 [L, P], layout_range int64 [L, N] = begin << 32 | count, M, H, E).

        Raises:
            InvalidArgument, NotSupported (align_fp8_quantization with use_fp8): before anything is sent.
        """
        if align_fp8_quantization and use_fp8:
            raise NotSupported(f"align_fp8_quantization with use_fp8 is not in uccl_ep: {FORKS_CAST}")
        return self._living.low_latency.dispatch(
            self._run_hook, x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts,
            cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, use_fp8, round_scale, use_ue8m0,
            async_finish, return_recv_hook, use_nvfp4, x_global_scale, use_ue8m0_for_sf,
        )  # fmt: skip

    @in_turn("low_latency_combine")
    @recorded("low_latency_combine")
    def low_latency_combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: LowLatencyHandle, use_logfmt: bool = False,
        zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False, out: Tensor | None = None,
        combine_wait_recv_cost_stats: Tensor | None = None, *, use_fp8: bool = False, use_mxfp8: bool = False,
        use_nvfp4: bool = False, use_eager: bool = False, overlap: bool = False, src_signals: Tensor | None = None,
        src_signal_expect_value: int = 0, packed_recv_count: Tensor | None = None, comp_signal: Tensor | None = None,
        block_m: int = 64, threshold: int = 0, num_sms: int = 0,
    ) -> tuple[Tensor, Event, Hook | None]:  # fmt: skip
        """Sends expert outputs back and sums them per token, weighted, in fp32 over ascending k, rounded once.

        Args:
            x: bf16 [L, P, H] contiguous, rows where the dispatch put them. With zero_copy its contents are ignored:
                the rows are taken from get_next_low_latency_combine_buffer(handle).
            topk_idx: as given to dispatch. topk_weights: float32 [T, K].
            handle: of the dispatch.
            use_logfmt: 10 bits a channel on the wire where the values allow; H a multiple of 512, not with zero_copy.
            use_fp8: rows travel as e4m3 with one float32 scale per 128 channels, as dispatch casts them: 0.52 of bf16's
                bytes. H a multiple of 128; not with zero_copy or another format. Not in DeepEP, nor are the next two.
            use_mxfp8: the same with an exponent (E8M0) per 32 channels, 0.52; H a multiple of 32.
            use_nvfp4: e2m1 with an e4m3 scale per 16 channels and a float32 a row, 0.28; H a multiple of 64.
            out: bf16 [T, H] to write into; None makes one.
            combine_wait_recv_cost_stats: int64 [N], nanoseconds waited for each rank are added to it.
            overlap: send rows while others are still being computed; on a CPU a call with return_recv_hook then returns
                before x has been read, and its hook waits. Experts go in ascending order, and a row is read once
                its signal, stored with release order by who computes, is at least the value to wait for. Two forms:
            src_signals, src_signal_expect_value: uint32 or int32 [L], a signal an expert.
            comp_signal, block_m, threshold: int32 [L * ceil(P / block_m)], a signal for every block_m rows of an
                expert, waited for where there are rows. packed_recv_count: int32 [L]; the handle's counts are used.
            num_sms: blocks (SMs) that sending takes with overlap; 0: 3 with comp_signal, else 32.

        Returns:
            (combined_x bf16 [T, H], event, hook). A token without experts gives zeros; a masked rank's rows are left
            out, the other weights as they are.

        Raises:
            InvalidArgument: before anything is sent.
        """
        plain = overlap is False and src_signals is comp_signal is None
        beside = None if plain else OverlapArguments(
            overlap, src_signals, src_signal_expect_value, packed_recv_count, comp_signal, block_m, threshold, num_sms
        )  # fmt: skip
        return self._living.low_latency.combine(
            self._run_hook, x, topk_idx, topk_weights, handle, (use_logfmt, use_fp8, use_mxfp8, use_nvfp4), zero_copy,
            async_finish, return_recv_hook, out, combine_wait_recv_cost_stats, beside,
        )  # fmt: skip

    @in_turn("get_next_low_latency_combine_buffer")
    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Tensor:
        """bf16 view [L, P, H] of registered memory for the next combine with zero_copy=True.

        Rows are H + H/64 elements apart (rounded up to 16 bytes). Call it between the dispatch and that combine.
        """
        return self._living.low_latency.next_combine_buffer(handle)

    @in_turn("clean_low_latency_buffer")
    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Readies low latency for these sizes after throughput calls. Collective.

        The two modes share no memory here and epochs never reset, so there is nothing to zero; what remains is
        upstream's barrier and the check that the sizes fit.
        """
        self._living.low_latency.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    # ---- masks and members -------------------------------------------------------------------------------------

    @in_turn("low_latency_update_mask_buffer")
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank (mask=True) or takes the mask away. Masks hold for both modes, whatever upstream's name says.

        Nothing is sent to a masked rank or expected from it; combine leaves its experts out and does not renormalise. A
        throughput handle keeps the masks that its dispatch met. Where low-latency calls were missed, the next dispatch,
        barrier or query waits half the timeout at most for the rank to take part again.

        Raises:
            InvalidArgument: the Buffer was made without enable_shrink, or there is no such rank.
            NotSupported: the mask is to be taken from a rank that has ended, or has missed a throughput dispatch.
        """
        self._living.masks.update(rank_to_mask, mask)

    @in_turn("low_latency_query_mask_buffer")
    def low_latency_query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes the mask into `mask_status` (int32 [N], or InvalidArgument): 1 = masked. Needs enable_shrink."""
        self._living.masks.query(mask_status)

    @in_turn("low_latency_clean_mask_buffer")
    def low_latency_clean_mask_buffer(self) -> None:
        """Takes every mask away; ranks that are no members keep theirs. Raises as low_latency_update_mask_buffer."""
        self._living.masks.clean()

    @in_turn("agree_on_masks")
    def agree_on_masks(self, timeout_s: float | None = None) -> list[int]:
        """Masks on all ranks that are left whom one of them masks, so that none waits for a rank that others leave out.

        Collective among them, between calls: each has the same mask from its next call on. Nothing is drained and no
        traffic stops. Who has ended, or does not come in `timeout_s` (None: UCCL_EP_TIMEOUT_S), is masked too. Returns
        the masked ranks, ascending. Ours; needs enable_shrink.

        Raises:
            PeerLost: the others leave this rank out, and it masks them. They may take it back.
        """
        return self._living.masks.agree(timeout_s)

    def members(self) -> list[int]:
        """Ranks that take part, ascending: all, less those that recover() went on without."""
        return self._resting.members()

    @in_turn("recover")
    def recover(self, group: Any = None, timeout_s: float | None = None, allow_minority: bool = False) -> list[int]:
        """Goes on after PeerLost or PeerTimeout. Collective among the ranks that are left.

        Ranks and experts keep their numbers. Tokens of an absent rank's experts are dropped as a masked rank's are.
        Handles, hooks and views from before are refused or without effect; sizes and settings stay; graphs: see
        switch_members. A rank that has not noticed the loss is told by the first caller: its next call raises PeerLost.

        Args:
            group: None: the survivors agree on who is left, without the group, which may be broken. Else a new group of
                the original size, in which replaced ranks make a Buffer with the same arguments: all take part again.
            timeout_s: how long a rank that lives may take to come, and each later step; None: UCCL_EP_TIMEOUT_S.
            allow_minority: without a group, goes on with fewer, if all survivors say so: the caller knows of no others.

        Returns the ranks that take part, ascending, the same on all of them.

        Raises:
            PeerLost: the others have gone on without this rank. Make a new Buffer, or recover with a new group.
            NoQuorum: too few of the last members are left; says who is missing. recover() may be called again.
            PeerTimeout, UcclEpError: the new start failed; recover() may be called again.
            InvalidArgument: the Buffer has been destroyed, or the group is of another size or order.
        """
        if self.runtime is None:
            raise InvalidArgument("this Buffer has been destroyed; there is nothing to recover")
        self._resolve_change()
        recovery = Recovery(self._life, group, timeout_s)
        self._life = recovery.next_life(allow_minority)
        self.keeps_graphs = recovery.keeps_graphs
        self.runtime = self._life.session
        self.group = self.group if group is None else group
        self.recoveries.append(recovery.report(self._life))
        return self.members()
