"""`nixl_ep.Buffer` answered by a uccl_ep.Buffer: the door through which vLLM and SGLang let ranks come and go.

NIXL EP is DeepEP's low latency with calls that connect and disconnect ranks. Ranks have fixed numbers below a capacity;
those that are not connected are absent. connect_ranks makes the next life of the Buffer (Buffer.prepare_members) and
goes over to it at once, or, with activate=False, when the first of the new ranks is unmasked: until then calls go on
among those that were there. All connected ranks make these calls at the same point of their programs, as NIXL EP asks.

How many ranks a call is of follows from its num_experts: all that the memory is made for (vLLM), or those up to the
highest one that is connected (SGLang). The first call that says so decides; a Buffer of the other size is made anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.buffer import Buffer as _Buffer
from uccl_ep.errors import InvalidArgument, NotSupported, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.group.store_group import StoreGroup
from uccl_ep.settings import settings

Tensor = torch.Tensor

DEFAULT_TIMEOUT_MS = 100_000
"""What a caller may pass on as timeout_ms."""

_UNKNOWN, _CONNECTED, _CAPACITY = range(3)  # what calls are of, as far as a rank has seen; the highest is right
_POLL_S = 0.001


class Buffer:
    """What nixl_ep.Buffer is to its callers. Nothing is allocated before connect_ranks().

    Args:
        nvlink_backend, disable_ll_nvlink: no effect: ranks of a node share memory.
        explicitly_destroy: destroy() must be called; else the end of the object does it.
        rank: this rank's number.
        enable_shrink: no effect: masks always work.
        group, comm: must be None, since ranks that come later are in neither.
        tcp_store_group: a torch.distributed.Store that all ranks reach.
        timeout_ms: how long connect_ranks waits for the others; None: UCCL_EP_TIMEOUT_S, after which calls mask a rank.

    Raises:
        InvalidArgument, NotSupported: an argument as above.
    """

    num_sms = 20

    def __init__(
        self,
        nvlink_backend: str = "nixl",
        explicitly_destroy: bool = False,
        rank: int = 0,
        enable_shrink: bool = False,
        group: Any = None,
        comm: Any = None,
        tcp_store_group: Any = None,
        *,
        disable_ll_nvlink: bool = False,
        low_latency_mode: bool = True,
        timeout_ms: int | None = None,
    ) -> None:
        if group is not None or comm is not None:
            raise NotSupported("nixl_ep.Buffer: group and comm must be None; pass tcp_store_group, where ranks meet")
        if not low_latency_mode:
            raise NotSupported("nixl_ep.Buffer: only low latency; for high throughput use uccl_ep.Buffer.dispatch")
        self.rank = checks.check_int("rank", rank, 0, 1 << 16)
        self.group_size = self.num_rdma_bytes = self._experts_per_rank = 0
        self.explicitly_destroy, self.tcp_store_group = bool(explicitly_destroy), tcp_store_group
        self._timeout_s = settings().timeout_s if timeout_ms is None else max(timeout_ms / 1e3, 1e-3)
        self._buffer: _Buffer | None = None
        self._members: frozenset[int] = frozenset()
        self._staged: frozenset[int] = frozenset()  # connected, and absent until one of them is unmasked
        self._calls_are_of = _UNKNOWN

    # ---- who is there ----------------------------------------------------------------------------------------------

    def update_memory_buffers(
        self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int, num_nvl_bytes: int = 0
    ) -> None:
        """Sets the capacity in ranks, the experts of each, and the bytes of low latency (get_rdma_size_hint).

        Raises:
            InvalidArgument: an argument is out of range, or ranks are connected.
        """
        if self._members:
            raise InvalidArgument("update_memory_buffers: ranks are connected; sizes are set before")
        if num_nvl_bytes:
            raise NotSupported("update_memory_buffers: num_nvl_bytes must be 0: only low latency")
        self.group_size = checks.check_int("num_ranks", num_ranks, self.rank + 1, 1 << 16)
        self._experts_per_rank = checks.check_int("num_experts_per_rank", num_experts_per_rank, 1, 1 << 16)
        self.num_rdma_bytes = checks.check_int("num_rdma_bytes", num_rdma_bytes, 1, 1 << 50)

    def set_tcp_store_group(self, tcp_store_group: Any) -> None:
        """Where ranks meet from now on; None: nowhere, until it is set again."""
        self.tcp_store_group = tcp_store_group

    def connect_ranks(self, remote_ranks: Collection[int], activate: bool = True) -> None:
        """Adds ranks, this one included. Collective among all that are connected then.

        Args:
            remote_ranks: their numbers; those that are connected already change nothing.
            activate: go over at once; else update_mask_buffer(rank, False) of one of them does.

        Raises:
            InvalidArgument: a number is beyond the capacity, or there is no store.
            PeerTimeout: a rank did not come in time. UcclEpError: a rank could not build; all stay as they were.
        """
        if not self.group_size:
            raise InvalidArgument("connect_ranks: update_memory_buffers() comes first")
        ranks = frozenset(checks.check_int("remote_ranks", rank, 0, self.group_size - 1) for rank in remote_ranks)
        wanted = self._members | ranks | {self.rank}
        if wanted == self._members:
            return
        if self._staged:
            self._go_over()
        self._build(wanted)
        self._staged = wanted - self._members
        if activate:
            self._go_over()

    def disconnect_ranks(self, remote_ranks: Collection[int]) -> None:
        """Leaves ranks out from now on; a rank that comes back is connected again. Each remaining rank calls it."""
        for rank in sorted(set(remote_ranks) & self._members - {self.rank}):
            self._living.low_latency_update_mask_buffer(rank, True)
            self._members -= {rank}

    def _build(self, members: frozenset[int]) -> None:
        """Begins the next life with these members. Returns when all of them have met."""
        if self.tcp_store_group is None:
            refuse("tcp_store_group", None, "a torch.distributed.Store", "set_tcp_store_group() sets it.")
        group = StoreGroup(self.tcp_store_group, self.rank, self.group_size, members, self._timeout_s)
        said = [of for of in group.all_gather_object(self._calls_are_of) if of is not None]
        self._calls_are_of = max(said)
        if self._calls_are_of == _CONNECTED:
            group.sized(max(members) + 1)
        if self._buffer is None:
            self._buffer = _Buffer(
                group, 0, self.num_rdma_bytes, low_latency_mode=True, enable_shrink=True, explicitly_destroy=True
            )
            self._members = members
        else:
            self._buffer.prepare_members(group, timeout_s=self._timeout_s)

    def _go_over(self) -> None:
        """To the life that was begun, if one was."""
        staged, self._staged = self._staged, frozenset()
        while staged and not self._living.switch_members():
            time.sleep(_POLL_S)
        self._members |= staged

    @property
    def _living(self) -> _Buffer:
        if self._buffer is None:
            raise InvalidArgument("nixl_ep.Buffer: no rank is connected; connect_ranks() comes first")
        return self._buffer

    # ---- calls -----------------------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        *args: Any,
        **options: Any,
    ) -> tuple[Any, Tensor, Any, EventOverlap[Any], Callable[[], None] | None]:
        """As uccl_ep.Buffer.low_latency_dispatch. num_experts: of the capacity, or of the ranks up to the highest
        connected one."""
        self._fit(num_experts)
        return self._living.low_latency_dispatch(
            x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, *args, **options
        )

    def combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Any, *args: Any, **options: Any
    ) -> tuple[Tensor, EventOverlap[Any], Callable[[], None] | None]:
        """As uccl_ep.Buffer.low_latency_combine."""
        return self._living.low_latency_combine(x, topk_idx, topk_weights, handle, *args, **options)

    def get_next_combine_buffer(self, handle: Any) -> Tensor:
        """As uccl_ep.Buffer.get_next_low_latency_combine_buffer."""
        return self._living.get_next_low_latency_combine_buffer(handle)

    def _fit(self, num_experts: int) -> None:
        """Makes the Buffer one of as many ranks as a call's experts are of. All ranks call with the same number."""
        living, each = self._living, self._experts_per_rank
        if num_experts == living.group_size * each:
            return
        if num_experts == self.group_size * each:
            self._calls_are_of = _CAPACITY
        elif num_experts == (max(self._members) + 1) * each:
            self._calls_are_of = _CONNECTED
        else:
            allowed = (
                f"{(max(self._members) + 1) * each} (ranks up to the highest one) or {self.group_size * each} (all)"
            )
            refuse("num_experts", num_experts, allowed, f"Each rank has {each}.")
        group = StoreGroup(self.tcp_store_group, self.rank, self.group_size, self._members, self._timeout_s)
        living.prepare_members(group.sized(num_experts // each), timeout_s=self._timeout_s)
        while not living.switch_members():
            time.sleep(_POLL_S)

    # ---- masks -----------------------------------------------------------------------------------------------------

    def update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or takes its mask away. The first staged rank that is unmasked lets all connected ranks go over
        to the life with those; the other staged ones stay masked until they are unmasked too."""
        if rank_to_mask in self._staged:
            if mask:
                return
            staged = self._staged - {rank_to_mask}
            self._go_over()
            for rank in sorted(staged):
                self._living.low_latency_update_mask_buffer(rank, True)
            return
        self._living.low_latency_update_mask_buffer(rank_to_mask, mask)

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        """Writes 1 for each rank that is masked, left or not connected, else 0, into int32 [capacity]."""
        living = self._living
        masked = torch.ones(living.group_size, dtype=torch.int32, device=mask_status.device)
        living.low_latency_query_mask_buffer(masked)
        mask_status.fill_(1)
        mask_status[: min(len(masked), len(mask_status))].copy_(masked[: len(mask_status)])

    def clean_mask_buffer(self) -> None:
        """Takes the masks of connected ranks away."""
        self._living.low_latency_clean_mask_buffer()

    # ---- the rest --------------------------------------------------------------------------------------------------

    def clean_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """As uccl_ep.Buffer.clean_low_latency_buffer."""
        self._living.clean_low_latency_buffer(num_max_dispatch_tokens_per_rank, hidden, num_experts)

    def barrier(self) -> None:
        """Waits for all connected ranks that are not masked."""
        self._living.barrier()

    def destroy(self) -> None:
        """Gives everything back. Idempotent."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.destroy()

    @property
    def runtime(self) -> Any:
        """None before the first connect_ranks and after destroy()."""
        return None if self._buffer is None else self._buffer.runtime

    def __del__(self) -> None:
        if getattr(self, "_buffer", None) is not None and not self.explicitly_destroy:
            self.destroy()

    def get_comm_stream(self) -> Any:
        """As uccl_ep.Buffer.get_comm_stream."""
        return self._living.get_comm_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0) -> Tensor:
        """As uccl_ep.Buffer.get_local_buffer_tensor, of low latency's memory."""
        return self._living.get_local_buffer_tensor(dtype, size, offset, use_rdma_buffer=True)

    @staticmethod
    def get_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """As uccl_ep.Buffer.get_low_latency_rdma_size_hint; num_ranks is the capacity. Enough for fewer ranks, too:
        nodes that are not full may need a little more."""
        sizes = [(ranks, ranks * (num_experts // num_ranks)) for ranks in range(1, num_ranks + 1)]
        hint = _Buffer.get_low_latency_rdma_size_hint
        return max(hint(num_max_dispatch_tokens_per_rank, hidden, ranks, experts) for ranks, experts in sizes)

    @staticmethod
    def capture() -> EventOverlap[Any]:
        """As uccl_ep.Buffer.capture."""
        return _Buffer.capture()

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """As uccl_ep.Buffer.set_num_sms."""
        _Buffer.set_num_sms(new_num_sms)
