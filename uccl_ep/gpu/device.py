"""A GPU as a Buffer's device: launches by name, grids that let every rank of the GPU run at once, and pinned words."""

from __future__ import annotations

import functools
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import EventHandle, HostWords, refuse_elsewhere
from uccl_ep.errors import InvalidArgument, NotSupported, UcclEpError
from uccl_ep.gpu.compiler import MAX_BLOCK_LANES
from uccl_ep.gpu.driver import Driver
from uccl_ep.gpu.streams import CallOrder, check_queues, enter_process
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology

_PINNED_BLOCK_BYTES = 256 << 10
_SLOT_BYTES = 64  # slots of one cache line, so that no two share one
_ROLES = {False: 2, True: 3}  # blocks a channel of the throughput kernels, by whether there are several nodes


class Kernels(Protocol):
    """What launches kernels by name: uccl_ep.gpu.kernels.KernelLibrary."""

    def launch(self, name: str, args: bytes, grid: int, warps: int, stream: Any) -> None: ...

    def resident_blocks(self, name: str, warps: int) -> int: ...


@dataclass(frozen=True)
class Share:
    """A rank's part of its GPU, from facts that all ranks have alike.

    Attributes:
        ranks: ranks on this GPU, of any process.
        threads: those of them that are threads of this process.
        sms: its SMs for this rank; blocks of kernels that wait for each other take no more.
        blocks: blocks of a throughput kernel that every rank's GPU can hold for each of its ranks at once, one an SM.
    """

    ranks: int
    threads: int
    sms: int
    blocks: int


