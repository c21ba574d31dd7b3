"""Streams, events, and the kernels' argument structs: what is set lies where the kernel reads it."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.uccl_ep.gate import Gate
from uccl_ep import _native
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.settings import Settings

ROOT = Path(__file__).parents[3]
STRUCTS = {  # argument struct: the header that defines it
    "DispatchSendArgs": "low_latency/dispatch_send.h", "DispatchReceiveArgs": "low_latency/dispatch_recv.h",
    "CombineSendArgs": "low_latency/combine_send.h", "CombineReceiveArgs": "low_latency/combine_recv.h",
    "LayoutArgs": "throughput/layout.h", "CountsArgs": "throughput/counts.h", "DispatchArgs": "throughput/dispatch.h",
    "CombineArgs": "throughput/contribute.h", "SettleArgs": "throughput/settle.h",
    "BarrierArgs": "collective/barrier.h",
}  # fmt: skip
NESTED = {"rank", "call", "layout", "shape", "topology"}  # structs of their own, bound by another type


def declared(name: str) -> list[str]:
    """The fields of a kernel's argument struct, as its header declares them."""
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", (ROOT / "kernels" / STRUCTS[name]).read_text(), re.DOTALL)
    assert body is not None
    code = "".join(line.split("//")[0] for line in body[1].splitlines(keepends=True))
    fields = []
    for statement in code.split(";"):
        words = statement.replace("*", " ").strip()
        if words and "(" not in words and "=" not in words:
            fields += [part.split()[-1] for part in words.split(",")]
    return [f for f in fields if not f.startswith("unused")]


@pytest.mark.parametrize("name", STRUCTS)
def test_kernels_every_field_of_an_argument_struct_can_be_set_and_is_in_its_bytes(name: str) -> None:
    kind = getattr(_native, name)
    fields = [f for f in declared(name) if f not in NESTED]
    assert fields or name == "BarrierArgs"
    blank = kind().bytes
    assert not any(blank.strip(b"\x00")) or len(blank) > 0
    places = {}
    for field in fields:
        args = kind()
        assert isinstance(inspect.getattr_static(kind, field, None), property), f"{name}.{field} is not bound"
        setattr(args, field, 0x41424344)
        assert getattr(args, field) == 0x41424344
        changed = [i for i, (a, b) in enumerate(zip(blank, args.bytes, strict=True)) if a != b]
        assert changed and changed[-1] - changed[0] < 8
        places[field] = changed[0]
    assert len(set(places.values())) == len(places)
    assert sorted(places, key=lambda f: places[f]) == fields  # in the order of the header


def test_kernels_nested_structs_are_copied_in() -> None:
    call = _native.LowLatencyCall()
    call.epoch, call.num_experts = 7, 9  # the epoch's address
    layout = _native.LowLatencyLayout()
    layout.hidden = 512
    call.layout = layout
    args = _native.CombineSendArgs()
    args.call = call
    layout.hidden = call.epoch = 1  # later changes do not reach the copy
    assert (args.call.layout.hidden, args.call.epoch, args.call.num_experts) == (512, 7, 9)


def test_kernels_launch_copies_its_arguments() -> None:
    device = CpuDevice(Settings(), lambda: None)
    ids = torch.arange(6).view(6, 1)
    counts = torch.zeros(6, dtype=torch.int32)
    per_rank, in_rank = torch.zeros(1, dtype=torch.int32), torch.zeros(6, 1, dtype=torch.bool)
    tables = _native.RankTablesSettings()
    tables.node_of, tables.data, tables.control, tables.num_rings = [0], [ids.data_ptr()], [ids.data_ptr()], 0
    made = _native.RankTables(tables)
    args = _native.LayoutArgs()
    args.set_topology(made.context)
    args.topk_idx, args.num_tokens, args.topk, args.num_experts = ids.data_ptr(), 6, 1, 6
    args.num_tokens_per_rank, args.num_tokens_per_expert = per_rank.data_ptr(), counts.data_ptr()
    args.is_token_in_rank = in_rank.data_ptr()
    with Gate(device) as gate:
        device.launch(_native.throughput_layout, args, device.shape(1, 1))
        args.num_tokens = 0  # after the launch: of no effect
        assert not counts.any()
        gate.open()
        device.finish()
    assert counts.tolist() == [1] * 6 and int(per_rank) == 6 and bool(in_rank.all())


def test_kernels_event_wait_ends_at_its_time() -> None:
    device = CpuDevice(Settings(), lambda: None)
    with Gate(device):
        event = device.comm_stream.record()
        begin = time.monotonic()
        event.wait(50_000_000)
        assert 0.04 < time.monotonic() - begin < 10 and not event.query()
    device.finish()
    assert event.query()


