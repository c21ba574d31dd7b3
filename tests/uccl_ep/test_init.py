"""`import uccl_ep`: the public names, each from its module, and nothing heavy before one is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import uccl_ep


def test_init_every_public_name_resolves_to_its_module() -> None:
    for name in uccl_ep.__all__:
        value = getattr(uccl_ep, name)
        if name == "topk_idx_t":
            assert value is torch.int64
            continue
        home = importlib.import_module(f"uccl_ep.{uccl_ep._HOME[name]}")
        assert value is getattr(home, name)
        assert uccl_ep.__dict__[name] is value  # found without __getattr__ from now on


def test_init_star_import_gives_all() -> None:
    scope: dict[str, object] = {}
    exec("from uccl_ep import *", scope)
    assert set(uccl_ep.__all__) <= set(scope)


def test_init_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'uccl_ep' has no attribute 'Bufer'"):
        _ = uccl_ep.Bufer
    with pytest.raises(ImportError):
        exec("from uccl_ep import Bufer")


def test_init_is_cheap() -> None:
    code = (
        "import sys, uccl_ep; uccl_ep.InvalidArgument; uccl_ep.run_ranks; uccl_ep.Config\n"
        "heavy = [m for m in ('torch', 'numpy', 'uccl_ep._native', 'cupy') if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
