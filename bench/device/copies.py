"""What a plain device copy reaches, and the row copy of the product's kernels."""

from __future__ import annotations

import statistics
import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.device import programs
from bench.device.platforms import Platform
from uccl_ep.errors import UcclEpError

REPEATS = 11
PROBES = "tests/kernels/device/copy_probes.h"
KERNEL = "copy_rows"
ROW_BYTES = (7168, 14336)  # DeepSeek-V3's rows in fp8 and in bf16
WARPS = 4  # a block, as the kernels that copy rows are launched
BLOCKS_A_SM = (1, 2, 4, 8)


def copy_gb_per_s(platform: Platform, num_bytes: int) -> dict[str, Any]:
    """Device-to-device copy by the framework: bytes read plus bytes written a second, median of some copies."""
    count = num_bytes // 8
    source = torch.randint(-(2**62), 2**62, (count,), dtype=torch.int64, device=platform.where)
    target = torch.zeros_like(source)
    median = _median_ms(platform, lambda: target.copy_(source))
    assert torch.equal(source, target)
    return {"bytes": 2 * num_bytes, "median_ms": median, "gb_per_s": 2 * num_bytes / median / 1e6}


def _median_ms(platform: Platform, copy: Callable[[], Any]) -> float:
    times = []
    for repeat in range(REPEATS + 2):
        before = platform.mark()
        copy()
        after = platform.mark()
        platform.synchronize()
        if repeat >= 2:
            times.append(after.ms_after(before))
    return statistics.median(times)


def copy_args(target: torch.Tensor, source: torch.Tensor, order: torch.Tensor) -> bytes:
    """CopyRowsArgs of copy_probes.h."""
    rows, row_bytes = target.shape
    return struct.pack("<QQQQII", target.data_ptr(), source.data_ptr(), order.data_ptr(), row_bytes, rows, 0)


def row_copies(platform: Platform, quick: bool, total: int = 1 << 29) -> Iterator[dict[str, Any]]:
    """The row copy on rows in random order, by row size and blocks an SM; bytes read plus bytes written a second.

    Raises:
        UcclEpError: a copy gave wrong rows.
    """
    driver = platform.driver
    module = programs.load(driver, PROBES)  # kernels live as long as their module
    function = driver.function(module, KERNEL)
    for row_bytes in ROW_BYTES[:1] if quick else ROW_BYTES:
        rows = total // row_bytes
        source = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8, device=platform.where)
        order = torch.randperm(rows, device=platform.where).to(torch.int32)
        for blocks in BLOCKS_A_SM[:2] if quick else BLOCKS_A_SM:
            target = torch.zeros_like(source)
            shape = (blocks * driver.facts.num_sms, WARPS * driver.facts.warp)
            args = copy_args(target, source, order)

            def copy(shape: tuple[int, int] = shape, args: bytes = args) -> None:
                driver.launch(function, *shape, 0, driver.current_stream(), args)

            median = _median_ms(platform, copy)
            if not torch.equal(target, source[order.long()]):
                raise UcclEpError(f"{KERNEL} with {shape[0]} blocks, rows of {row_bytes} bytes: wrong rows")
            found = {"kernel": KERNEL, "row_bytes": row_bytes, "blocks_an_sm": blocks, "median_ms": median}
            yield {**found, "gb_per_s": 2 * rows * row_bytes / median / 1e6}
