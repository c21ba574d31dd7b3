"""Two proxies without ranks: segments, configs, and rings filled from Python, for tests of the proxy's bindings."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from uccl_ep import _native
from uccl_ep.session.proxy_link import ProxyConfig

DATA_BYTES, CONTROL_OFFSET, CAPACITY, CHANNELS = 1 << 16, 1 << 16, 16, 1


class Half:
    """One rank's segments, and the config that a proxy over them is started with."""

    def __init__(self, rank: int, family: str, num_ranks: int = 2, **changes: Any) -> None:
        control = _native.ControlLayout()
        control.num_ranks, control.num_channels = num_ranks, CHANNELS
        self.layout = control
        self.data = _native.Segment.create(f"test-data-{rank}", DATA_BYTES)
        self.control = _native.Segment.create(f"test-control-{rank}", control.bytes())
        self.rings = _native.Segment.create(f"test-rings-{rank}", _native.ring_bytes(CAPACITY))
        self.counters = _native.Segment.create(f"test-counters-{rank}", _native.counters_bytes(1, num_ranks))
        values: dict[str, Any] = {
            "rank": rank,
            "num_ranks": num_ranks,
            "num_workers": 1,
            "spans": [(0, DATA_BYTES, self.data.fd), (CONTROL_OFFSET, control.bytes(), self.control.fd)],
            "control_offset": CONTROL_OFFSET,
            "num_channels": CHANNELS,
            "rings_fd": self.rings.fd,
            "num_rings": 1,
            "ring_capacity": CAPACITY,
            "counters_fd": self.counters.fd,
            "family": family,
            "session": 977,
            "secret": b"\x00secret\xff" * 4,
            "interface": "127.0.0.1",
            "max_in_flight": 8,
            "max_in_flight_bytes": 1 << 20,
            "shuffle_seed": 0,
        }
        self.config = ProxyConfig(**{**values, **changes})
        self._streams: list[_native.Stream] = []
        self._kept: list[object] = []

    def __del__(self) -> None:
        # Ends the barrier's kernels first. They look at segments a little longer than the words that a test waits for.
        getattr(self, "_streams", []).clear()

    @property
    def flat_bytes(self) -> int:
        return CONTROL_OFFSET + self.layout.bytes()

    def barrier(self, round_: int) -> None:
        """Runs the barrier kernel, which returns when the proxies of all ranks say so."""
        self.barrier_command(round_)
        self._streams.pop().synchronize()

    def barrier_command(self, round_: int) -> None:
        """Starts the barrier kernel, and returns when its command is in the ring."""
        idle = _native.rings_idle(self.rings.address, 1, CAPACITY)
        context, tables = self._context()
        self._streams.append(_native.Stream())
        self._kept.append(tables)
        _native.barrier_launch(context, round_).queue(self._streams[-1], 1, 1)
        assert idle and eventually(lambda: self._pushed() == round_)

    def _pushed(self) -> int:
        """Commands that were ever pushed: `head` of the ring's header (proxy/ring/layout.h)."""
        return int(np.asarray(self.rings.numpy())[128:136].view(np.uint64)[0])

    def _context(self) -> tuple[_native.RankContext, object]:
        t = _native.RankTablesSettings()
        t.rank = self.config.rank
        t.node_of = list(range(self.config.num_ranks))
        t.data, t.control = [self.data.address], [self.control.address]
        t.rings, t.num_rings, t.ring_capacity = self.rings.address, 1, CAPACITY
        t.timeout_ns, t.control_offset, t.num_channels = 20 * 10**9, CONTROL_OFFSET, CHANNELS
        tables = _native.RankTables(t)
        return tables.context, tables

    def fault(self) -> dict[str, int] | None:
        return _native.read_fault(self.control.address)

    def counted(self) -> tuple[dict[str, int], list[dict[str, int]]]:
        """(the worker's counters, the peers')."""
        workers, peers = _native.read_counters(self.counters.address, 1, self.config.num_ranks)
        return workers[0], peers

    def word(self, offset: int) -> int:
        """A 64-bit word of the control segment."""
        return int(struct.unpack_from("<Q", np.asarray(self.control.numpy()), offset)[0])


def connect(links: list[Any], halves: list[Half], pids: tuple[int, ...] = (0, 0)) -> None:
    """Connects proxies with each other, all at once, as ranks do, and starts them."""
    import threading

    addresses = [link.local_address() for link in links]
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            others = [a if r != i else b"" for r, a in enumerate(addresses)]
            sizes = [h.flat_bytes if r != i else 0 for r, h in enumerate(halves)]
            links[i].connect(others, sizes, [p if r != i else 0 for r, p in enumerate(pids)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(links))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for link in links:
        link.start()


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether the condition becomes true within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())
