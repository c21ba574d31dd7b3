"""What ranks of a node tell each other through host memory while no kernel may run: a number and a few bytes.

A rank writes its own page and reads those of the others. Nothing orders the words of a page, so a reader believes only
what is whole.
"""

from __future__ import annotations

import struct
import zlib

PAGE_BYTES = 4096
_HEAD = struct.Struct("<QII")  # number, bytes that follow, check of all


def tell(page: memoryview, number: int, what: bytes) -> None:
    """Writes a notice; `number` is higher than that of the one before.

    Args:
        what: up to PAGE_BYTES - 16 bytes.
    """
    head = _HEAD.pack(number, len(what), _check(number, what))
    page[: _HEAD.size + len(what)] = head + what


def heard(page: memoryview) -> tuple[int, bytes]:
    """(number, what) of a page's notice; 0 and nothing: there is none, or it is being written."""
    number, size, check = _HEAD.unpack(page[: _HEAD.size])
    what = bytes(page[_HEAD.size : _HEAD.size + min(size, PAGE_BYTES - _HEAD.size)])
    return (number, what) if number and check == _check(number, what) else (0, b"")


def _check(number: int, what: bytes) -> int:
    return zlib.crc32(what, zlib.crc32(number.to_bytes(8, "little")))
