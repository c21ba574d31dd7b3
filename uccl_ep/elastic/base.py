"""What V2.5's buffers share: their base class, and plans of the tensors that lie in a buffer's region."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from uccl_ep import checks
from uccl_ep.elastic.sizes import GRANULE
from uccl_ep.errors import Described, InvalidArgument, refuse
from uccl_ep.refused import refusal
from uccl_ep.sizes import format_bytes, round_up
from uccl_ep.system.ownership import NoCopies

Tensor = torch.Tensor


def get_num_allocation_alignment() -> int:
    """Bytes that regions and the tensors in them are multiples of: 2 MiB."""
    return GRANULE


def get_num_rdma_alignment() -> int:
    """Bytes that tensors of a BucketSession begin at multiples of: 64."""
    return 64


def get_num_tma_alignment() -> int:
    """Bytes that upstream wants an expert's weights to be a multiple of: 32. Here 1 is enough."""
    return 32


class BufferBase(NoCopies, ABC):
    """V2.5's base of EPBuffer and BucketBuffer."""

    explicitly_destroy: bool
    main_context = refusal("BufferBase.main_context", "it is a native object of DeepEP's")

    @abstractmethod
    def print_memory_usage(self) -> None:
        """Prints what this rank has allocated, by purpose."""

    @abstractmethod
    def destroy(self) -> None:
        """Frees the memory and ends the proxy. Not collective; idempotent.

        Raises:
            InvalidArgument: the buffer was made without explicitly_destroy=True.
        """


class BufferAllocator:
    """A plan of tensors side by side in the region of a buffer that is not there yet.

    Attributes: `num_bytes` of the plan so far, `alignment` in bytes, `allocations` as (tensor, offset in bytes),
    `materialized`.
    """

    def __init__(self) -> None:
        self.alignment = get_num_allocation_alignment()
        self.allocations: list[tuple[Tensor, int]] = []
        self.num_bytes = 0
        self.materialized = False

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Adds a tensor to the plan; returns it on torch's meta device, until its buffer is made.

        Raises:
            InvalidArgument: the plan has been materialized.
        """
        if self.materialized:
            raise InvalidArgument("this BufferAllocator is the plan of a buffer already: make another one")
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self.allocations.append((tensor, self.num_bytes))
        self.num_bytes += round_up(tensor.nbytes, self.alignment)
        return tensor

    def materialize(self, storage: Tensor) -> None:
        """Turns the planned tensors into views of `storage`, uint8 [num_bytes]; the buffer that takes the plan does it.

        Raises:
            InvalidArgument: the plan has been materialized, or `storage` is something else.
        """
        if self.materialized:
            raise InvalidArgument("this BufferAllocator is the plan of a buffer already: make another one")
        checks.check_vector("storage", storage, torch.uint8, self.num_bytes)
        for tensor, offset in self.allocations:
            value = storage[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            torch.utils.swap_tensors(tensor, value)  # type: ignore[no-untyped-call]
        self.materialized = True


class Region:
    """Memory that a buffer's tensors lie in: plain memory of the device, which this rank alone reads and writes.

    Args:
        name: of the argument `plan_or_bytes`, a BufferAllocator or a number of bytes.
    """

    def __init__(self, name: str, plan_or_bytes: BufferAllocator | int) -> None:
        self._plan = plan_or_bytes if isinstance(plan_or_bytes, BufferAllocator) else None
        if self._plan is not None and self._plan.materialized:
            refuse(name, Described("a plan that another buffer has materialized"), "a new plan")
        size = self._plan.num_bytes if self._plan is not None else plan_or_bytes
        if isinstance(size, bool) or not isinstance(size, int) or size < 0 or size % GRANULE:
            refuse(name, size, "a BufferAllocator, or a multiple of 2 MiB")
        self.num_bytes = size
        self.storage = torch.empty(0, dtype=torch.uint8)

    def make(self, where: torch.device) -> None:
        """Allocates it, and materializes the plan if there is one."""
        self.storage = torch.empty(self.num_bytes, dtype=torch.uint8, device=where)
        if self._plan is not None:
            self._plan.materialize(self.storage)

    def offset_of(self, tensor: Tensor) -> int | None:
        """Bytes from the beginning to a contiguous tensor, None if not all of it is in the region."""
        at = tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.element_size()
        offset = at - self.storage.data_ptr()  # a tensor of no elements says of itself that it is at 0
        inside = tensor.device == self.storage.device and 0 <= offset <= self.num_bytes - tensor.nbytes
        return offset if inside and tensor.is_contiguous() else None

    def at(self, offset: int, num_bytes: int, dtype: torch.dtype) -> Tensor:
        """So many bytes of it, 1-D."""
        return self.storage[offset : offset + num_bytes].view(dtype)

    def __str__(self) -> str:
        return f"region of the caller's tensors: {format_bytes(self.num_bytes)}"
