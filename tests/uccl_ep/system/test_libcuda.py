"""Driver calls by ctypes: errors by name, functions that an old driver lacks, capture mode put back."""

from __future__ import annotations

import ctypes

import pytest

from tests.uccl_ep.gpu.stub_libcuda import LibcudaTable
from tests.uccl_ep.gpu.stub_machine import RELAXED, Machine
from uccl_ep.errors import UcclEpError
from uccl_ep.system import libcuda
from uccl_ep.system.libcuda import Libcuda


def test_libcuda_names_function_and_error() -> None:
    table = LibcudaTable(Machine())
    table.failing["cuDeviceGet"] = 800
    with pytest.raises(UcclEpError, match=r"cuDeviceGet failed: CUDA_ERROR_NOT_PERMITTED \(800\)"):
        Libcuda(table).call("cuDeviceGet", ctypes.byref(ctypes.c_int()), ctypes.c_int(0))
    table.failing["cuDeviceGet"] = 4711  # newer than the table of names
    with pytest.raises(UcclEpError, match="CUDA error 4711"):
        Libcuda(table).call("cuDeviceGet", ctypes.byref(ctypes.c_int()), ctypes.c_int(0))
    assert Libcuda(table).status("cuDeviceGet", None, None) == 4711


def test_libcuda_says_when_the_driver_is_too_old() -> None:
    with pytest.raises(UcclEpError, match=r"has no cuMemFromTheFuture.*update"):
        Libcuda(LibcudaTable(Machine())).call("cuMemFromTheFuture")


def test_libcuda_capture_mode_is_put_back() -> None:
    machine = Machine()
    cuda = Libcuda(LibcudaTable(machine))
    for before in (0, 1, RELAXED):
        machine.mode = before
        with pytest.raises(KeyError), cuda.beside_captures():
            assert machine.mode == RELAXED
            with cuda.beside_captures():
                assert machine.mode == RELAXED
            assert machine.mode == RELAXED
            raise KeyError
        assert machine.mode == before


def test_libcuda_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(libcuda.ctypes, "CDLL", refuse)
    assert libcuda.load() is None
    monkeypatch.setattr(libcuda.ctypes, "CDLL", lambda name: LibcudaTable(Machine()))
    assert isinstance(libcuda.load(), Libcuda)
