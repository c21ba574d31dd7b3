"""What the Python tests share: UCCL_EP_* variables for one test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from uccl_ep.settings import PREFIX, settings


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`variables(TRANSPORT="tcp")` sets UCCL_EP_TRANSPORT for this test, which starts with no UCCL_EP_* but a time-out
    that ends a stuck wait before pytest would, and the CPU as the device, whatever the machine has."""

    def set_(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(PREFIX + name, str(value))
        settings.cache_clear()

    for name in [n for n in os.environ if n.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    set_(TIMEOUT_S=30, DEVICE="cpu")
    yield set_
    settings.cache_clear()
