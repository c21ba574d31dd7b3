"""Descriptors over a GPU's memory: one a part, or one for all, and none that stays open behind a refusal."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from uccl_ep import UcclEpError, _native
from uccl_ep.gpu.dmabufs import EXPORTED_BYTES, close_dmabufs, export_dmabufs


@pytest.mark.parametrize("refused", [[], [1], [0, 1]], ids=["parts", "the second part", "everything"])
def test_dmabufs_of_parts_or_of_all(monkeypatch: pytest.MonkeyPatch, refused: list[int]) -> None:
    driver: Any = FakeDriver()
    monkeypatch.setattr(_native, "DMABUF_BYTES", 2 * EXPORTED_BYTES)
    num_bytes = 3 * EXPORTED_BYTES - 4096
    address, export, asked = driver.allocate(num_bytes), driver.dmabuf, []

    def dmabuf(begin: int, size: int) -> int:
        asked.append((begin - address, size))
        if len(asked) - 1 in refused or (refused == [0, 1] and size == 3 * EXPORTED_BYTES):
            raise UcclEpError("not from there")
        return int(export(begin, size))

    monkeypatch.setattr(driver, "dmabuf", dmabuf)
    before = len(os.listdir("/proc/self/fd"))
    if refused == [0, 1]:
        with pytest.raises(UcclEpError, match="not from there"):
            export_dmabufs(driver, address, num_bytes)
    else:
        made = export_dmabufs(driver, address, num_bytes)
        assert len(made) == 2 - len(refused)
        assert len(os.listdir("/proc/self/fd")) == before + len(made)
        close_dmabufs(made)
        assert made == []
    assert len(os.listdir("/proc/self/fd")) == before
    parts = [(0, 2 * EXPORTED_BYTES), (2 * EXPORTED_BYTES, EXPORTED_BYTES)]
    whole = [(0, 3 * EXPORTED_BYTES)]
    assert asked == (parts if not refused else parts[:1] + whole if refused[0] == 0 else parts + whole)
    driver.free(address)
