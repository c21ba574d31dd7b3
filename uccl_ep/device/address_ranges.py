"""Which ranges of a span of addresses are free: first fit, neighbours merged."""

from __future__ import annotations

from bisect import bisect_left


class AddressRanges:
    """Free ranges of [0, size). Takes no memory of what it describes, and no lock.

    Args:
        size: bytes; 0: nothing is ever free.
    """

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)] if size else []  # (begin, end), ascending, never adjacent

    @property
    def free_bytes(self) -> int:
        """Bytes that are in no taken range."""
        return sum(end - begin for begin, end in self._free)

    def take(self, num_bytes: int) -> int | None:
        """The lowest range of that many bytes, taken; None: there is none."""
        for i, (begin, end) in enumerate(self._free):
            if end - begin < num_bytes:
                continue
            if end - begin == num_bytes:
                del self._free[i]
            else:
                self._free[i] = (begin + num_bytes, end)
            return begin
        return None

    def give_back(self, begin: int, num_bytes: int) -> None:
        """Frees a range that `take` returned."""
        end = begin + num_bytes
        at = bisect_left(self._free, (begin, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == begin:
            at -= 1
            begin = self._free.pop(at)[0]
        self._free.insert(at, (begin, end))
