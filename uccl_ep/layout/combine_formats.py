"""How rows of a low-latency combine travel: what kernels are told, and what callers may ask for. Loads no torch."""

from __future__ import annotations

from uccl_ep._native import CombineFormat as CombineFormat
from uccl_ep.errors import Described, refuse

_FP8_UNIT = 128  # channels that share a scale
_LOGFMT_UNIT, _MAX_LOGFMT_UNITS = 512, 64  # channels that are encoded together or not at all, and how often


def keyword_of(form: CombineFormat) -> str:
    """What low_latency_combine calls a format of rows."""
    return f"use_{form.name.lower()}"


def combine_format(use_logfmt: bool, use_fp8: bool, zero_copy: bool, hidden: int) -> CombineFormat:
    """What a combine's keywords ask for.

    Raises:
        InvalidArgument: both formats, one with zero_copy, or rows that it cannot hold.
    """
    if use_logfmt and use_fp8:
        refuse("use_logfmt and use_fp8", Described("both True"), "True one at a time")
    form = CombineFormat.LOGFMT if use_logfmt else CombineFormat.FP8 if use_fp8 else CombineFormat.BF16
    if form is CombineFormat.BF16:
        return form
    if zero_copy:
        refuse("zero_copy", True, f"False with {keyword_of(form)}=True")
    if use_fp8 and hidden % _FP8_UNIT:
        refuse("use_fp8", True, f"False with hidden={hidden}, which is no multiple of {_FP8_UNIT}")
    if use_logfmt and (hidden % _LOGFMT_UNIT or hidden > _LOGFMT_UNIT * _MAX_LOGFMT_UNITS):
        most = _LOGFMT_UNIT * _MAX_LOGFMT_UNITS
        refuse("use_logfmt", True, f"False with hidden={hidden}, which is no multiple of {_LOGFMT_UNIT} up to {most}")
    return form