def share_of(hellos: Sequence[Hello], rank: int) -> Share:
    """What rank `rank` may use of its GPU, so that kernels that wait for each other all run.

    Args:
        hellos: of the ranks that take part, and empty ones of those that are absent.

    Raises:
        InvalidArgument: more ranks on a GPU than it can run at once.
    """
    on: dict[tuple[str, str], list[Hello]] = {}
    present = [i for i in hellos if i.gpu]
    for i in present:
        on.setdefault((i.host_id, i.gpu), []).append(i)
    blocks = min(ranks[0].num_sms // len(ranks) for ranks in on.values())
    if blocks < _ROLES[True]:
        crowd = max(on.values(), key=len)
        raise InvalidArgument(
            f"{len(crowd)} ranks on GPU {crowd[0].gpu} of {crowd[0].hostname} with {crowd[0].num_sms} SMs are refused: "
            f"each needs {_ROLES[True]} SMs of its own, since kernels of all ranks wait for each other"
        )
    me = next(i for i in present if i.rank == rank)
    here = on[me.host_id, me.gpu]
    return Share(len(here), sum(i.process == me.process for i in here), me.num_sms // len(here), blocks)


def check_group(hellos: Sequence[Hello], rank: int) -> Share:
    """share_of, and whether this process's GPU queues suffice.

    Raises:
        InvalidArgument: they do not, or see share_of.
    """
    share = share_of(hellos, rank)
    check_queues(hellos[rank].device, share.threads, os.environ)
    return share


class Member(Protocol):
    """What a device asks of the Session it works for."""

    rank: int
    topology: Topology
    hellos: list[Hello]

    def check(self) -> None: ...

    def note(self, kernel: str) -> None: ...

    def keep_awake(self) -> None: ...


class GpuDevice:
    """See uccl_ep.device.protocol.Device. Nothing here waits for the GPU but finish and close.

    Args:
        driver, kernels: the GPU and what is loaded on it, shared by all ranks of the process.
        session: whose fault is raised, and what all ranks have said of themselves.

    Raises:
        InvalidArgument: more ranks share the GPU, or its hardware queues, than can run at once.
    """

    host_memory = False

    def __init__(self, driver: Driver, kernels: Kernels, session: Member) -> None:
        self.driver, self._kernels, self._session = driver, kernels, session
        self.share = check_group(session.hellos, session.rank)
        self.where = driver.torch_device
        self.name = str(self.where)
        self.shape = _native.DeviceShape(self.share.sms, MAX_BLOCK_LANES // driver.facts.warp)
        self._roles = _ROLES[session.topology.num_nodes > 1]
        self._limits: dict[tuple[str, int], int] = {}
        self._recorded = False  # some kernel is in a graph
        self._pinned = PinnedPool(driver)
        life = next(i.session for i in session.hellos if i.gpu)  # of the first rank that is not absent
        self._order = CallOrder(driver, (life, session.rank), self.share.threads)
        self.comm_stream = self._order.comm_stream
        # What every call goes through, without another function of Python around it.
        self.begin, self.behind = self._order.begin, self._order.behind
        self.empty = functools.partial(torch.empty, device=self.where)  # from torch's pool of the current stream
        self._leave = enter_process(driver)
        weakref.finalize(self, self._leave)
        self._load_torch()

    def _load_torch(self) -> None:
        """torch loads its kernels when they are first used, which may wait for kernels of other ranks on the GPU that
        wait for this rank. So what calls use of it is used once before the first of them."""
        for dtype in (torch.int32, torch.int64):
            self.zeros(4, dtype=dtype).clone().to(torch.int64)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            self.empty(4, dtype=dtype).clone()

    # ---- tensors -----------------------------------------------------------------------------------------------

    def arena_offset(self, tensor: torch.Tensor) -> int | None:
        """None: a GPU's results lie in torch's memory."""
        return None

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros; filling it is queued where it is allocated, and kernels of the call run after that."""
        self._order.touched()
        return torch.zeros(shape, dtype=dtype, device=self.where)

    def pinned(self, num: int, dtype: torch.dtype) -> HostWords:
        """Pinned host memory, from a pool; given back when the result goes."""
        return self._pinned.take(num, dtype)

    def check_tensor(self, name: str, value: torch.Tensor) -> None:
        """Raises InvalidArgument when an argument is on another device."""
        if value.device != self.where:
            refuse_elsewhere(name, value, self.name)

    # ---- blocks ------------------------------------------------------------------------------------------------

    def channels(self, num_sms: int) -> int:
        """Throughput channels, so that no kernel has more blocks than `num_sms`, nor than this rank's share."""
        blocks = min(num_sms, self.share.blocks)
        return max(1, min(blocks // self._roles, _native.MAX_CHANNELS))

    def _limit(self, kernel: str, warps: int) -> int:
        """Blocks of a kernel that can run at once beside those of the GPU's other ranks.

        Where it has others, one an SM of this rank's share: nobody knows whether another rank's kernel, which has other
        needs, fits into what is left of an SM.
        """
        known = self._limits.get((kernel, warps))
        if known is None:
            known = self._kernels.resident_blocks(kernel, warps) // self.share.ranks
            if self.share.ranks > 1:
                known = min(known, self.share.sms)
            if known < 1:
                raise UcclEpError(f"{kernel}: this GPU cannot hold a block of {warps} warps for each of its ranks")
            self._limits[kernel, warps] = known
        return known

    # ---- calls -------------------------------------------------------------------------------------------------

    def launch(self, launch: _native.Launch) -> None:
        """Queues a kernel on the call's stream, with no more blocks than this rank's share of the GPU holds at once.

        Raises:
            UcclEpError: more blocks than can run at once, which would wait for ever.
        """
        name, blocks, warps = launch.kernel, launch.blocks, launch.warps
        limit = self._limit(name, warps)
        if blocks > limit and launch.exact:
            raise UcclEpError(
                f"{name} with {blocks} blocks is refused: {limit} can run at once on this rank's share of the "
                "GPU. Use a Config with fewer num_sms, or fewer ranks on the GPU."
            )
        self._session.note(name)
        if self._order.captured and not self._recorded:
            self.expect_replays()
        blocks = min(blocks, limit)
        if launch.exact or self._order.neighbours.alone:
            self._kernels.launch(name, launch.args, blocks, warps, self._order.launch_stream())
        else:
            with self._order.neighbours.lock:
                self._kernels.launch(name, launch.args, blocks, warps, self._order.behind_neighbours())

    def record(self, held: object = None) -> EventHandle:
        """Ends a call: an event of the comm stream."""
        return EventHandle(self._order.record(held), self._session.check)

    def end(self, held: object = None, sent_on: int | None = None) -> None:
        """Ends a call: the caller's stream waits, the caller does not."""
        self._order.end(held, sent_on)

    def finish(self) -> None:
        """Blocks the calling thread until the call's kernels have run, then raises the rank's fault if there is one.

        Raises:
            NotSupported: in a graph capture.
        """
        self.check_host_wait()
        self._order.finish()
        self._session.check()

    def break_off(self, held: object) -> None:
        """The caller's stream goes on behind what the call has queued, and so does who gets its memory next."""
        if self._order.open:
            self._order.end(held)

    def check_host_wait(self) -> None:
        """Raises NotSupported in a graph capture, where nothing runs that the host could wait for."""
        if self.capturing():
            raise NotSupported(
                "this call must wait for results on the host, which a graph capture cannot: capture low-latency calls, "
                "dispatch with a handle or with num_worst_tokens, and combine; make the first call of a size, and "
                "barrier(), outside the capture"
            )

    def catch_up(self) -> None:
        """The caller's stream goes on behind every kernel so far."""
        self._order.catch_up()

    def capturing(self) -> bool:
        """Whether the call at hand is recorded into a graph."""
        return self._order.captured

    def expect_replays(self) -> None:
        """Some kernel is in a graph: the proxy looks for its commands, which nobody announces."""
        self._recorded = True
        self._session.keep_awake()

    def settle(self) -> None:
        """Waits for the calling thread's current stream."""
        self.driver.synchronize(self.driver.record(self.driver.current_stream()))

    def give_back(self) -> None:
        """Nothing: results lie in torch's memory (torch.cuda.empty_cache)."""

    def close(self) -> None:
        """Waits for what is queued and gives streams and pinned memory back."""
        self._leave()
        try:
            self._order.close()
        finally:
            self._pinned.close()


class PinnedPool:
    """Small arrays that kernels write and the host reads. A slot that was given back may be taken by a later call: all
    kernels of a Buffer run one after the other.

    The first block is pinned at once: pinning may wait for the GPU, where kernels of other ranks may wait for this one.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._blocks: list[int] = []  # host addresses
        self._memory: list[torch.Tensor] = []
        self._rest, self._address = torch.empty(0, dtype=torch.uint8), 0  # of the block that slots are cut from
        self._free: dict[int, list[tuple[torch.Tensor, int]]] = {}  # by size: (uint8 tensor, address for kernels)
        self._new_block(_PINNED_BLOCK_BYTES)

    def take(self, num: int, dtype: torch.dtype) -> HostWords:
        """`num` elements, zeroed."""
        num_bytes = -(-max(1, num) * dtype.itemsize // _SLOT_BYTES) * _SLOT_BYTES
        free = self._free.setdefault(num_bytes, [])
        slot = free.pop() if free else self._cut(num_bytes)
        slot[0].zero_()
        words = HostWords(slot[0][: num * dtype.itemsize].view(dtype), slot[1])
        weakref.finalize(words, free.append, slot).atexit = False
        return words

    def _cut(self, num_bytes: int) -> tuple[torch.Tensor, int]:
        if self._rest.numel() < num_bytes:
            self._new_block(max(_PINNED_BLOCK_BYTES, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE))
        slot = self._rest[:num_bytes], self._address
        self._rest, self._address = self._rest[num_bytes:], self._address + num_bytes
        return slot

    def _new_block(self, num_bytes: int) -> None:
        self._rest = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)  # keeps the mapping
        self._address = self._driver.register(self._rest.data_ptr(), num_bytes)
        self._blocks.append(self._rest.data_ptr())
        self._memory.append(self._rest)

    def close(self) -> None:
        """Unpins everything; no kernel may use it any more."""
        blocks, self._blocks = self._blocks, []
        for address in blocks:
            self._driver.unregister(address)
        self._free.clear()
        self._memory.clear()
