"""AMD's functions beside CuPy's: what is filled in, what passes through, errors by name, one runtime in the process."""

from __future__ import annotations

import pytest
import torch

from tests.uccl_ep.gpu.stub_cuda import Stub
from uccl_ep.errors import UcclEpError
from uccl_ep.system import libhip
from uccl_ep.system.libhip import HipDriver, HipError, HipRuntime, completed, loaded_runtime

MAPS = """7f00-7f01 r--p 00000000 00:00 1 /opt/rocm/lib/libamdhip64.so.7.0.1
7f01-7f02 r-xp 00000000 00:00 1 /opt/rocm/lib/libamdhip64.so.7.0.1
7f02-7f03 r-xp 00000000 00:00 2 /usr/lib/libc.so.6
7f03-7f04 rw-p 00000000 00:00 0
"""


def test_libhip_fills_in_what_cupy_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, is_hip=True)
    with pytest.raises(RuntimeError, match="hipErrorUnknown"):
        stub.runtime.hostRegister(4096, 8192, 3)
    runtime, driver = HipRuntime(stub.runtime, stub.hip), HipDriver(stub.driver, stub.hip)
    runtime.hostRegister(1 << 47, 1 << 33, 3)
    assert stub.machine.named("hostRegister") == [(1 << 47, 1 << 33, 3)]  # 64 bits of both arrive
    runtime.hostUnregister(1 << 47)
    assert runtime.streamCreateWithPriority(1, -1) in stub.runtime.queues
    assert driver.occupancyMaxActiveBlocksPerMultiprocessor(1 << 46, 256, 1 << 16) == 8
    assert stub.machine.named("occupancy") == [(1 << 46, 256, 1 << 16)]
    assert runtime.getDeviceCount() == 2 and runtime.is_hip  # CuPy's own


def test_libhip_errors_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, is_hip=True)
    runtime = HipRuntime(stub.runtime, stub.hip)
    stub.hip.failing["hipHostRegister"] = 2
    with pytest.raises(HipError, match=r"^hipErrorOutOfMemory \(2\) from hipHostRegister"):
        runtime.hostRegister(4096, 4096, 3)
    stub.hip.failing["hipHostRegister"] = 4711
    with pytest.raises(HipError, match="4711"):
        runtime.hostRegister(4096, 4096, 3)


def test_libhip_wants_one_runtime() -> None:
    assert loaded_runtime(MAPS) == "/opt/rocm/lib/libamdhip64.so.7.0.1"
    with pytest.raises(UcclEpError, match=r"different HIP runtimes \(/opt/rocm/.*, /venv/torch/lib/libamdhip64.so\)"):
        loaded_runtime(MAPS + "7f05-7f06 r-xp 00000000 00:00 3 /venv/torch/lib/libamdhip64.so\n")
    with pytest.raises(UcclEpError, match="no HIP runtime"):
        loaded_runtime("7f02-7f03 r-xp 00000000 00:00 2 /usr/lib/libc.so.6\n")


def test_libhip_completes_from_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    stub, opened = Stub(monkeypatch, is_hip=True), []
    monkeypatch.setattr(libhip, "loaded_runtime", lambda: "/somewhere/libamdhip64.so")
    monkeypatch.setattr(libhip.ctypes, "CDLL", lambda path: opened.append(path) or stub.hip)
    runtime, driver = completed(stub.runtime, stub.driver)
    assert opened == ["/somewhere/libamdhip64.so"]
    assert isinstance(runtime, HipRuntime) and isinstance(driver, HipDriver)


def test_libhip_looks_at_this_process() -> None:
    if torch.version.hip is not None:
        assert "libamdhip64" in loaded_runtime()
    else:
        with pytest.raises(UcclEpError, match="no HIP runtime"):
            loaded_runtime()
