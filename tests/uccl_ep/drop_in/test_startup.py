"""The switch that is read as an interpreter starts: on, off, wrong, and too late."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from uccl_ep.drop_in import is_installed, uninstall_as_deep_ep
from uccl_ep.drop_in.startup import VARIABLE, activate
from uccl_ep.settings import VARIABLES


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    uninstall_as_deep_ep()


@pytest.mark.parametrize("text, on", [("1", True), ("yes", True), ("0", False), ("off", False), (" ", False)])
def test_startup_does_what_the_variable_says(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert activate() is on and is_installed() is on


def test_startup_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not activate() and not is_installed()


def test_startup_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "perhaps")
    with pytest.warns(UserWarning, match="left as it is: UCCL_EP_AS_DEEP_EP must be .*; got 'perhaps'."):
        assert not activate()
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("UCCL_EP_RINGS", "nine")  # another variable's fault is told by those who use it
    monkeypatch.setitem(sys.modules, "deep_ep", types.ModuleType("deep_ep"))
    with pytest.warns(UserWarning, match="left as it is.*imported from"):
        assert not activate()
    monkeypatch.delitem(sys.modules, "deep_ep")
    assert activate()


def test_startup_is_a_documented_variable() -> None:
    assert VARIABLE in [variable.name for variable in VARIABLES]
