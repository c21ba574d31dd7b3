"""The import hook: on and off, in front of another deep_ep, and refused when that one is in use already."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import uccl_ep
from uccl_ep import InvalidArgument, install_as_deep_ep, uninstall_as_deep_ep
from uccl_ep.drop_in import hook, is_installed


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    assert not is_installed()
    yield
    uninstall_as_deep_ep()
    for name in [name for name in sys.modules if name.partition(".")[0] == "deep_ep"]:
        del sys.modules[name]


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another distribution's deep_ep on the path."""
    package = tmp_path / "deep_ep"
    package.mkdir()
    (package / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (package / "extra.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return package


def test_hook_on_and_off() -> None:
    before = importlib.util.find_spec("deep_ep")  # usually nothing
    install_as_deep_ep()
    install_as_deep_ep()  # once is enough
    assert is_installed() and len([f for f in sys.meta_path if "uccl_ep.drop_in" in type(f).__module__]) == 1
    spec = importlib.util.find_spec("deep_ep")
    assert spec is not None and spec.origin == "uccl_ep.drop_in"
    module = importlib.import_module("deep_ep")
    assert module.Buffer is uccl_ep.Buffer
    uninstall_as_deep_ep()
    uninstall_as_deep_ep()
    assert not is_installed() and importlib.util.find_spec("deep_ep") == before
    if before is None:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("deep_ep.utils")
    assert module.Config is uccl_ep.Config  # what was imported stays usable


def test_hook_of_a_package_in_files_answers_below_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docker/deep_ep's `__init__` calls."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    package = ModuleType("deep_ep")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "deep_ep", package)
    for _ in range(2):  # deep_ep and deep_ep_v25
        hook.become("deep_ep", package.__dict__)
    assert len([f for f in sys.meta_path if "uccl_ep.drop_in" in type(f).__module__]) == 1
    assert importlib.import_module("deep_ep.utils.math").align(5, 4) == 8 and not is_installed()
    assert importlib.util.find_spec("deep_ep_cpp") is None
    assert version("deep_ep") == package.__version__


def test_hook_comes_before_another_and_leaves_it_alone(another: Path) -> None:
    before = {p: p.read_bytes() for p in another.rglob("*.py")}
    install_as_deep_ep()
    module = importlib.import_module("deep_ep")
    assert not hasattr(module, "WHOSE")
    with pytest.raises(ModuleNotFoundError):  # no half of the other one is mixed in
        importlib.import_module("deep_ep.extra")
    uninstall_as_deep_ep()
    assert importlib.import_module("deep_ep").WHOSE == "theirs"
    assert {p: p.read_bytes() for p in another.rglob("*.py")} == before


def test_hook_refuses_to_replace_one_in_use(another: Path) -> None:
    theirs = importlib.import_module("deep_ep.extra")
    with pytest.raises(
        InvalidArgument,
        match="deep_ep must be imported only after install_as_deep_ep.*; got one imported from .*deep_ep.*replace=True",
    ):
        install_as_deep_ep()
    assert not is_installed() and importlib.import_module("deep_ep").WHOSE == "theirs"
    install_as_deep_ep(replace=True)
    assert importlib.import_module("deep_ep").Buffer is uccl_ep.Buffer
    uninstall_as_deep_ep()
    assert importlib.import_module("deep_ep").WHOSE == "theirs"
    assert importlib.import_module("deep_ep.extra") is theirs
