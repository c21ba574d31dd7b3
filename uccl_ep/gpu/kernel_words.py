"""What kernels of a rank alone touch (ring heads, masks, sums), and the tables by which they find memory.

Always in the GPU's memory. Captured calls name these two places and nothing else of a rank: where its rows, rings and
control words are, and those of other ranks, stands in the tables. So a life of a Buffer that has them where the life
before had them goes on with its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from uccl_ep import _native
from uccl_ep.gpu.driver import Driver
from uccl_ep.gpu.shared import Shared
from uccl_ep.sizes import round_up

_ALIGN = 256


class KernelWords:
    """Of one rank in one life.

    Attributes:
        mask, peer_stats: see Regions, as kernels have them.
        context: what kernels are told, once `place` was called.
    """

    context: _native.RankContext
    _settings: _native.RankTablesSettings

    def __init__(self, driver: Driver, num_rings: int, num_ranks: int) -> None:
        self._driver, self._num_ranks = driver, num_ranks
        sizes = 24 * num_rings, 4 * num_ranks, 8 * _native.PEER_STATS * num_ranks
        ends = [round_up(size, _ALIGN) for size in sizes]
        self._mask_at, self._stats_at, self._bytes = ends[0], ends[0] + ends[1], sum(ends)
        self._own = [self._take(self._bytes)]  # words, then tables

    def _take(self, num_bytes: int) -> Shared:
        address = self._driver.allocate(num_bytes)
        return Shared(address, lambda: self._driver.free(address))

    @property
    def addresses(self) -> list[int]:
        """Of the words, and of the tables once they are placed."""
        return [one.address for one in self._own]

    def place(self, tables: _native.RankTablesSettings) -> _native.RankContext:
        """Takes memory for the tables, which say where everything else is, and puts them there."""
        self._settings = tables
        self._point(self._own[0].address)
        made = _native.RankTables(tables)
        self._own.append(self._take(len(made.placed_at(0)[0])))
        self._look()
        image, self.context = made.placed_at(self._own[1].address)
        self._driver.write(self._own[1].address, image)
        return self.context

    def _point(self, words: int) -> None:
        self._settings.ring_words = words
        self._settings.mask, self._settings.peer_stats = words + self._mask_at, words + self._stats_at

    def _look(self) -> None:
        words, shape = self._own[0].address, (self._num_ranks, _native.PEER_STATS)
        self.mask = self._driver.view(words + self._mask_at, 4 * shape[0]).view(torch.int32)
        stats = self._driver.view(words + self._stats_at, 8 * shape[0] * shape[1])
        self.peer_stats = stats.view(torch.int64).view(shape)

    def rows_are_at(self, data: Sequence[int]) -> None:
        """Writes into the tables, where they are, where the rows of the node's ranks are now."""
        self._settings.data = list(data)
        image, _ = _native.RankTables(self._settings).placed_at(self._own[1].address)
        self._driver.write(self._own[1].address, image)

    def read_stats(self) -> torch.Tensor:
        """peer_stats as they are now, past whatever kernels are running."""
        num_bytes = 8 * self._num_ranks * _native.PEER_STATS
        raw = bytearray(self._driver.read(self._own[0].address + self._stats_at, num_bytes))
        return torch.frombuffer(raw, dtype=torch.int64).view(self._num_ranks, _native.PEER_STATS)

    # ---- from one life to the next -----------------------------------------------------------------------------

    def told_at(self, before: KernelWords) -> tuple[bytes, _native.RankContext]:
        """The tables' bytes and what kernels would be told, if both lay where another life has them."""
        self._point(before.addresses[0])
        made = _native.RankTables(self._settings)
        self._point(self.addresses[0])
        return made.placed_at(before.addresses[1])

    def move_to(self, before: KernelWords) -> _native.RankContext:
        """Moves to where another life has them, in which kernels are told the same and have ended; gives its own places
        back. The other life still has a hold on those."""
        words, tables = before.hold()
        image, context = self.told_at(before)
        self._driver.write(words.address, self._driver.read(self._own[0].address, self._bytes))
        self._driver.write(tables.address, image)
        self._point(words.address)
        left, self._own = self._own, [words, tables]
        self._look()
        context.tag, self.context = self.context.tag, context
        for one in left:
            one.drop()
        return context

    def hold(self) -> list[Shared]:
        """Both places, which stay until whoever asked drops them."""
        return [one.hold() for one in self._own]

    def endings(self) -> list[Callable[[], None]]:
        """What gives them back."""
        return [one.drop for one in self._own]
