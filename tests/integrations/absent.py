"""Empty modules in place of packages that an integrator imports on the way to the code under test and does not use.

GPU compilers, web servers, images: installing them would cost gigabytes or a GPU. What is installed is not replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

from tests.integrations.world import World


class _AnyAttribute(type):
    """The class of classes that have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Unchecked:
    """A class that pydantic takes as the type of a field, and never checks; also one to derive a TypedDict from."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Options are those of a TypedDict (`total`)."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Absent(types.ModuleType):
    """A module of which every name can be imported: a class if it is capitalised, else something to call."""

    __path__: list[str] = []
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _AnyAttribute(name, (_Unchecked,), {}) if name[0].isupper() else MagicMock(name=name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last, so a package that is installed is not replaced."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Its names are made when they are asked for."""


def stand_in(world: World, names: Iterable[str]) -> None:
    """From here on these packages can be imported, and are empty. Tells which were not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    sys.meta_path.append(_Finder(missing))
    world.shim(f"empty modules in place of {', '.join(missing)}: imported on the way, not used by the code under test")
