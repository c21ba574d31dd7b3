"""Refused names of `deep_ep`: made when they are asked for, once, and others are not there."""

from __future__ import annotations

import pytest

from uccl_ep import NotSupported
from uccl_ep.drop_in.helpers import refused


def test_refused_names_are_made_once_and_raise() -> None:
    for name in (*refused.CLASSES, *refused.FUNCTIONS):
        found = getattr(refused, name)
        assert found is getattr(refused, name) and isinstance(found, type) == (name in refused.CLASSES)
        with pytest.raises(NotSupported, match=f"^{name} is not in uccl_ep: "):
            found()
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = refused.other
