"""The row copy: arguments, checked results, and the plain copy beside them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.device import copies, programs
from bench.device.platforms import CpuPlatform
from tests.bench.device.host_gpu import HostGpu
from tests.gpu.places import FakePlatform
from tests.uccl_ep.gpu.worlds import install
from uccl_ep.errors import UcclEpError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    monkeypatch.setattr(programs, "load", lambda driver, header: driver.load(header))
    return FakePlatform(install(monkeypatch, HostGpu()), "cuda")


def test_bench_copies_measure_every_shape(fake: FakePlatform) -> None:
    found = list(copies.row_copies(fake, False, 1 << 18))
    assert {(f["row_bytes"], f["blocks_an_sm"]) for f in found} == {
        (b, n) for b in copies.ROW_BYTES for n in copies.BLOCKS_A_SM
    }
    assert all(f["gb_per_s"] > 0 for f in found)
    driver: Any = fake.driver
    assert {grid for _, grid, _ in driver.shapes} == {64 * n for n in copies.BLOCKS_A_SM}


def test_bench_copies_wrong_rows_are_no_figure(fake: FakePlatform) -> None:
    fake.driver.wrong_copies = True  # type: ignore[attr-defined]
    with pytest.raises(UcclEpError, match="copy_rows with 64 blocks, rows of 7168 bytes: wrong rows"):
        list(copies.row_copies(fake, True, 1 << 18))


def test_bench_copies_plain_copy_counts_both_ways() -> None:
    found = copies.copy_gb_per_s(CpuPlatform(), 1 << 20)
    assert found["bytes"] == 2 << 20
    assert found["gb_per_s"] == pytest.approx(found["bytes"] / found["median_ms"] / 1e6)


def test_bench_copies_programs_take_the_processors_clock() -> None:
    text = programs.source("bench/device/ring_producer.h", "sm_90a", {"X": "1"})
    assert text.splitlines() == [
        "#define UCCL_BENCH_CLOCK clock64",
        "#define X 1",
        '#include "bench/device/ring_producer.h"',
    ]
    assert "clock64" not in programs.source("bench/device/ring_producer.h", "gfx942")
