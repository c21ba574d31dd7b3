"""The handle of a low-latency dispatch: what it holds, and whose it is."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep.errors import Described, InvalidArgument, refuse

Tensor = torch.Tensor
Handle = tuple[Tensor, Tensor, int, int, int]


class OwnedInt(int):
    """A number in a handle that also knows which life of which Buffer the handle is of, and what was made with it.

    Attributes:
        owner: of the handle; None: not known, as of a plain number.
        sizes: M, H and E. rest: src_info and layout_range. planes: see planes_of.
    """

    owner: object = None
    sizes: tuple[int, int, int] = (0, 0, 0)
    rest: tuple[Tensor, Tensor] | None = None
    planes: int = 0

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # on its way through a file it forgets


def make_handle(
    whole: Tensor, rows: int, layout_range: Tensor, sizes: tuple[int, int, int], owner: object
) -> tuple[Tensor, Tensor, OwnedInt, int, int]:
    """The handle of a dispatch.

    Args:
        whole: int32, three planes [3, L, P] and the dispatch's number (see planes_of); more may follow.
        rows: P. layout_range: int64 [L, N]. sizes: M, H, E.
        owner: the life of the Buffer whose it is.
    """
    src_info = whole.as_strided((layout_range.shape[0], rows), (rows, 1))
    made = OwnedInt(sizes[0])
    made.owner, made.sizes, made.rest, made.planes = owner, sizes, (src_info, layout_range), whole.data_ptr()
    return src_info, layout_range, made, sizes[1], sizes[2]


def unchanged(handle: Any, owner: object) -> OwnedInt | None:
    """What a handle was made with, where it is of this owner and still is as it was made; nothing of it need be
    checked."""
    if type(handle) is not tuple or len(handle) != 5:
        return None
    src_info, layout_range, made, hidden, num_experts = handle
    if type(made) is not OwnedInt or made.owner is not owner or made.rest is None:
        return None
    same = src_info is made.rest[0] and layout_range is made.rest[1]
    same = same and hidden is made.sizes[1] and num_experts is made.sizes[2]
    return made if same and src_info.data_ptr() == made.planes else None


def check_handle(handle: Any, num_ranks: int, owner: object = None) -> tuple[int, int, int]:
    """(M, H, E) of a low-latency handle.

    Raises:
        InvalidArgument: it is no such handle, of another Buffer, or from before this one's recover().
    """
    wanted = "the handle that low_latency_dispatch of this Buffer returned"
    if isinstance(handle, (tuple, list)) and len(handle) > 5 and all(isinstance(v, Tensor) for v in handle):
        refuse("handle", Described("one of dispatch"), wanted, "Pass it to combine.")
    if not isinstance(handle, (tuple, list)) or len(handle) != 5 or not all(isinstance(v, int) for v in handle[2:]):
        refuse("handle", handle, wanted, "Pass it on as it came.")
    src_info, layout_range, max_tokens, hidden, num_experts = handle
    maker = getattr(max_tokens, "owner", None)  # not known of a handle that was put together from plain numbers
    if None not in (maker, owner) and maker is not owner:
        refuse(
            "handle",
            Described("one of another Buffer"),
            wanted,
            "One from before recover() or switch_members() counts as that. Dispatch again.",
        )
    local = num_experts // num_ranks
    for tensor, shape, dtype in (
        (src_info, (local, num_ranks * max_tokens), torch.int32),
        (layout_range, (local, num_ranks), torch.int64),
    ):
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            refuse("handle", tensor, f"{wanted}, with a {dtype} tensor of shape {shape} in this place")
    return int(max_tokens), hidden, num_experts


def planes_of(handle: Handle) -> int:
    """Address of three int32 planes [3, L, P], the first of which is a handle's src_info, and the dispatch's number.

    Raises:
        InvalidArgument: src_info is a copy, without what lies behind the original.
    """
    src_info = handle[0]
    count = src_info.numel()
    base = src_info.untyped_storage()
    whole = src_info.is_contiguous() and src_info.storage_offset() == 0 and base.nbytes() >= 12 * count + 4
    if not whole or not handle[1].is_contiguous():
        raise InvalidArgument(
            "handle: its src_info is not the tensor that low_latency_dispatch returned (a copy lacks the source slots "
            "behind it). Pass the handle on as it came."
        )
    return src_info.data_ptr()
