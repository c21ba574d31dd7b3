"""NICs' bytes come late: to the GPU whose memory they are in, later to its peers, after the flag in the host's memory.

The tcp transport stands for a NIC: a host thread that writes into a GPU's memory. What uccl_ep/fabric/visibility.py
chooses for a GPU's order makes rows exact on a machine which is no better than that order; no flush at all is found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.end_to_end.world import World as Ranks
from tests.gpu.places import FakePlatform, run
from tests.gpu.ptx.executor import World, playing
from tests.gpu.ptx.machine import NEVER
from tests.gpu.ptx.scenarios import NUM_SMS, low_latency_rounds, play_steps, throughput_rounds
from tests.gpu.ptx.test_machine import Bench
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from uccl_ep.fabric.visibility import GpuOrder, choose_way
from uccl_ep.group.topology import Topology
from uccl_ep.layout import arrangement
from uccl_ep.layout.placement import Placement
from uccl_ep.settings import settings

pytestmark = [pytest.mark.compile, pytest.mark.timeout(120)]
MODES = {"low latency": low_latency_rounds(rounds=3), "throughput": throughput_rounds()}
LATE = {
    "none": (NEVER, NEVER),
    "slow": (300, 3000),
    "owner": (0, NEVER),
    "all": (0, 0),
}  # turns, see Machine: owner, others


@pytest.mark.parametrize(
    ("lag", "owner", "seen"),
    [((0, 0), True, 7), ((NEVER, 0), True, 0), ((NEVER, 0), False, 7), ((0, NEVER), False, 0), ((NEVER, 40), False, 7)],
)
def test_ptx_machine_what_a_nic_wrote_is_seen_late(lag: tuple[int, int], owner: bool, seen: int) -> None:
    """The second look of the owner, or of a peer, comes more than 40 turns after the first."""
    bench = Bench(kind="pinned", lag=lag)
    rows = (ctypes.c_uint32 * 64)()
    address = ctypes.addressof(rows)
    bench.machine.region(address, 256, "shared", 1)

    def looks() -> int:
        bench.run("reads_at", bench.data, address, device=1 if owner else 2)
        return bench.words[0]

    assert looks() == 0
    rows[0] = 7  # a NIC
    first = looks()
    assert first == (0 if lag[not owner] else 7)
    for _ in range(60):
        bench.run("reads_at", bench.data + 4, bench.data + 8)
    assert looks() == seen
    bench.machine.flush(2)  # another device's
    assert looks() == seen
    bench.machine.flush(1)
    assert looks() == 7
    bench.machine.close()


class NoFlush(FakeDriver):
    """Its flush does nothing, and says that it has."""

    def _flush_writes(self, target: int, scope: int) -> int:
        self.flushes.append((0, target, scope))
        return 0


@contextmanager
def rows_in_gpus(way: str | None, scope: str) -> Iterator[dict[int, str]]:
    """NICs write into GPUs of that order. Gives what is chosen by rank, once a Buffer has been made.

    Args:
        way: of visibility.WORDS, whatever the order; None: what choose_way says.
    """
    ways: dict[int, str] = {}

    def place(hellos: Any, topology: Topology, family: str) -> Placement:
        order = GpuOrder(scope, "a test", "")
        cells = [topology.cell_of[i.rank] for i in hellos]
        chosen = {
            i.rank: (way, "") if way else choose_way(order, "efa", cells.count(topology.cell_of[i.rank]) > 1)
            for i in hellos
        }
        ways.update({rank: name for rank, (name, _) in chosen.items()})
        return Placement("device", "a test", frozenset(i.rank for i in hellos), chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrangement, "choose_placement", place)
        yield ways


def played(mode: str, ranks: Ranks, scope: str, way: str | None, driver: type[FakeDriver]) -> tuple[str, set[str]]:
    """What went wrong, or "", and the ways that were chosen."""
    world, wrong = World("compute_90a", 1, 4, True, LATE[scope]), ""
    with pytest.MonkeyPatch.context() as patch, rows_in_gpus(way, scope) as ways, playing(world):
        platform = FakePlatform(install(patch, driver(num_sms=NUM_SMS)), "cuda")
        try:
            run(platform, ranks, play_steps, MODES[mode](), ranks, 4)
        except Exception as error:  # rows that are wrong, or a wait in vain
            wrong = f"{type(error).__name__}: {error}"
        flushed = bool(platform.driver.flushes)
    settings.cache_clear()
    assert flushed == ("driver" in ways.values())
    return (world.errors or [wrong])[0], set(ways.values())


PAIRS, APART = Ranks(4, 2, transport="tcp"), Ranks(2, 1, transport="tcp")


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize(
    ("scope", "ranks", "way"),
    [("slow", PAIRS, "driver"), ("owner", PAIRS, "driver"), ("owner", APART, "owner"), ("all", PAIRS, "none")],
    ids=["flush: no order", "flush: peers read", "owner's order", "everybody's order"],
)
def test_ptx_rows_that_nics_write_are_exact(mode: str, scope: str, ranks: Ranks, way: str) -> None:
    assert played(mode, ranks, scope, None, FakeDriver) == ("", {way})


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize(
    ("scope", "way", "driver"),
    [
        *(("none", "none", FakeDriver), ("slow", "none", FakeDriver)),
        *(("owner", "owner", FakeDriver), ("none", "driver", NoFlush)),
    ],
    ids=["no flush", "no flush, seen later", "the owner's order, and peers read", "a flush that does nothing"],
)
def test_ptx_a_missing_flush_is_found(mode: str, scope: str, way: str, driver: type[FakeDriver]) -> None:
    wrong, _ = played(mode, PAIRS, scope, way, driver)
    assert wrong
