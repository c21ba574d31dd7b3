"""The real driver over stub bindings: what it asks of them, in which order, and why a GPU cannot be used."""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tests.uccl_ep.gpu.stub_cuda import DriverBinding, Event, Nvrtc, Runtime, Stream, Stub
from tests.uccl_ep.gpu.stub_machine import CONTEXT
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.gpu import cupy_driver, cupy_memory
from uccl_ep.gpu.cupy_driver import CupyDriver, architectures, available, open_driver
from uccl_ep.system import libcuda, libhip, libnvml
from uccl_ep.system.libcuda import Libcuda


def install(monkeypatch: pytest.MonkeyPatch, is_hip: bool = False) -> Stub:
    stub = Stub(monkeypatch, is_hip)
    monkeypatch.setattr(cupy_driver, "_drivers", {})
    monkeypatch.setattr(cupy_memory, "_pins", {})
    monkeypatch.setattr(libcuda, "load", lambda: Libcuda(stub.table))
    monkeypatch.setattr(libhip, "loaded_runtime", lambda: "libamdhip64")
    monkeypatch.setattr(libhip.ctypes, "CDLL", lambda path: stub.hip)
    return stub


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    yield install(monkeypatch)


def test_cupy_driver_facts(stub: Stub) -> None:
    facts = open_driver("cuda:1").facts
    assert (facts.name, facts.arch, facts.warp, facts.num_sms) == ("Stub 9000", "sm_90a", 32, 132)
    assert facts.max_shared_bytes == 232448 and facts.memory_bytes == 141 << 30
    assert facts.identity == "0000:1b:01.0"  # the physical GPU, in every process alike
    assert facts.can_export and facts.maps_host_memory
    stub.machine.failing["ipcGetMemHandle"] = "cudaErrorNotSupported: operation not supported"
    assert not open_driver("cuda:0").facts.can_export


