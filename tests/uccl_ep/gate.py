"""Work for a device's stream that lasts until the test ends it: a barrier kernel whose second rank is the test."""

from __future__ import annotations

from types import TracebackType

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device

_WORDS = 1 << 13


class Gate:
    """While open() has not been called, everything queued behind it on the device waits. `with Gate(device):` opens it
    at the end in any case."""

    def __init__(self, device: Device) -> None:
        memories = [torch.zeros(_WORDS, dtype=torch.int64) for _ in range(4)]
        self._peer = memories[1]
        settings = _native.RankTablesSettings()
        settings.node_of = [0, 0]
        settings.data = [m.data_ptr() for m in memories[:2]]
        settings.control = [m.data_ptr() for m in memories[2:]]
        settings.num_rings = 0
        settings.timeout_ns = 50 * 10**9
        tables = _native.RankTables(settings)
        image = torch.empty(len(tables.placed_at(0)[0]), dtype=torch.uint8)
        placed, context = tables.placed_at(image.data_ptr())
        image.copy_(torch.frombuffer(bytearray(placed), dtype=torch.uint8))
        device.begin()
        device.launch(_native.barrier_launch(context, 1))
        self._kept = memories, image
        device.record(self._kept)

    def open(self) -> None:
        """Lets the stream go on."""
        self._peer.fill_(1)  # also the word that says: entered round 1

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()
