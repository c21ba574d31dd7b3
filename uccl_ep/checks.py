"""Argument checks of Buffer's calls: each refusal names the argument, its value and what is allowed."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn

import torch

from uccl_ep import _native
from uccl_ep.errors import Described, one_of, refuse

Tensor = torch.Tensor


def check_int(name: str, value: Any, least: int, most: int, hint: str = "") -> int:
    """A whole number from `least` to `most`; NumPy's and torch's count, booleans do not.

    Raises:
        InvalidArgument: it is not.
    """
    if type(value) is int and least <= value <= most:
        return value
    allowed = f"a whole number, {least} to {most}"
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except (TypeError, RuntimeError):  # torch's for a tensor that is on no device
        refuse(name, value, allowed, hint)
    if isinstance(value, bool) or not least <= number <= most:
        refuse(name, value, allowed, hint)
    return number


def check_unused_int(name: str, value: Any, least: int, most: int) -> int:
    """An argument that has no effect here: as `check_int`, and a float that is a whole number, as rtp-llm passes.

    Raises:
        InvalidArgument: it is neither.
    """
    return check_int(name, int(value) if isinstance(value, float) and value.is_integer() else value, least, most)


def check_bool(name: str, value: Any) -> bool:
    """True or False, also as 1, 0, or NumPy's.

    Raises:
        InvalidArgument: it is something else; a tensor's or a text's truth is not asked for.
    """
    if value is True or value is False:
        return value
    if isinstance(value, (bool, int)) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    refuse(name, value, "True or False")


def check_matrix(name: str, value: Any, dtypes: tuple[torch.dtype, ...], columns: int | None = None) -> Tensor:
    """A contiguous 2-D tensor of one of `dtypes` with `columns` columns.

    Raises:
        InvalidArgument: it is not.
    """
    good = isinstance(value, Tensor) and value.layout == torch.strided and value.dim() == 2
    if not (good and value.dtype in dtypes and value.is_contiguous()):
        _refuse_matrix(name, value, dtypes)
    if columns is not None and value.shape[1] != columns:
        refuse(name, value, f"of {columns} columns")
    checked: Tensor = value
    return checked


def _refuse_matrix(name: str, value: Any, dtypes: tuple[torch.dtype, ...]) -> NoReturn:
    other = isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point() and value.dtype not in dtypes
    hint = f"Call .to({dtypes[0]}) on it." if other and len(dtypes) == 1 and dtypes[0].is_floating_point else ""
    refuse(name, value, f"a contiguous 2-D tensor of {one_of(str(d) for d in dtypes)}", hint)


def check_out(name: str, value: Any, shape: tuple[int, int], dtype: torch.dtype, **read: Tensor | None) -> Tensor:
    """A contiguous 2-D tensor of the caller's that a call may write to: on a 16-byte border, and apart from `read`.

    Args:
        read: what the call reads meanwhile, by the names of its arguments.

    Raises:
        InvalidArgument: it is not.
    """
    checked = check_matrix(name, value, (dtype,))
    if tuple(checked.shape) != shape:
        refuse(name, checked, f"of shape {shape}")
    if checked.data_ptr() % 16:
        refuse(name, Described(f"a tensor at {checked.data_ptr():#x}"), "on a 16-byte border")
    refuse_overlap(name, checked, **read)
    return checked


def refuse_overlap(name: str, value: Tensor, **others: Tensor | None) -> None:
    """Nothing of `value` lies within another tensor's first to last byte.

    Raises:
        InvalidArgument: it does; says with which.
    """
    begin, end = _extent(value)
    for other, tensor in others.items():
        if isinstance(tensor, Tensor) and begin < (span := _extent(tensor))[1] and span[0] < end:
            refuse(
                name, Described(f"a tensor that overlaps {other}"), "memory of its own, which the call does not read"
            )


def _extent(t: Tensor) -> tuple[int, int]:
    last = -1 if t.numel() == 0 else sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def aligned(value: Tensor) -> Tensor:
    """`value`, or a copy of it where its first byte is not on a 16-byte border (a view into the middle of a row)."""
    return value if value.data_ptr() % 16 == 0 else value.clone()


def row_ids(name: str, value: Any, num_experts: int | None = None) -> Tensor:
    """Top-k ids as int64 [T, K]; int32 is widened. With `num_experts`, every id must be -1 or below it, and the ids
    must be in host memory: they are looked at without torch, whose code the model has driven out of the caches.

    Raises:
        InvalidArgument: shape, dtype, K or an id is out of range.
    """
    ids = check_matrix(name, value, (torch.int64, torch.int32))
    if not 1 <= ids.shape[1] <= _native.MAX_TOPK:
        refuse(name, ids, f"of 1 to {_native.MAX_TOPK} columns (top-k)")
    if num_experts is not None:
        range_of_ids(name, ids, num_experts)
    return ids if ids.dtype == torch.int64 else ids.to(torch.int64)


def range_of_ids(name: str, ids: Tensor, num_experts: int) -> None:
    """Every id of a contiguous int64 or int32 tensor [T, K] in host memory is -1 or names an expert.

    Raises:
        InvalidArgument: one does not; says which, and where it is.
    """
    if not ids.numel():
        return
    low, high = _native.range_of_ids(ids.data_ptr(), ids.numel(), ids.dtype == torch.int64)
    if low < -1 or high >= num_experts:
        token, k = ((ids < -1) | (ids >= num_experts)).nonzero()[0].tolist()
        shown = f"ids from {low} to {high}, first {int(ids[token, k])} at [{token}, {k}]"
        refuse(name, Described(shown), f"-1 (not routed) or 0 to {num_experts - 1}, below num_experts")


def weights(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """float32 weights of a shape.

    Raises:
        InvalidArgument: they are not.
    """
    checked = check_matrix(name, value, (torch.float32,))
    if tuple(checked.shape) != shape:
        refuse(name, checked, f"of shape {shape}, one weight for each id of topk_idx")
    return checked


def event(name: str, value: Any) -> Any:
    """The bare event of an event argument; None: there is nothing to wait for.

    Raises:
        InvalidArgument: it is something else.
    """
    bare = getattr(value, "event", value)  # of an EventOverlap
    if bare is not None and not callable(getattr(bare, "query", None)):
        refuse(name, value, "None, or an event such as capture() and calls with async_finish=True return")
    return bare


def check_vector(name: str, value: Any, dtype: torch.dtype, size: int) -> Tensor | None:
    """A contiguous 1-D tensor of `size` elements, or None.

    Raises:
        InvalidArgument: it is neither.
    """
    if value is None:
        return None
    good = isinstance(value, Tensor) and value.dtype == dtype and value.dim() == 1 and value.layout == torch.strided
    good = good and value.is_contiguous()
    if not good or value.numel() != size:
        refuse(name, value, f"a contiguous {dtype} tensor of {size} elements, or None")
    tensor: Tensor = value
    return tensor
