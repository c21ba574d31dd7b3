"""The parts of V2 that upstream calls experimental: named here, so that a caller is told instead of puzzled."""

from __future__ import annotations

from typing import Any, NoReturn

from uccl_ep.errors import NotSupported


def refusal(group: str, name: str) -> Any:
    """A method of ElasticBuffer that raises NotSupported."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        raise NotSupported(f"ElasticBuffer.{name}: {group} is experimental in DeepEP and not part of uccl_ep")

    method.__name__ = name
    method.__doc__ = f"Not part of uccl_ep ({group}).\n\nRaises:\n    NotSupported: always."
    return method
