"""What ranks of a node tell each other while no kernel may run: a number and a few bytes.

A rank writes its own page of host memory and reads those of the others. Nothing orders the words of a page, so a reader
believes only what is whole. Ranks of other hosts, which reach no page, get the same as a message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

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


class Notices:
    """One rank's part.

    Args:
        page: (rank) its page, of this rank and those of its host.
    """

    def __init__(self, rank: int, page: Callable[[int], memoryview]) -> None:
        self._rank, self._page = rank, page
        self._abroad: dict[int, tuple[int, bytes]] = {}  # the newest of each rank of another host

    def expect(self, rank: int) -> None:
        """The rank is of another host: what it tells comes to hear()."""
        self._abroad.setdefault(rank, (0, b""))

    def hear(self, rank: int, number: int, what: bytes) -> None:
        """A message of a rank of another host. On any thread."""
        if rank in self._abroad and number > self._abroad[rank][0]:
            self._abroad[rank] = number, what

    def tell(self, number: int, what: bytes) -> None:
        """Writes this rank's page."""
        tell(self._page(self._rank), number, what)

    def heard(self, rank: int) -> tuple[int, bytes]:
        """(number, what) of a rank's newest notice; 0 and nothing: there is none yet."""
        return self._abroad[rank] if rank in self._abroad else heard(self._page(rank))


def _check(number: int, what: bytes) -> int:
    return zlib.crc32(what, zlib.crc32(number.to_bytes(8, "little")))