def test_cupy_driver_facts_about_nics_writes(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = open_driver("cuda:0").facts
    assert (facts.writes_ordering, facts.flush_options, facts.coherent_host) == (100, 1, False)
    flush, set_context, context = open_driver("cuda:0").flush_call()
    assert flush not in (0, set_context) and context == CONTEXT
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(set_context)(context)
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(flush)(0, 200)
    assert stub.table.flushes == [(CONTEXT, 0, 200)]
    stub.runtime.attributes = {100: 1}  # of an older CUDA, on a machine with a coherent link
    facts = open_driver("cuda:1").facts
    assert (facts.writes_ordering, facts.flush_options, facts.coherent_host) == (0, 0, True)


def test_cupy_driver_facts_on_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = install(monkeypatch, is_hip=True)
    stub.runtime.properties |= {"warpSize": 64, "sharedMemPerBlockOptin": 0, "sharedMemPerBlock": 65536}
    for name in ("cuda", "hip", "hip:0", "auto"):
        facts = open_driver(name).facts
        assert (facts.arch, facts.warp, facts.max_shared_bytes) == ("gfx942", 64, 65536)
    driver = open_driver("hip")
    assert (driver.facts.writes_ordering, driver.facts.flush_options, driver.facts.coherent_host) == (0, 0, False)
    assert driver.facts.domain == "" and "on one host only" in driver.facts.domain_reason
    with pytest.raises(UcclEpError, match="flushes nothing"):
        driver.flush_call()
    function = driver.function(driver.load(b"code object"), "rank_barrier")
    assert driver.resident_blocks(function, 512, 6000) == 4  # by AMD's own function: CuPy answers hipErrorUnknown
    assert driver.stream_key(driver.new_stream()) != 0 and stub.machine.named("streamCreate")[-1] == (1, -1)
    stream = driver.new_stream()
    driver.launch(function, 3, 512, 0, stream, bytes(24))
    assert len(stub.machine.named("launchKernel")) == 1
    assert not driver.capturing(stream)
    stub.runtime.recorded.add(driver.stream_key(stream))
    assert driver.capturing(stream)
    driver.allow_shared(function, 60000)
    assert not stub.machine.named("funcSetAttribute")
    assert architectures() == ["gfx942"]
    stub.runtime.properties["gcnArchName"] = b"gfx1100"
    with pytest.raises(UcclEpError, match=r"gfx1100.*gfx942"):
        open_driver("hip:1")


def test_cupy_driver_is_one_a_device(stub: Stub) -> None:
    drivers = []
    threads = [threading.Thread(target=lambda: drivers.append(open_driver("cuda:1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(drivers) == 8 and len({id(d) for d in drivers}) == 1
    stub.torch.ordinal = 1
    assert open_driver() is open_driver("auto") is open_driver("cuda") is drivers[0]
    assert open_driver("cuda:0") is not drivers[0]
    assert drivers[0].torch_device == torch.device("cuda", 1)


def test_cupy_driver_gpus_of_a_process_reach_each_other(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    open_driver("cuda:0")
    assert not stub.machine.named("deviceEnablePeerAccess")
    open_driver("cuda:1")
    assert sorted(stub.machine.named("deviceEnablePeerAccess")) == [(CONTEXT, 1), (CONTEXT + 1, 0)]
    first, second = cupy_driver._drivers[0], cupy_driver._drivers[1]
    stub.machine.failing["deviceEnablePeerAccess"] = "cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled"
    first.reach(second)
    stub.machine.failing["deviceEnablePeerAccess"] = "cudaErrorTooManyPeers: too many"
    with pytest.raises(UcclEpError, match="letting GPU 0 use memory of GPU 1 failed"):
        first.reach(second)
    stub.runtime.strangers.add((1, 0))
    second.reach(first)
    assert "GPU 1 cannot use memory of GPU 0" in capsys.readouterr().err


def test_cupy_driver_loads_kernels_completely(stub: Stub) -> None:
    driver = open_driver("cuda:1")
    module = driver.load(b"\x7fELF")
    function = driver.function(module, "rank_barrier")
    assert function in stub.driver.loaded, "CUDA would load it at its first launch, beside kernels that spin"
    with pytest.raises(UcclEpError, match="finding kernel no_such failed"):
        driver.function(module, "no_such")
    driver.allow_shared(function, 100_000)
    assert stub.machine.named("funcSetAttribute") == [(function, 8, 100_000)]
    assert driver.resident_blocks(function, 256, 1000) == 8
    assert stub.machine.named("occupancy") == [(function, 256, 1000)]
    del module
    gc.collect()
    assert stub.machine.named("moduleUnload") == [(0x700,)]
    stub.machine.failing["moduleLoadData"] = "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available"
    with pytest.raises(UcclEpError, match=r"loading kernels for sm_90a onto Stub 9000 failed.*another architecture"):
        driver.load(b"\x7fELF")


def test_cupy_driver_launch_passes_the_struct(stub: Stub) -> None:
    driver = open_driver("cuda:1")
    stream = driver.new_stream()
    args = bytes(range(24))
    driver.launch(0x801, 66, 512, 49152, stream, args)
    raw = driver.stream_key(stream)
    assert stub.machine.named("launchKernel") == [(0x801, (66, 1, 1), (512, 1, 1), 49152, raw, args)]
    stub.machine.failing["launchKernel"] = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources"
    with pytest.raises(UcclEpError, match=r"launching 3 blocks of 1024 lanes with 0 bytes.*registers"):
        driver.launch(0x801, 3, 1024, 0, stream, args)


def test_cupy_driver_launches_from_any_thread(stub: Stub) -> None:
    """A new thread has no context; another library may have made another GPU's current. Both stay as they were."""
    driver = open_driver("cuda:1")
    stream, after = driver.new_stream(), []

    def work(before: int) -> None:
        stub.machine.context = before
        for _ in range(3):
            driver.launch(0x801, 1, 32, 0, stream, bytes(24))
        after.append((before, stub.machine.context))

    for before in (0, CONTEXT, CONTEXT + 1):
        thread = threading.Thread(target=work, args=(before,))
        thread.start()
        thread.join(20)
    assert after == [(0, 0), (CONTEXT, CONTEXT), (CONTEXT + 1, CONTEXT + 1)]
    assert len(stub.machine.named("launchKernel")) == 9
    assert stub.machine.contexts_made == {1}


def test_cupy_driver_streams_are_never_shared(stub: Stub) -> None:
    driver = open_driver()
    streams = [driver.new_stream() for _ in range(100)]  # torch's pool would begin again after 32
    keys = {driver.stream_key(s) for s in streams}
    assert len(keys) == 100 and 0 not in keys
    created = stub.machine.named("streamCreate")
    assert created[-1] == (1, -1)  # waits for no other stream; before the layer's own kernels
    assert not any(map(weakref.getweakrefcount, streams))  # torch frees a stream without clearing them
    gone = driver.stream_key(streams.pop())
    gc.collect()
    again = driver.new_stream()
    assert driver.stream_key(again) == gone and len(stub.machine.named("streamCreate")) == len(created)


def test_cupy_driver_makes_no_new_object_of_a_stream_that_is_still_current(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, asked = open_driver(), []
    current = cupy_driver._cuda.current_stream
    monkeypatch.setattr(cupy_driver._cuda, "current_stream", lambda device: asked.append(device) or current(device))
    monkeypatch.setattr(cupy_driver, "_raw_stream", lambda ordinal: current(f"cuda:{ordinal}").cuda_stream)
    first, other = driver.new_stream(), driver.new_stream()
    for stream, makes in ((first, 1), (first, 1), (other, 2), (first, 3)):
        with driver.on(stream):
            assert driver.here()[:2] == (stream, driver.stream_key(stream)) and len(asked) == makes
    with ThreadPoolExecutor(1) as thread:  # has a current stream of its own
        assert thread.submit(driver.here).result()[1] == 0
    assert len(asked) == 4


def test_cupy_driver_current_stream_and_events(stub: Stub) -> None:
    driver = open_driver()
    stream = driver.new_stream()
    assert driver.stream_key(driver.current_stream()) == 0
    with driver.on(stream):
        assert driver.current_stream() is stream
    event = driver.record(stream)
    assert event.stream is stream
    driver.wait(driver.current_stream(), event)
    assert driver.current_stream().waited == [event]
    assert not driver.query(event)
    driver.synchronize(event)
    assert driver.query(event)
    stub.runtime.recorded.add(driver.stream_key(stream))
    assert driver.capturing(stream) and not driver.capturing(driver.current_stream())
    assert driver.here() == (driver.current_stream(), 0, False)
    with driver.on(stream):
        assert driver.here() == (stream, driver.stream_key(stream), True)
    stub.machine.failing["streamIsCapturing"] = "cudaErrorStreamCaptureImplicit: operation would make the legacy stream"
    with pytest.raises(UcclEpError, match="looking at a stream failed"):
        driver.here()
    failed = Event()
    failed.error = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(UcclEpError, match=r"waiting for the GPU failed.*start again"):
        driver.synchronize(failed)
    used: list[object] = []
    driver.use_on(SimpleNamespace(record_stream=used.append), stream)  # type: ignore[arg-type]
    assert used == [stream]


def test_cupy_driver_events_are_asked_beside_a_recording(stub: Stub) -> None:
    driver, modes = open_driver(), []
    event = driver.record(Stream(1))
    event.query = lambda: bool(modes.append(stub.machine.mode))
    driver.query(event)
    assert modes == [2] and stub.machine.mode == 0


# ---- why not ---------------------------------------------------------------------------------------------------------


def test_cupy_driver_available(stub: Stub) -> None:
    found, reason = available()
    assert found and "Stub 9000" in reason
    assert architectures() == ["sm_90a"]  # both GPUs are of one kind


def test_cupy_driver_says_why_not(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def why_not(part: str) -> None:
        found, reason = available()
        assert not found
        assert part in reason, reason
        with pytest.raises(UcclEpError) as caught:
            open_driver("cuda")
        assert str(caught.value) == reason

    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)
        why_not("built without CUDA and ROCm")
    stub.torch.visible = False
    why_not("no device visible")
    stub.torch.visible = True
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy.cuda", None)
        why_not("no CuPy")
        assert "pip install 'cupy-cuda13x>=14'" in available()[1]
    with monkeypatch.context() as patch:
        patch.setattr(stub.runtime, "is_hip", True)
        why_not("CuPy is built for ROCm and torch is not")
    stub.machine.failing["getDeviceCount"] = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    why_not("driver is older than CuPy's CUDA")
    stub.machine.failing.clear()
    with monkeypatch.context() as patch:

        def missing(self: Nvrtc) -> tuple[int, int]:
            raise RuntimeError("libnvrtc.so.13 not found")

        patch.setattr(Nvrtc, "getVersion", missing)
        why_not("no library that compiles")
    stub.torch.capability = (7, 5)
    why_not("too old")


@pytest.mark.parametrize("device", ["cpu", "cuda:2", "cuda:-1", "cuda:x", "auto:1", "hip", "hip:0", "", "CUDA"])
def test_cupy_driver_refuses_names(stub: Stub, device: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^device must be .*; got {device!r}\."):
        open_driver(device)


def test_cupy_driver_names_an_older_architecture_aloud(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.runtime.properties |= {"major": 10, "minor": 3}
    assert open_driver("cuda:0").facts.arch == "sm_100"
    assert "does not know sm_103" in capsys.readouterr().err


def test_cupy_driver_fabric_is_used_where_it_is(stub: Stub) -> None:
    stub.table.fabric = True
    driver = open_driver("cuda:0")
    assert driver.facts.can_export
    address = driver.allocate(1)
    assert address in stub.table.writable and not stub.machine.named("malloc")
    driver.free(address)


def test_cupy_driver_domain_of_fabric_memory(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libnvml, "domain_of", lambda pci: (f"domain of {pci}", ""))
    facts = open_driver("cuda:0").facts
    assert facts.domain == "" and "no fabric handle can be made" in facts.domain_reason
    stub.table.fabric = True
    assert open_driver("cuda:1").facts.domain == "domain of 0000:1b:01.0"


def test_cupy_driver_without_a_gpu_on_this_machine() -> None:
    """With nothing replaced: a reason, no exception, and opening says the same."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found, reason = available()
    assert not found and reason
    with pytest.raises(UcclEpError):
        CupyDriver(0)


# ---- the stubs are like the real ones --------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.parametrize("name", ["runtime", "driver", "nvrtc"])
def test_cupy_driver_stubs_have_the_bindings_names_and_arguments(name: str) -> None:
    """CuPy's functions say their arguments in the first line of their docstring; it needs no GPU to look."""
    real = getattr(importlib.import_module("cupy.cuda"), name)
    stub = {"runtime": Runtime, "driver": DriverBinding, "nvrtc": Nvrtc}[name]
    compared = 0
    for attribute, value in vars(stub).items():
        if attribute.startswith("_"):
            continue
        assert hasattr(real, attribute), f"cupy.cuda.{name} has no {attribute}"
        if not callable(value):
            assert int(getattr(real, attribute)) == value, attribute
            continue
        signature = re.match(r"\w+\((.*)\)(?: ->.*)?$", (getattr(real, attribute).__doc__ or "").split("\n")[0])
        assert signature, f"{attribute}: {getattr(real, attribute).__doc__}"
        theirs = [text for text in signature[1].split(",") if text.strip()]
        required = [text for text in theirs if "=" not in text]
        ours = inspect.signature(value)
        flat = [p for p in ours.parameters.values() if p.kind is not p.VAR_POSITIONAL]
        if len(flat) == len(ours.parameters):
            assert len(required) <= len(flat) - 1 <= len(theirs), f"{attribute}{ours} but CuPy's {signature[0]}"
        compared += 1
    assert compared >= 2


def test_cupy_driver_uses_what_torch_has() -> None:
    for name in ("is_available", "init", "current_device", "device_count", "get_device_name", "get_device_capability",
                 "current_stream", "stream", "ExternalStream", "Event"):  # fmt: skip
        assert hasattr(torch.cuda, name), name
    assert list(inspect.signature(torch.cuda.ExternalStream.__new__).parameters)[1:3] == ["stream_ptr", "device"]