def test_kernels_stream_synchronize_waits_and_an_end_of_the_stream_does_too() -> None:
    import threading

    device = CpuDevice(Settings(), lambda: None)
    gate = Gate(device)
    event = device.comm_stream.record()
    threading.Timer(0.05, gate.open).start()
    device.comm_stream.synchronize()
    assert event.query()


def entry_points() -> dict[str, str]:
    """Every kernel under kernels/, and the name of its argument struct."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "kernels").rglob("*.h")):
        found.update(re.findall(r"^KERNEL (?:KERNEL_BOUNDS\(.*?\) )?(\w+)\((\w+) a\)", path.read_text(), re.MULTILINE))
    return found


def test_kernels_arguments_of_every_kernel_are_the_bytes_of_its_struct() -> None:
    sizes, kernels = _native.kernel_arguments(), entry_points()
    assert sorted(sizes) == sorted(kernels) and len(sizes) >= 10
    for kernel, struct_name in kernels.items():
        assert sizes[kernel] == len(getattr(_native, struct_name)().bytes), kernel


def test_kernels_shared_bytes_depend_on_kernel_and_warps() -> None:
    for kernel, size in _native.kernel_arguments().items():
        few, many = (_native.shared_bytes(kernel, bytes(size), warps) for warps in (1, 8))
        assert 0 <= few <= many < 227 << 10
        assert (many > few) == (kernel == "throughput_combine"), kernel  # the one with room for each warp
    assert _native.shared_bytes("low_latency_combine_recv", _native.CombineReceiveArgs().bytes, 4) > 0


def test_kernels_launch_by_name_runs_what_the_typed_call_runs() -> None:
    ids = torch.arange(6).view(6, 1)
    tables = _native.RankTablesSettings()
    tables.node_of, tables.data, tables.control, tables.num_rings = [0], [ids.data_ptr()], [ids.data_ptr()], 0
    made = _native.RankTables(tables)
    stream = _native.Stream()
    results = []
    for by_name in (False, True):
        counts, per_rank = torch.zeros(6, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        in_rank = torch.zeros(6, 1, dtype=torch.bool)
        args = _native.LayoutArgs()
        args.set_topology(made.context)
        args.topk_idx, args.num_tokens, args.topk, args.num_experts = ids.data_ptr(), 6, 1, 6
        args.num_tokens_per_rank, args.num_tokens_per_expert = per_rank.data_ptr(), counts.data_ptr()
        args.is_token_in_rank = in_rank.data_ptr()
        if by_name:
            _native.launch(stream, "throughput_layout", args.bytes, _native.LaunchShape(2, 1, 1))
        else:
            _native.throughput_layout(stream, args, _native.LaunchShape(2, 1, 1))
        stream.synchronize()
        results.append((counts.tolist(), per_rank.tolist(), in_rank.tolist()))
    assert results[0] == results[1] == ([1] * 6, [6], [[True]] * 6)


@pytest.mark.parametrize("change", ["unknown", "short", "long"])
def test_kernels_launch_by_name_refuses(change: str) -> None:
    stream, shape = _native.Stream(), _native.LaunchShape(1, 1, 1)
    size = _native.kernel_arguments()["rank_barrier"]
    name, args = {
        "unknown": ("rank_barriers", bytes(size)), "short": ("rank_barrier", bytes(size - 1)),
        "long": ("rank_barrier", bytes(size + 8)),
    }[change]  # fmt: skip
    words = "no kernel is named rank_barriers" if change == "unknown" else f"takes {size} bytes of arguments, not"
    with pytest.raises(ValueError, match=words):
        _native.launch(stream, name, args, shape)
    with pytest.raises(ValueError, match=words):
        _native.shared_bytes(name, args, 1)
    stream.synchronize()


def test_kernels_wrong_types_are_refused() -> None:
    stream, shape = _native.Stream(), _native.LaunchShape(1, 1, 1)
    wrong: list[Any] = [None, 1, _native.SettleArgs()]
    for args in wrong:
        with pytest.raises(TypeError):
            _native.rank_barrier(stream, args, shape)
    with pytest.raises(TypeError):
        _native.LaunchShape(-1, 1, 1)
    with pytest.raises(TypeError):
        _native.SettleArgs().direction = -1


def test_kernels_constants_are_those_of_the_headers() -> None:
    common = (ROOT / "kernels" / "layout" / "rank_context.h").read_text()
    enumerators = re.search(r"enum class PeerStat : u32 \{(.*?)\}", common)
    assert enumerators is not None
    assert len(enumerators[1].split(",")) == _native.PEER_STATS == 5
    assert _native.WARP in (32, 64) and _native.GRID_BARRIER_WORDS >= 1
    assert _native.MAX_PARTIALS >= 1 and _native.PARTIAL_STATE_BYTES % 8 == 0
