"""A view in a message is what it was; what no correct rank says is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from uccl_ep.membership.agreement_view import CONFIRMING, View, whole

VIEW = View(7, CONFIRMING, frozenset({1, 3}), frozenset({3}), 2, 1, True, False, frozenset({1}))


def message(**changed: Any) -> dict[str, Any]:
    packed = msgpack.packb({**VIEW.as_message(), "before": [1], **changed})
    found = msgpack.unpackb(packed, raw=False)
    assert isinstance(found, dict)
    return found


def test_agreement_service_view_there_and_back() -> None:
    assert View.of(message(), 4) == (VIEW, frozenset({1}))


@pytest.mark.parametrize(
    "changed",
    [
        {"p": 3},
        {"p": True},
        {"x": [4]},
        {"dead": [4]},
        {"before": "all"},
        {"hints": [0] * 5},
        {"try": 1},
        {"try": [1]},
        {"try": [1, -1]},
        {"try": [True, 1]},
        {"may": [1, False]},
        {"may": []},
        {"n": 1 << 63},
    ],
)
def test_agreement_service_view_refuses(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        View.of(message(**changed), 4)
    with pytest.raises(ValueError):
        whole("7")
