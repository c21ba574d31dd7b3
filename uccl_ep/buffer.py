"""Buffer: DeepEP's V1 interface, with the union of all branches' keyword arguments.

Shapes use T = this rank's tokens, K = top-k, N = ranks, E = experts, L = E / N local experts, H = hidden channels,
M = num_max_dispatch_tokens_per_rank, P = N * M, R = nodes. The contract's numbers (orders, roundings, strides) are
what `uccl_ep.reference.calls` computes; tests hold the two together row by row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from uccl_ep import checks
from uccl_ep.config import Config, combine_config, dispatch_config
from uccl_ep.device.protocol import EventHandle
from uccl_ep.errors import InvalidArgument, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group.group import Group, as_group
from uccl_ep.layout.plan import MemoryBill, low_latency_size_hint
from uccl_ep.low_latency.calls import LowLatencyApi
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.recorder.calls import recorded
from uccl_ep.session.barrier import Collective
from uccl_ep.session.device_choice import choose_device, make_device
from uccl_ep.session.session import Session, Start
from uccl_ep.session.stats import collect_stats
from uccl_ep.settings import settings
from uccl_ep.survival.masks import MaskApi
from uccl_ep.survival.recovery import RecoveryApi
from uccl_ep.system.os_limits import naming
from uccl_ep.system.ownership import NoCopies, Owner, in_turn, refuse_elsewhere
from uccl_ep.throughput.calls import ThroughputApi
from uccl_ep.throughput.launch import Throughput

Tensor = torch.Tensor


class Buffer(NoCopies, LowLatencyApi, ThroughputApi, MaskApi, RecoveryApi):
    """Memory, proxy and kernels of one rank for expert-parallel dispatch and combine. Making one is collective.

    Args:
        group: torch ProcessGroup of any backend (only rank, size and all_gather_object are used), a ThreadGroup, or
            None with `comm`.
        num_nvl_bytes: bytes for throughput rings, per rank; see Config.get_nvl_buffer_size_hint.
        num_rdma_bytes: with low_latency_mode the low-latency rows (get_low_latency_rdma_size_hint); without it, more
            memory for throughput rings.
        low_latency_mode: allow low_latency_dispatch and low_latency_combine.
        explicitly_destroy: destroy() will be called; a reminder is printed when it was not.
        enable_shrink: a peer that does not come within the deadline, or ends, is masked instead of failing the call, in
            both modes. Each rank then takes in other nodes' rows itself: more bytes and memory (memory_bill).
        comm: an mpi4py-like communicator instead of `group`.
        device: "cpu", "cuda", "cuda:1", "hip", "auto" (a GPU where one can be used), or None for what UCCL_EP_DEVICE
            says; the same kind on all ranks. `device_reason` says why. Tensors elsewhere are refused.

    The other arguments belong to DeepEP's networks (num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl,
    use_fabric, allow_nvlink_for_normal_mode, eager_support, is_intranode): accepted, and without effect here, where
    paths are chosen from what the ranks' hosts offer.

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
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value % 128:
                refuse(name, value, "a multiple of 128, 0 or more")
        checks.check_int("num_qps_per_rank", num_qps_per_rank, 1, 1 << 16)
        self.low_latency_mode = checks.check_bool("low_latency_mode", low_latency_mode)
        self.enable_shrink = checks.check_bool("enable_shrink", enable_shrink)
        if low_latency_mode and num_rdma_bytes == 0:
            refuse("num_rdma_bytes", 0, "the low-latency size", "Buffer.get_low_latency_rdma_size_hint gives it.")
        environment = settings()
        with naming("the choice of a device"):
            choice = choose_device(device, environment.device)
        self.device_reason = choice.reason
        self.group = group if group is not None else comm
        adapted = as_group(group, comm)
        self.rank, self.group_size = adapted.rank(), adapted.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.explicitly_destroy = bool(explicitly_destroy)
        self.nvshmem_qp_depth = 1 << 16  # integrators compare it with their token count; rings have no such limit
        self.recoveries = []
        self._settings, self._choice = environment, choice
        self.runtime = self._make_session(adapted)

    # ---- life --------------------------------------------------------------------------------------------------

    def _make_session(self, group: Group) -> Session:
        budgets = self.num_nvl_bytes, self.num_rdma_bytes
        start = Start(self._choice.driver, self._prepare, self._alike)
        try:
            with naming("the start of a Buffer"):
                return Session(group, budgets, self.low_latency_mode, self.enable_shrink, self._settings, start)
        except BaseException:
            self._close_device()  # this rank was ready, another one was not
            raise

    def _close_device(self) -> None:
        """Ends with what is queued."""
        device = self.__dict__.pop("_device", None)
        if device is not None:
            device.close()

    def _prepare(self, session: Session) -> None:
        self._device = make_device(self._choice, session)
        self._collective = Collective(session, self._device)
        self._low_latency = LowLatency(session, self._device)
        self._throughput = Throughput(session, self._device)
        self._device.settle()

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
        if session is None:
            return
        on_host = "_device" not in self.__dict__ or self._device.host_memory
        try:
            self._close_device()
            if not on_host and not session.fault_raised:
                session.check()  # calls do not wait for their kernels: this is the last chance to tell
        finally:
            session.close()

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None:
            return
        if self.explicitly_destroy and not self._owner.elsewhere:
            warnings.warn("uccl_ep.Buffer was made with explicitly_destroy=True but never destroyed", stacklevel=1)
        self.destroy()

    @property
    def _session(self) -> Session:
        refuse_elsewhere(self._owner.pid)
        if self.runtime is None:
            raise InvalidArgument("this Buffer has been destroyed")
        if self.runtime.closed:
            raise InvalidArgument("this Buffer has no memory: its last recover() failed. Call it again, or destroy()")
        return self.runtime

    # ---- static helpers ----------------------------------------------------------------------------------------

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 paths exist; they do, on every device."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """SMs of configs made from now on (class attribute num_sms); even."""
        if new_num_sms < 0 or new_num_sms % 2:
            refuse("new_num_sms", new_num_sms, "an even number, 0 or more")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap[EventHandle]:
        """An event on the current stream: of torch where this process uses a GPU."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """num_rdma_bytes for low latency: slots per peer node, not per expert (uccl_ep.memory_bill itemises it)."""
        return low_latency_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The dispatch Config for a rank count; any count from 1."""
        return dispatch_config(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The combine Config for a rank count; any count from 1."""
        return combine_config(num_ranks, Buffer.num_sms)

    def get_comm_stream(self) -> Any:
        """The stream that communication kernels run on; on a GPU a torch.cuda.Stream."""
        _ = self._session  # refuses a Buffer that has been destroyed
        return self._device.comm_stream

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Tensor:
        """A view of this rank's raw memory: the low-latency rows with use_rdma_buffer, else the throughput rings.

        Args:
            dtype: element type of the view.
            size: shape; None gives all of it, flat.
            offset: where it starts, in bytes (as upstream's runtime has it), a multiple of the element size.
        """
        plan = self._session.plan
        begin = plan.low_latency_base if use_rdma_buffer else plan.throughput.base
        length = plan.low_latency_budget if use_rdma_buffer else plan.throughput.bytes()
        element = dtype.itemsize
        wanted = length - offset if size is None else size.numel() * element
        if offset < 0 or offset % element or wanted < 0 or offset + wanted > length:
            refuse("size and offset", (size, offset), f"a span inside {length} bytes")
        span = self._session.data[begin + offset : begin + offset + wanted // element * element].view(dtype)
        return span if size is None else span.view(size)

    def empty_rows(self, num_rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An uninitialised tensor [num_rows, hidden] for experts to write what they return into. Ours, not DeepEP's.

        On a CPU such rows, like those that dispatch returned, lie where all ranks of the node reach them: combine then
        copies none of them, and each is read by the rank that sums it. Rows elsewhere are copied once more. When
        combine has returned (its event has happened) they are the caller's again. On a GPU this is torch.empty.

        Raises:
            InvalidArgument: a size that is negative or no int.
        """
        checks.check_int("num_rows", num_rows, 0, 1 << 40)
        checks.check_int("hidden", hidden, 0, 1 << 20)
        _ = self._session  # refuses a Buffer that has been destroyed
        return self._device.empty(num_rows, hidden, dtype=dtype)

    @in_turn("set_call_tag")
    def set_call_tag(self, tag: int) -> None:
        """Names the step that calls from now on belong to, so that ranks which are in different steps refuse the call.

        Calls are matched by their number and compared by shape, dtype and the dispatch that they answer. A rank that
        left out a whole step (dispatch and combine) has the same shapes as the others and is only noticed by its tag.
        Ours, not DeepEP's; captured graphs keep the tag of their capture.

        Args:
            tag: 0 to 2**32 - 1, the same on all ranks in the same step, such as the number of the iteration.

        Raises:
            InvalidArgument: not an int in that range.
        """
        tag = checks.check_int("tag", tag, 0, (1 << 32) - 1)
        self._session.context.tag = tag
        self._low_latency.prototypes.refresh()

    def memory_bill(self) -> MemoryBill:
        """What this rank has allocated, by purpose; print it."""
        return self._session.bill()

    def stats(self) -> dict[str, Any]:
        """Counters since the start: rows, bytes, waiting time per peer, and the proxy's (uccl_ep/session/stats.py)."""
        return collect_stats(self._session)

    def dump_flight_record(self, path: str = "") -> str:
        """Writes down what this rank has done in its last moments, for `uccl-ep explain`; returns the file's path.

        Args:
            path: a folder, made when missing; empty: where records of faults go (UCCL_EP_FLIGHT_RECORDER).

        Raises:
            OSError: it cannot be written.
        """
        session = self._session
        return str(session.recorder.dump(session, Path(path) if path else None, "the program asked for it"))

    @in_turn("barrier")
    @recorded("barrier")
    def barrier(self) -> None:
        """Returns when every rank has entered it and everything sent before is delivered. Collective."""
        self._session.check()
        self._collective.barrier()
