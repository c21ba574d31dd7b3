"""The question to a GPU's driver: what is asked of the library; a driver that hangs or crashes ends only that."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import pytest

from uccl_ep.system import libnvml
from uccl_ep.tools.doctor import gpu_probe

ATTRIBUTES = {75: 9, 76: 0, 19: 1, 124: 1}  # and not 128, which an old driver refuses


class Driver:
    """libcuda or libamdhip64 with three GPUs, of which 0 and 2 do not reach each other."""

    def __init__(self, prefix: str, status: int = 0) -> None:
        self.prefix, self.init_status = prefix, status

    def __getattr__(self, name: str) -> Any:
        return getattr(Driver, "_" + name.removeprefix(self.prefix)).__get__(self)

    def _Init(self, flags: Any) -> int:
        return self.init_status

    def _DriverGetVersion(self, out: Any) -> int:
        out._obj.value = 12080
        return 0

    def _DeviceGetCount(self, out: Any) -> int:
        out._obj.value = 3
        return 0

    _GetDeviceCount = _DeviceGetCount

    def _DeviceGetName(self, text: Any, size: Any, device: Any) -> int:
        text.value = f"GPU {device.value}".encode()
        return 0

    def _DeviceGetPCIBusId(self, text: Any, size: Any, device: Any) -> int:
        text.value = f"0000:1{device.value}:00.A".encode()
        return 0

    def _DeviceGetAttribute(self, out: Any, number: Any, device: Any) -> int:
        out._obj.value = ATTRIBUTES.get(number.value, 77)
        return 0 if number.value in ATTRIBUTES else 1

    def _DeviceCanAccessPeer(self, out: Any, one: Any, other: Any) -> int:
        out._obj.value = int({one.value, other.value} != {0, 2})
        return 0


def usable() -> tuple[bool, str]:
    return True, "a fine GPU"


def test_gpu_probe_asks_nvidia() -> None:
    told = gpu_probe.question("cuda", Driver("cu"), usable)
    assert (told["version"], told["usable"], told["why"]) == (12080, True, "a fine GPU")
    assert told["devices"][1] == {
        "index": 1, "name": "GPU 1", "pci": "0000:11:00.a", "major": 9, "minor": 0, "maps_host_memory": 1, "dmabuf": 1,
        "fabric_handles": 0,
    }  # fmt: skip
    assert told["peers"] == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    json.dumps(told)


def test_gpu_probe_asks_amd() -> None:
    told = gpu_probe.question("hip", Driver("hip"), usable)
    assert [device["name"] for device in told["devices"]] == ["GPU 0", "GPU 1", "GPU 2"]
    assert "major" not in told["devices"][0]


def test_gpu_probe_of_a_driver_that_does_not_start() -> None:
    assert gpu_probe.question("cuda", Driver("cu", status=999), usable) == {"error": "cuInit failed with 999"}


def test_gpu_probe_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver("cu"))
    monkeypatch.setattr(gpu_probe, "_usable", usable)
    monkeypatch.setattr(libnvml, "domain_of", lambda pci: (f"of {pci}", ""))
    assert gpu_probe.main(["cuda"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["version"] == 12080
    assert [(d["domain"], d["no_domain"]) for d in told["devices"]] == [(f"of 0000:1{i}:00.a", "") for i in range(3)]

    def fail(name: str) -> Any:
        raise OSError("libcuda.so.1: not here")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    assert gpu_probe.main(["cuda"]) == 0
    assert json.loads(capsys.readouterr().out) == {"error": "libcuda.so.1: not here"}


@pytest.mark.parametrize(
    "program, says",
    [
        ("print('noise'); print('{\"a\": 1}')", None),
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11: it said nothing"),
        ("import sys; sys.exit('no such driver')", "ended with status 1: no such driver"),
        ("print('[1]')", "gave [1]"),
        ("print('{')", "ended with status 0"),
    ],
)
def test_gpu_probe_survives_its_child(program: str, says: str | None) -> None:
    told = gpu_probe.ask_child([sys.executable, "-S", "-c", program], dict(os.environ))
    assert told == {"a": 1} if says is None else says in told["error"]


def test_gpu_probe_of_a_driver_that_hangs() -> None:
    told = gpu_probe.ask_child([sys.executable, "-S", "-c", "import threading; threading.Event().wait()"], {}, 0.2)
    assert told == {"error": "the GPU's driver has not answered within 0 s"}


def test_gpu_probe_that_cannot_be_started() -> None:
    assert "no process could be started" in gpu_probe.ask_child(["/no/such/program"], {})["error"]


def test_gpu_probe_runs_as_a_program() -> None:
    """Here there is no driver, or there is one: either way an answer comes, and it is a table."""
    told = gpu_probe.run("hip")
    assert "error" in told or "devices" in told
