"""Dma-bufs over a GPU's memory, by which NICs register it."""

from __future__ import annotations

import os

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.driver import Driver
from uccl_ep.sizes import round_up

EXPORTED_BYTES = 2 << 20  # a multiple of whatever pages the host has; allocations on GPUs are


def export_dmabufs(driver: Driver, address: int, num_bytes: int) -> list[int]:
    """One for each GiB, since the kernel maps all of a descriptor for each part that a NIC registers; one for all where
    the driver exports only whole allocations (AMD's). The caller closes them.

    Args:
        address: of a whole allocation.

    Raises:
        UcclEpError: the driver gives none.
    """
    total, made = round_up(num_bytes, EXPORTED_BYTES), []
    try:
        for offset in range(0, total, _native.DMABUF_BYTES):
            made.append(driver.dmabuf(address + offset, min(_native.DMABUF_BYTES, total - offset)))
        return made
    except UcclEpError:
        close_dmabufs(made)
    return [driver.dmabuf(address, total)]


def close_dmabufs(dmabufs: list[int]) -> None:
    """Closes them, once."""
    while dmabufs:
        os.close(dmabufs.pop())
