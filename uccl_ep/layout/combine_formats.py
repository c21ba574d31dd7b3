"""How rows of a low-latency combine travel: what kernels are told, and what callers may ask for. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence

from uccl_ep._native import LowLatencyLayout
from uccl_ep._native import RowFormat as RowFormat
from uccl_ep.cost_model.wire import COMBINE_FORMATS
from uccl_ep.errors import Described, refuse

_BY_KEYWORD = {f"use_{name}": form for name, form in COMBINE_FORMATS.items() if form is not RowFormat.BF16}
KEYWORDS = tuple(_BY_KEYWORD)
"""What low_latency_combine calls the formats that are not bf16."""

_MOST_LOGFMT = 64 * LowLatencyLayout.row_unit(RowFormat.LOGFMT)  # channels


def name_of(form: int) -> str:
    """What people call a format of combine rows."""
    return next((name for name, known in COMBINE_FORMATS.items() if known == form), f"format {form}")


def combine_format(asked: Sequence[bool], zero_copy: bool, hidden: int) -> RowFormat:
    """What a combine's keywords ask for.

    Args:
        asked: their values, in the order of KEYWORDS.

    Raises:
        InvalidArgument: two formats, one with zero_copy, or rows that it cannot hold.
    """
    wanted = [keyword for keyword, given in zip(KEYWORDS, asked, strict=True) if given]
    if not wanted:
        return RowFormat.BF16
    if len(wanted) > 1:
        refuse(" and ".join(wanted), Described("both True" if len(wanted) == 2 else "all True"), "True one at a time")
    keyword, form = wanted[0], _BY_KEYWORD[wanted[0]]
    if zero_copy:
        refuse("zero_copy", True, f"False with {keyword}=True")
    unit, most = LowLatencyLayout.row_unit(form), _MOST_LOGFMT if form is RowFormat.LOGFMT else hidden
    if hidden % unit or hidden > most:
        limit = f"{unit}" if most == hidden else f"{unit} up to {most}"
        refuse(keyword, True, f"False with hidden={hidden}, which is no multiple of {limit}")
    return form
