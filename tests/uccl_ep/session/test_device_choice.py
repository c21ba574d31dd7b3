"""Which device a Buffer uses: argument before variable, a GPU where one can be used, and always a reason."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from uccl_ep import InvalidArgument, NotSupported, UcclEpError, _native
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.session.device_choice import Choice, choose_device, gpu_facts, kind_of, make_device
from uccl_ep.settings import Settings


def without_gpu(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    absent = SimpleNamespace(available=lambda: (False, why))
    monkeypatch.setitem(sys.modules, "uccl_ep.gpu.cupy_driver", absent)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument, variable", [(None, "auto"), ("auto", "cuda:3"), (None, "cpu"), ("cpu", "cuda")])
def test_device_choice_cpu(monkeypatch: pytest.MonkeyPatch, argument: str | None, variable: str) -> None:
    without_gpu(monkeypatch, "no CuPy: install it")
    choice = choose_device(argument, variable)
    assert choice.driver is None
    if "cpu" in (argument, variable):
        assert choice.reason == ("device=cpu" if argument else "UCCL_EP_DEVICE=cpu")
    else:
        assert choice.reason == "no GPU can be used: no CuPy: install it"


def test_device_choice_cpu_does_not_look_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uccl_ep.gpu.cupy_driver", None)  # type: ignore[arg-type]  # importing it fails
    assert choose_device("cpu", "auto").driver is None
    with pytest.raises(ImportError):
        choose_device("auto", "cpu")


@pytest.mark.parametrize(
    "argument, variable, words",
    [("cuda", "auto", "device=cuda: no GPU"), (None, "hip:1", "UCCL_EP_DEVICE=hip:1: no GPU can be used: none here")],
)
def test_device_choice_a_gpu_by_name_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, argument: str | None, variable: str, words: str
) -> None:
    without_gpu(monkeypatch, "none here")
    with pytest.raises(NotSupported, match=words):
        choose_device(argument, variable)


@pytest.mark.parametrize("name", ["rocm", "cuda:", "cuda:x", "gpu", "", "cpu:0", 3])
def test_device_choice_unknown_names(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="device must be auto, cpu, cuda, cuda:N, hip or hip:N; got "):
        choose_device(name, "auto")


def test_device_choice_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeDriver(identity="a"), FakeDriver(identity="b")
    install(monkeypatch, first, second)
    assert choose_device(None, "auto").driver is first and choose_device("cuda", "cpu").driver is first
    chosen = choose_device("cuda:1", "auto")
    assert chosen.driver is second and chosen.kernels is second.library and chosen.reason == "device=cuda:1"
    assert choose_device(None, "auto").reason == "a GPU can be used"


def test_device_choice_a_gpu_that_cannot_map_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver(maps_host_memory=False))
    with pytest.raises(UcclEpError, match="cannot map host memory"):
        choose_device("cuda", "auto")


def test_device_choice_makes_the_device_of_a_session() -> None:
    said: list[str] = []
    arena = _native.Segment.create("test", 8 << 20)
    session = SimpleNamespace(
        settings=Settings(),
        check=lambda: said.append("checked"),
        note=said.append,
        regions=SimpleNamespace(arena=arena),
    )
    device = make_device(Choice(None, None, ""), session)  # type: ignore[arg-type]
    assert isinstance(device, CpuDevice) and isinstance(device.comm_stream, _native.Stream)
    result = device.empty(2 << 20, dtype=torch.uint8)
    assert device.arena_offset(result) == result.data_ptr() - arena.address
    device.finish()
    assert said == ["checked"]


def test_device_choice_what_a_rank_says_of_its_gpu() -> None:
    assert (kind_of(None), gpu_facts(None)) == ("cpu", {})
    nvidia, amd = FakeDriver(num_sms=7, identity="a", can_export=False), FakeDriver(arch="gfx942")
    assert (kind_of(nvidia), kind_of(amd)) == ("cuda", "hip")  # type: ignore[arg-type]
    domain = {"domain": "", "domain_reason": "it is in no NVLink domain"}
    said = {"device": "cuda", "gpu": "a", "num_sms": 7, "exportable": 0, **domain}
    assert gpu_facts(nvidia) == said  # type: ignore[arg-type]
