"""The NVLink domain of a GPU, as NVML tells it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from uccl_ep.system import libnvml
from uccl_ep.system.libnvml import Libnvml

CLUSTER = bytes(range(16))


class Table:
    """NVML's functions; `info` is what its driver writes: cluster, status, clique, state."""

    def __init__(self, *info: Any, failing: dict[str, int] | None = None) -> None:
        self.info, self.failing, self.open, self.asked = info, failing or {}, 0, b""

    def nvmlInit_v2(self) -> int:
        self.open += "nvmlInit_v2" not in self.failing
        return self.failing.get("nvmlInit_v2", 0)

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, device: Any) -> int:
        self.asked = pci
        return self.failing.get("nvmlDeviceGetHandleByPciBusId_v2", 0)

    def nvmlDeviceGetGpuFabricInfoV(self, device: Any, pointer: Any) -> int:
        info = pointer._obj
        assert info.version == 36 | 2 << 24 and ctypes.sizeof(info) == 36
        places = [(f, getattr(type(info), f).offset) for f in ("cluster", "status", "clique", "state", "health")]
        assert places == [("cluster", 4), ("status", 20), ("clique", 24), ("state", 28), ("health", 32)]
        cluster, info.status, info.clique, info.state = self.info
        info.cluster[:] = list(cluster)
        return self.failing.get("nvmlDeviceGetGpuFabricInfoV", 0)


def test_libnvml_a_domain_is_cluster_and_clique() -> None:
    table = Table(CLUSTER, 0, 7, 3)
    assert Libnvml(table).domain_of("0000:1b:00.0") == ("000102030405060708090a0b0c0d0e0f/7", "")
    assert table.asked == b"0000:1b:00.0" and table.open == 0
    assert Libnvml(Table(CLUSTER, 0, 8, 3)).domain_of("0")[0].endswith("/8")


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ((CLUSTER, 0, 7, 0), "registration with an NVLink fabric is not supported"),
        ((CLUSTER, 0, 7, 1), "has not been started"),
        ((CLUSTER, 0, 7, 2), "is in progress"),
        ((CLUSTER, 0, 7, 9), "is in state 9"),
        ((CLUSTER, 999, 7, 3), "failed with NVML error 999"),
        ((bytes(16), 0, 7, 3), "names no cluster"),
    ],
)
def test_libnvml_no_domain(info: Any, why: str) -> None:
    table = Table(*info)
    domain, reason = Libnvml(table).domain_of("0")
    assert domain == "" and why in reason and table.open == 0


@pytest.mark.parametrize("name", ["nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetGpuFabricInfoV"])
def test_libnvml_calls_that_fail(name: str) -> None:
    table = Table(CLUSTER, 0, 7, 3, failing={name: 3})
    assert Libnvml(table).domain_of("0") == ("", f"{name} failed with NVML error 3")
    assert table.open == 0


def test_libnvml_an_old_driver_and_a_machine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(Table):
        nvmlDeviceGetGpuFabricInfoV = None  # type: ignore[assignment]

    assert Libnvml(Old()).domain_of("0") == ("", "this NVIDIA driver has no nvmlDeviceGetGpuFabricInfoV")

    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(libnvml.ctypes, "CDLL", missing)
    domain, why = libnvml.domain_of("0")
    assert domain == "" and why.startswith("NVIDIA's management library cannot be loaded: libnvidia-ml.so.1")
