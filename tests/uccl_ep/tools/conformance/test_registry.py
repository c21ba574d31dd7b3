"""Registering checks: each says what it is about; a name, a part and a docstring are not optional."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from uccl_ep.tools.conformance import registry
from uccl_ep.tools.conformance.registry import PARTS, check


@pytest.fixture(autouse=True)
def own_list(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "CHECKS", [])
    yield


def test_registry_keeps_order_and_says_what_a_check_is() -> None:
    @check("A.5")
    def first(world: Any) -> None:
        """Rows come in order.  Parts A.5 and B.1: more words."""

    @check("B", required=False, collective=False)
    def second(world: Any) -> None:
        """Part of a word is no citation, e.g. Particles. Part B.1 leaves this open: nobody tests it."""

    one, two = registry.CHECKS
    assert (one.name, one.part, one.required, one.collective, one.body) == ("first", "A.5", True, True, first)
    assert (two.name, two.required, two.collective) == ("second", False, False)
    assert one.summary == "Rows come in order."
    assert two.summary == "Part of a word is no citation, e.g. Particles."


def test_registry_refuses_what_says_nothing() -> None:
    with pytest.raises(ValueError, match="part 'Z'"):
        check("Z")

    def silent(world: Any) -> None: ...

    with pytest.raises(ValueError, match="silent: a check says"):
        check("A.1")(silent)

    def twice(world: Any) -> None:
        """Says something."""

    check("A.1")(twice)
    with pytest.raises(ValueError, match="twice: there is"):
        check("A.1")(twice)


def test_registry_parts_are_in_words() -> None:
    assert all(words and words[0].isalnum() for words in PARTS.values())
