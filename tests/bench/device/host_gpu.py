"""A driver whose launches of the benchmarks' own kernels are done by host threads, from the same argument bytes."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch

from bench.device.ring_programs import KERNELS, ClockBenchArgs, HostLibrary, RingBenchArgs
from bench.device.ring_sides import HostSide
from tests.uccl_ep.gpu.fake_driver import FakeDriver


class HostGpu(FakeDriver):
    """The fake GPU, which also knows the ring's kernels and the row copy."""

    def __init__(self, library: HostLibrary | None = None) -> None:
        super().__init__(num_sms=64)
        self._library, self._side = library, HostSide(library, 1) if library is not None else None
        self.shapes: list[tuple[str, int, int]] = []
        self.wrong_copies = False

    def launch(self, function: int, grid: int, block: int, shared_bytes: int, stream: Any, args: bytes) -> None:
        name = self._loaded(function)
        works: dict[str, Callable[[], None]] = {
            KERNELS[0]: lambda: self._produce(args, grid * block // self.facts.warp),
            KERNELS[1]: lambda: self._answer(args),
        }
        if name == "copy_rows":
            self.shapes.append((name, grid, block))
            self._copy(args)
        elif name in works:
            self.shapes.append((name, grid, block))
            thread = threading.Thread(target=works[name])
            thread.start()
            stream.pending = [*getattr(stream, "pending", []), thread]
        else:
            super().launch(function, grid, block, shared_bytes, stream, args)

    def synchronize(self, event: Any) -> None:
        super().synchronize(event)
        for thread in getattr(event, "pending", []):
            thread.join()

    def record(self, stream: Any) -> Any:
        event = super().record(stream)
        event.pending, stream.pending = getattr(stream, "pending", []), []  # type: ignore[attr-defined]
        return event

    def _produce(self, args: bytes, warps: int) -> None:
        assert self._library is not None
        self._library.produce(RingBenchArgs.from_buffer_copy(args), warps, 1)

    def _answer(self, args: bytes) -> None:
        assert self._library is not None
        self._library.answer(ClockBenchArgs.from_buffer_copy(args))

    def _copy(self, args: bytes) -> None:
        to, source, order, row_bytes, rows, _ = struct.unpack("<QQQQII", args)

        def view(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
            memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
            return torch.frombuffer(memory, dtype=dtype)

        taken = view(source, rows * row_bytes, torch.uint8).view(rows, row_bytes)[view(order, rows, torch.int32).long()]
        view(to, rows * row_bytes, torch.uint8).copy_(taken.flatten())
        if self.wrong_copies:
            view(to, 1, torch.uint8).add_(1)
