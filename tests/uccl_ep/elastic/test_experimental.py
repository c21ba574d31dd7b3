"""Upstream's experimental parts: each says that it is not supported, and which part it is."""

from __future__ import annotations

import pytest

from uccl_ep import NotSupported
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.elastic.experimental import refusal

NAMES = [name for name, value in vars(ElasticBuffer).items() if getattr(value, "__module__", "") == refusal.__module__]


@pytest.mark.parametrize("name", NAMES)
def test_experimental_raises_and_says_so(name: str) -> None:
    with pytest.raises(NotSupported, match=f"ElasticBuffer.{name}: .* is experimental"):
        getattr(ElasticBuffer, name)(None, 1, option=2)
    assert getattr(ElasticBuffer, name).__name__ == name


def test_experimental_names_are_the_contracts() -> None:
    assert len(NAMES) == 15 and {"engram_fetch", "pp_send", "all_gather"} <= set(NAMES)
