"""The contract with GPUs: the real driver has every method of it, with the same arguments."""

from __future__ import annotations

import inspect

import pytest

from uccl_ep.gpu.cupy_driver import CupyDriver
from uccl_ep.gpu.driver import Driver, Facts

METHODS = [name for name, value in vars(Driver).items() if inspect.isfunction(value) and not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_driver_methods_are_all_there(name: str) -> None:
    wanted, real = inspect.signature(getattr(Driver, name)), inspect.signature(getattr(CupyDriver, name))
    assert [(p.name, p.kind, p.default) for p in real.parameters.values()] == [
        (p.name, p.kind, p.default) for p in wanted.parameters.values()
    ]
    assert inspect.getdoc(getattr(Driver, name)), "the contract says what a method promises"


def test_driver_contract_is_read_and_facts_are_fixed() -> None:
    assert len(METHODS) >= 24
    facts = Facts("n", "sm_90a", 32, 132, 1, 2, "id", True, True)
    with pytest.raises(AttributeError):
        facts.warp = 64  # type: ignore[misc]
