"""The ring benchmark over host threads and over a driver: counts, checks, paces, and what it says of a broken ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.device import ring
from bench.device.ring_programs import HostLibrary, compile_host_library
from bench.device.ring_sides import GpuSide, HostSide, Side
from bench.device.ring_world import RingWorld, Run
from tests.bench.device.host_gpu import HostGpu
from tests.uccl_ep.gpu.fake_driver import Module
from uccl_ep.errors import UcclEpError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["host", "driver"])
def side(request: pytest.FixtureRequest, library: HostLibrary) -> Side:
    if request.param == "host":
        return HostSide(library, 1)
    return GpuSide(HostGpu(library), Module())


@pytest.mark.mostly_slow
def test_bench_ring_measures_everything(side: Side, library: HostLibrary) -> None:
    world, notes = RingWorld(side, library, 4), []
    result = ring.measure(world, True, lambda found: notes.append(len(found["rates"])))
    world.close()
    assert {r["width"] for r in result["rates"]} == {1, 8, 32} and {r["rings"] for r in result["rates"]} == {1, 4}
    assert all(r["million_per_s"] > 0 and r["commands"] > 0 for r in result["rates"])
    assert notes == sorted(notes) and notes[-1] == len(result["rates"])
    paced, trips = result["paced"][0], result["round_trips"][0]
    assert paced["samples"] > 100 and abs(paced["reached_per_s"] / paced["wanted_per_s"] - 1) < 0.5
    late, give = paced["one_way_us"], paced["clock"]["uncertainty_us"]
    assert -give <= late["p50"] <= late["p99"] <= late["p999"] <= late["max"]
    assert trips["samples"] == 4 * 50 and trips["half_us"]["p50"] == trips["round_trip_us"]["p50"] / 2 > 0


def test_bench_ring_gives_the_drivers_memory_back(library: HostLibrary) -> None:
    driver = HostGpu(library)
    world = RingWorld(GpuSide(driver, Module()), library, 2)
    world.run(Run(2, 1, 8, 4, 20, round_trips=True))
    assert driver.held()["pinned"] == 2
    world.close()
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}
    assert driver.shapes == [("bench_ring_producer", 1, 4 * driver.facts.warp)]


class LossySide(HostSide):
    """A GPU that pushes fewer commands than it was told to, or twice the same ones."""

    def __init__(self, library: HostLibrary, change: Any) -> None:
        super().__init__(library, 1)
        self._change = change

    def produce(self, args: Any, warps: int) -> Any:
        self._change(args)
        return super().produce(args, warps)


def test_bench_ring_a_wrong_run_is_no_figure(library: HostLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.device.ring_world.LIMIT_NS", 300_000_000)

    def one_push_less(args: Any) -> None:
        args.pushes -= 1

    def one_ring_only(args: Any) -> None:  # as many commands, but not where they belong
        args.num_rings = 1

    def wider(args: Any) -> None:  # as many commands, with other numbers
        args.width, args.pushes = 20, 8

    for change, says in ((one_push_less, "not done in"), (one_ring_only, "not done in"), (wider, None)):
        world = RingWorld(LossySide(library, change), library, 2)
        try:
            if says is None:  # the width of a push is not in its commands: 20 x 8 is as good as 8 x 20
                assert world.run(Run(2, 1, 8, 2, 20)).taken == 320
            else:
                with pytest.raises(UcclEpError, match=says):
                    world.run(Run(2, 1, 8, 2, 20))
        finally:
            world.close()


def test_bench_ring_counts_whose_commands_they_were(library: HostLibrary) -> None:
    class Twice(HostSide):
        def produce(self, args: Any, warps: int) -> Any:
            return super().produce(args, warps // 2)

    class TwiceAsMany(Twice):
        def produce(self, args: Any, warps: int) -> Any:  # half of the warps push the share of all
            args.pushes *= 2
            return super().produce(args, warps)

    world = RingWorld(TwiceAsMany(library, 1), library, 1)
    with pytest.raises(UcclEpError, match="due are"):
        world.run(Run(1, 1, 1, 4, 10))
    world.close()


def test_bench_ring_targets_name_the_configuration() -> None:
    rates = [{"rings": 4, "threads": 2, "width": w, "million_per_s": w * 2.0} for w in (8, 32)]
    paced = [
        {"rings": r, "threads": 4, "reached_per_s": reached, "one_way_us": {"p99": p99}}
        for r, reached, p99 in ((8, 8e6, 9.0), (16, 8e6, 7.0), (32, 4e6, 1.0))
    ]
    rate, late = ring.targets({"rates": rates, "paced": paced})
    assert rate.met and rate.measured == 64e6 and "width 32" in rate.where
    assert late.met and late.measured == 7.0 and "16 rings" in late.where, "the pace of 32 rings was not reached"
    assert not ring.targets({"rates": rates, "paced": paced[:1]})[1].met
    assert [t.name for t in ring.targets({"rates": rates[:1], "paced": []})] == ["ring, commands/s"]


def test_bench_ring_shapes_fit_the_machine() -> None:
    assert ring.shapes(16, False)[-1] == (32, 8) and (1, 1) in ring.shapes(2, False)
    assert all(threads <= 1 for _, threads in ring.shapes(2, False))


def test_bench_ring_says_what_the_compiler_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(UcclEpError, match="could not compile"):
        compile_host_library(tmp_path)
