"""BucketBuffer: V2.5's gathers and reductions of tensors that lie in a region, and sessions for tensors that do not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from uccl_ep import checks
from uccl_ep.config import DEFAULT_NUM_SMS
from uccl_ep.device.protocol import EventHandle
from uccl_ep.elastic.base import BufferAllocator, BufferBase, Region, get_num_rdma_alignment
from uccl_ep.elastic.bucket_group import BucketContext
from uccl_ep.errors import Described, InvalidArgument, named, refuse
from uccl_ep.events import EventOverlap
from uccl_ep.sizes import round_up
from uccl_ep.system import process_end
from uccl_ep.system.ownership import Owner, in_turn

Tensor = torch.Tensor
_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class BucketHandle(EventOverlap[EventHandle]):
    """What a collective returns: wait() gives its tensors, once. `num_sms`: what its kernels were given."""

    def __init__(self, results: Any, num_sms: int) -> None:
        super().__init__(EventHandle())
        self.num_sms = num_sms
        self.register_hook_after_wait(lambda: results)


class BucketSession:
    """`with buffer.session():` collectives take tensors from outside the region, by way of what is allocated in it.

    Entering one makes the whole region free to use: the caller knows that nothing in it is needed any more.
    """

    def __init__(self, buffer: BucketBuffer) -> None:
        self.buffer = buffer
        self.num_allocated_bytes = 0
        self.context_idx: int | None = None

    def __enter__(self) -> BucketSession:
        """Raises InvalidArgument inside another session."""
        if self.buffer._session is not None:
            raise InvalidArgument("a session of this BucketBuffer is open: sessions cannot be nested")
        self.num_allocated_bytes, self.context_idx = 0, None
        self.buffer._session = self
        return self

    def __exit__(self, *_: object) -> None:
        self.buffer._session = None

    @named
    def allocate(
        self, shapes: Sequence[int] | Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, group: Any = None
    ) -> Any:
        """A tensor in the region for a shape, or a tuple of them for several.

        Raises:
            RuntimeError: the region is full. InvalidArgument: the session has been used with another group.
        """
        self._use(self.buffer.get_context_idx(group))
        if len(shapes) and isinstance(shapes[0], Sequence):
            return tuple(self._take(shape, dtype) for shape in shapes)  # type: ignore[arg-type]
        return self._take(shapes, dtype)  # type: ignore[arg-type]

    def _use(self, context_idx: int) -> None:
        if self.context_idx not in (None, context_idx):
            refuse("group", context_idx, f"{self.context_idx}, as the others in this session: one session, one group")
        self.context_idx = context_idx

    def _take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        offset, size = self.num_allocated_bytes, prod(shape) * dtype.itemsize
        if offset + size > self.buffer.num_bytes:
            raise RuntimeError(f"the session is out of storage: {size} bytes more than {offset} do not fit in the "
                               f"{self.buffer.num_bytes} bytes of its BucketBuffer")  # fmt: skip
        self.num_allocated_bytes = min(round_up(offset + size, get_num_rdma_alignment()), self.buffer.num_bytes)
        return self.buffer._region.at(offset, size, dtype).view(tuple(shape))


class BucketBuffer(BufferBase):
    """A region of tensors that are gathered and reduced among the ranks of one or several groups. Making one is
    collective.

    Bytes go as rows of throughput dispatches, so each is written once into the memory of every node that wants it. A
    gather sends a shard to all other ranks; a reduction sends each rank the shards that are its own to add, in f32 and
    by ascending rank: the same bits in every run and, of all_reduce, on every rank. N is the number of a group's ranks.

    Args:
        group: a group, or several of which this rank is a member, in an order that no two ranks have differently.
        allocation_plan_or_num_bytes: a BufferAllocator, whose tensors this fills in, or a multiple of 2 MiB.
        explicitly_destroy: destroy() will be called.
        device: as Buffer's.

    sl_idx and num_gpu_timeout_secs belong to upstream's network: accepted; the time-out is UCCL_EP_TIMEOUT_S.

    A collective waits on the host until its rows have come, on a GPU too; there its last copies and sums are queued on
    the current stream. Its handle's wait() gives the tensors. Every collective takes one tensor or several, of the same
    sizes on all ranks, and num_sms (None: see get_theoretical_num_sms).

    Raises:
        InvalidArgument, SettingsMismatch, UcclEpError: as Buffer.
    """

    @named
    def __init__(
        self,
        group: Any,
        allocation_plan_or_num_bytes: BufferAllocator | int,
        sl_idx: int | None = None,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        device: str | None = None,
    ) -> None:
        self._owner, self.contexts = Owner(), None
        self._session: BucketSession | None = None
        self.explicitly_destroy = checks.check_bool("explicitly_destroy", explicitly_destroy)
        self._region = Region("allocation_plan_or_num_bytes", allocation_plan_or_num_bytes)
        if not self._region.num_bytes:
            refuse("allocation_plan_or_num_bytes", 0, "more than 0 bytes")
        self.num_bytes = self._region.num_bytes
        self.groups = list(group) if isinstance(group, (list, tuple)) else [group]
        if not self.groups:
            refuse("group", group, "at least one group")
        self.contexts = [BucketContext(item, device) for item in self.groups]
        self._region.make(self.contexts[0].buffer._device.where)
        process_end.end_with_process(self)

    contexts: list[BucketContext] | None  # one for each group; None after destroy()

    @property
    def storage(self) -> Tensor | None:
        """uint8 [num_bytes], the region; None after destroy()."""
        return None if self.contexts is None else self._region.storage

    @property
    def runtime(self) -> Any:
        """What is behind the buffer; None after destroy()."""
        return None if self.contexts is None else self.contexts[0].buffer.runtime

    def print_memory_usage(self) -> None:
        """Prints what this rank has allocated, by purpose; the Buffer of each group by itself."""
        for context in self._living():
            print(context.buffer.memory_bill())
        print(self._region)

    def destroy(self) -> None:
        """As BufferBase.destroy; tensors in the region stay as long as the caller has them."""
        if not self.explicitly_destroy:
            raise InvalidArgument("destroy() needs a BucketBuffer made with explicitly_destroy=True")
        self._end()

    def _end(self) -> None:
        contexts, self.contexts = self.contexts, None
        for context in contexts or ():
            context.buffer.destroy()

    def __del__(self) -> None:
        if getattr(self, "contexts", None) is None:
            return
        if self.explicitly_destroy and not self._owner.elsewhere:
            process_end.warn_forgotten("BucketBuffer")
        self._end()

    def _living(self) -> list[BucketContext]:
        if self.contexts is None:
            raise InvalidArgument("this BucketBuffer has been destroyed")
        return self.contexts

    @named
    def get_context_idx(self, group: Any) -> int:
        """The place of a group among the buffer's; None means the only one.

        Raises:
            InvalidArgument: None with several groups, or a group that is none of them.
        """
        if (group is None and len(self.groups) > 1) or (group is not None and group not in self.groups):
            refuse("group", group, f"one of the {len(self.groups)} groups that the BucketBuffer was made with")
        return 0 if group is None else self.groups.index(group)

    @named
    def get_theoretical_num_sms(self, op: str, group: Any = None) -> int:
        """The SMs of "all_gather", "reduce_scatter" or "all_reduce" when none are named.

        Upstream's all_gather runs on copy engines and says 0, which it also wants to be told; 0 means the default here.
        """
        if op not in ("all_gather", "reduce_scatter", "all_reduce"):
            refuse("op", op, '"all_gather", "reduce_scatter" or "all_reduce"')
        self.get_context_idx(group)
        return 0 if op == "all_gather" else DEFAULT_NUM_SMS

    def session(self) -> BucketSession:
        """A session in which collectives take tensors from outside the region."""
        return BucketSession(self)

    @in_turn("barrier")
    def barrier(
        self, wait_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True, group: Any = None
    ) -> None:
        """Returns when every rank of the group has entered it. The host always waits, whatever the arguments say."""
        self._living()[self.get_context_idx(group)].buffer.barrier()

    @in_turn("all_gather")
    def all_gather(self, srcs: Any, dsts: Any = None, group: Any = None, num_sms: int | None = None) -> BucketHandle:
        """Every rank's shard, by rank.

        Args:
            srcs: contiguous tensors of any dtype. Without dsts each is this rank's shard of a gathered tensor in the
                region, which is completed in place.
            dsts: contiguous, in the region, of N times the bytes each. Upstream takes srcs from outside the region with
                it on one node only.
            num_sms: 0 or None, as upstream.

        Returns:
            A handle whose wait() gives the gathered tensors, 1-D, of the dtype of srcs; in a session dsts as they are.
        """
        packed, tensors, context = self._begin("srcs", srcs, group)
        sms = checks.check_int("num_sms", num_sms or 0, 0, 0)
        if dsts is None:
            wholes = [self._whole_around(tensor, context) for tensor in tensors]
            shards = [whole.chunk(context.num_ranks)[context.rank] if len(whole) else whole for whole in wholes]
            for tensor, shard in zip(tensors, shards, strict=True):
                _fill(shard, tensor)
            results = wholes
        else:
            results = [dsts] if isinstance(dsts, Tensor) else list(dsts)
            shards = [_contiguous("srcs", tensor) for tensor in tensors]
            for tensor, target in zip(tensors, self._targets(results, len(tensors)), strict=True):
                if target.nbytes != context.num_ranks * tensor.nbytes:
                    allowed = f"of {context.num_ranks * tensor.nbytes} bytes, a shard of each rank"
                    refuse("dsts", Described(f"a tensor of {target.nbytes} bytes"), allowed)
            wholes = results
            if self._session is None:
                results = [whole.view(-1).view(src.dtype) for whole, src in zip(wholes, tensors, strict=True)]
        context.gather(shards, wholes, DEFAULT_NUM_SMS)
        return BucketHandle(results[0] if packed else results, sms)

    @in_turn("reduce_scatter")
    def reduce_scatter(
        self,
        srcs: Any,
        comm_precision: str = "fp32",
        scale: float = 1.0,
        group: Any = None,
        num_sms: int | None = None,
    ) -> BucketHandle:
        """The sum over ranks of this rank's shard, times `scale`, in the place of that shard.

        Args:
            srcs: f32, contiguous, in the region, of a multiple of N elements. Other shards stay as they are.
            comm_precision: "bf16" rounds every rank's addend to bf16, which halves what is sent; sums are f32 still.

        Returns:
            A handle whose wait() gives the shards, 1-D views of srcs.
        """
        packed, tensors, context = self._begin("srcs", srcs, group)
        if comm_precision not in _PRECISIONS:
            refuse("comm_precision", comm_precision, '"fp32" or "bf16"')
        sms = self._sms("reduce_scatter", num_sms)
        parts = []
        for tensor in self._registered(tensors):
            if tensor.numel() % context.num_ranks:
                refuse("srcs", tensor, f"of a multiple of {context.num_ranks} elements, one shard for each rank")
            parts.append(tensor.view(context.num_ranks, tensor.numel() // context.num_ranks))
        shards = [part[context.rank] for part in parts]
        total = context.reduce(parts, _PRECISIONS[comm_precision], float(scale), sms)
        _split_into(shards, total)
        return BucketHandle(shards[0] if packed else shards, sms)

    @in_turn("all_reduce")
    def all_reduce(self, srcs: Any, scale: float = 1.0, group: Any = None, num_sms: int | None = None) -> BucketHandle:
        """The sum over ranks, times `scale`, in place.

        Args:
            srcs: f32, contiguous, in the region, of any number of elements.

        Returns:
            A handle whose wait() gives the tensors.
        """
        packed, tensors, context = self._begin("srcs", srcs, group)
        sms = self._sms("all_reduce", num_sms)
        results = self._registered(tensors)
        flat = torch.cat([tensor.view(-1) for tensor in results])
        shard = -(-flat.numel() // context.num_ranks)
        padded = torch.nn.functional.pad(flat, (0, shard * context.num_ranks - flat.numel()))
        total = context.reduce([padded.view(context.num_ranks, shard)], torch.float32, float(scale), sms)
        context.gather([total], [padded], sms)
        _split_into([tensor.view(-1) for tensor in results], padded[: flat.numel()])
        return BucketHandle(results[0] if packed else results, sms)

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _begin(self, name: str, srcs: Any, group: Any) -> tuple[bool, list[Tensor], BucketContext]:
        """(one tensor instead of several, them, whom with)."""
        context_idx = self.get_context_idx(group)
        context = self._living()[context_idx]
        if self._session is not None:
            self._session._use(context_idx)
        tensors = [srcs] if isinstance(srcs, Tensor) else list(srcs)
        if not tensors:
            refuse(name, Described("no tensors"), "a tensor, or several")
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                refuse(name, tensor, "a tensor, or several")
            context.buffer._device.check_tensor(name, tensor)
        return isinstance(srcs, Tensor), [tensor.detach() for tensor in tensors], context

    def _sms(self, op: str, num_sms: int | None) -> int:
        if num_sms is None:
            return self.get_theoretical_num_sms(op, self.groups[0])
        return checks.check_int("num_sms", num_sms, 1, 1 << 16)

    def _registered(self, tensors: list[Tensor]) -> list[Tensor]:
        """f32 tensors in the region, or in a session copies there of those that are elsewhere."""
        found = []
        for tensor in tensors:
            if tensor.dtype != torch.float32:
                refuse("srcs", tensor, "float32 tensors")
            if self._region.offset_of(tensor) is None:
                copy = self._in_session("srcs")._take(tensor.shape, tensor.dtype)
                copy.copy_(tensor)
                tensor = copy
            found.append(tensor)
        return found

    def _whole_around(self, shard: Tensor, context: BucketContext) -> Tensor:
        """The gathered tensor, 1-D, that `shard` is this rank's part of; for a shard elsewhere a session's new one."""
        size = shard.nbytes
        offset = self._region.offset_of(shard)
        if offset is None:
            return self._in_session("srcs")._take((context.num_ranks * shard.numel(),), shard.dtype)
        begin = offset - context.rank * size
        if begin < 0 or begin + context.num_ranks * size > self.num_bytes:
            refuse("srcs", Described(f"a shard at byte {offset} of the region"), "with room for all others around it")
        return self._region.at(begin, context.num_ranks * size, shard.dtype)

    def _targets(self, dsts: list[Tensor], number: int) -> list[Tensor]:
        if len(dsts) != number:
            refuse("dsts", Described(f"{len(dsts)} tensors"), f"{number}, as srcs has")
        for tensor in dsts:
            _contiguous("dsts", tensor)
            if self._session is None and self._region.offset_of(tensor) is None:
                refuse("dsts", Described("a tensor elsewhere"), "in the region", "Or use a session().")
        return dsts

    def _in_session(self, name: str) -> BucketSession:
        if self._session is None:
            refuse(name, Described("a tensor elsewhere, or not contiguous"), "in the region", "Or use a session().")
        return self._session


def _contiguous(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.is_contiguous():
        refuse(name, tensor, "contiguous tensors")
    return tensor


def _fill(target: Tensor, source: Tensor) -> None:
    """Copies `source` unless it is `target`."""
    if target.data_ptr() != source.data_ptr() or not source.is_contiguous():
        target.view(source.shape).copy_(source)


def _split_into(targets: Sequence[Tensor], values: Tensor) -> None:
    """1-D targets take consecutive parts of 1-D `values`."""
    for target, part in zip(targets, torch.split(values, [len(target) for target in targets]), strict=True):
        target.copy_(part)
