"""This package as Python has found it: its native module, and processes of its own that run one of its modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[2])
# `python -m` looks first into the folder that it is started in. That may be a checkout, whose uccl_ep has no native
# module when `pip install .` has put one elsewhere; -P, which ends that, came with Python 3.11.
_RUN = (
    "import runpy, sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def run_module(name: str, *arguments: str) -> list[str]:
    """The command that runs module `name` of the package that is running here, whatever folder it is started in."""
    return [sys.executable, "-c", _RUN, _ROOT, name, *arguments]


def native_module() -> Any:
    """uccl_ep._native, for whoever imports it first.

    Raises:
        ImportError: there is none here; says what to do.
    """
    try:
        return importlib.import_module("uccl_ep._native")
    except ModuleNotFoundError:
        raise ImportError(
            f"{_ROOT}/uccl_ep holds the sources of uccl_ep and no native module, and Python found it before an "
            "installed one: run from another folder, or build it here with `make setup` or `pip install -e .`"
        ) from None
