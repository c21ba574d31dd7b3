"""Refused names: each says what it is and why, by its call, its documentation and an attribute."""

from __future__ import annotations

import pytest

from uccl_ep import Buffer, ElasticBuffer, NotSupported
from uccl_ep.refused import refusal, refused_class

NAMES = [name for name, value in vars(ElasticBuffer).items() if hasattr(value, "refused")]


@pytest.mark.parametrize("name", NAMES)
def test_refused_experimental_parts_say_so(name: str) -> None:
    with pytest.raises(NotSupported, match=f"ElasticBuffer.{name} is not in uccl_ep: .* is experimental"):
        getattr(ElasticBuffer, name)(None, 1, option=2)
    assert getattr(ElasticBuffer, name).__name__ == name


def test_refused_names_are_the_contracts() -> None:
    assert len(NAMES) == 15 and {"engram_fetch", "pp_send", "all_gather"} <= set(NAMES)


def test_refused_functions_and_classes_carry_their_reason() -> None:
    function, cls = refusal("Thing.do", "nobody does it"), refused_class("Thing", "there is none")
    assert (function.refused, cls.refused) == ("nobody does it", "there is none")  # type: ignore[attr-defined]
    assert "nobody does it" in function.__doc__ and "there is none" in str(cls.__doc__) and isinstance(cls, type)
    for call, words in (
        (function, "Thing.do is not in uccl_ep: nobody does it"),
        (cls, "Thing is not in uccl_ep: there is none"),
    ):
        with pytest.raises(NotSupported, match=words):
            call(1, two=2)


def test_refused_calls_of_branches_name_what_to_call() -> None:
    with pytest.raises(
        NotSupported, match="Buffer.dispatch_pcie is not in uccl_ep: dispatch and combine take whatever wires"
    ):
        Buffer.dispatch_pcie(None)
