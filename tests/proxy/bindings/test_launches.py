"""A call's launches: every tensor and number that Python gives is in the kernel's arguments; wrong ones are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.proxy.bindings.test_kernels import context
from uccl_ep import _native

MEMORY = torch.zeros(4096, dtype=torch.int64)
LOW_LATENCY = ("dispatch_send", "dispatch_recv", "combine_send", "combine_reduce", "combine_recv")
THROUGHPUT = ("layout", "counts", "settle", "dispatch", "combine")
NOT_ADDRESSES = {"shape": _native.RowShape, "geometry": _native.StreamGeometry}


def makers() -> tuple[_native.LowLatencyCalls, _native.ThroughputCalls]:
    rank, _ = context()
    layout = _native.LowLatencyLayout()
    layout.hidden, layout.reduces, layout.max_topk = 512, 1, 2
    low_latency = _native.LowLatencyCalls(rank, layout, 4, MEMORY, _native.DeviceShape.of_host())
    return low_latency, _native.ThroughputCalls(rank, _native.ThroughputLayout(), MEMORY, _native.DeviceShape.of_host())


def signature(method: Any) -> dict[str, str]:
    """Names and types of a native method's arguments."""
    text = re.sub(r"\[[^]]*\]", "", method.__doc__.splitlines()[0])
    inside = text[text.index("(") + 1 : text.rindex(")")]
    parts = [p.split("=")[0].strip().split(": ") for p in inside.split(", ") if ": " in p]
    return {part[0]: part[1] for part in parts}


def routing(**changes: Any) -> _native.RoutingTables:
    names = signature(_native.routing_tables)
    return _native.routing_tables(**{**dict.fromkeys(names, 1), **changes})


def sent(**changes: Any) -> _native.Launch:
    low_latency, _ = makers()
    names = signature(low_latency.combine_send)
    values: dict[str, Any] = {name: 1 if kind != "bool" else True for name, kind in names.items()}
    return low_latency.combine_send(**{**values, "x_at": 1, "format": 0, **changes})


def plain(name: str, kind: str) -> Any:
    if name in NOT_ADDRESSES:
        return NOT_ADDRESSES[name]()
    if name in ("routing", "sent"):
        return {"routing": routing, "sent": sent}[name]()
    return {"format": 0, "reduces": True}.get(name, kind != "bool")


@pytest.mark.parametrize("kind, call", [(0, c) for c in LOW_LATENCY] + [(1, c) for c in THROUGHPUT])
def test_launches_every_argument_of_a_call_is_in_the_arguments_of_its_kernel(kind: int, call: str) -> None:
    method = getattr(makers()[kind], call)
    names = signature(method)
    assert len(names) >= 2
    values = {name: plain(name, what) for name, what in names.items()}
    before = method(**values)
    assert before.kernel == f"{('low_latency', 'throughput')[kind]}_{call}"
    assert len(before.args) == _native.kernel_arguments()[before.kernel]
    places: dict[str, list[int]] = {}
    for name, what in names.items():
        if name in ("shape", "geometry", "routing", "sent", "blocks"):
            continue
        other = {"format": 1, "reduces": False}.get(name, True if what == "bool" else 2)
        after = method(**{**values, name: other})
        places[name] = [i for i, (a, b) in enumerate(zip(before.args, after.args, strict=True)) if a != b]
        assert places[name], f"{call}: {name} is nowhere"
    alone = [tuple(p[:1]) for p in places.values() if len(p) == 1]
    assert len(set(alone)) == len(alone), f"{call}: two arguments in one place of {places}"


def test_launches_take_a_tensor_an_address_or_none() -> None:
    low_latency, _ = makers()
    by_tensor = low_latency.combine_reduce(sent(), wait_stats=MEMORY[3:], registered=None)
    by_address = low_latency.combine_reduce(sent(), wait_stats=MEMORY.data_ptr() + 24, registered=0)
    assert by_tensor.args == by_address.args
    wrong: list[Any] = ["x", 1.5, -1, 1 << 64, object()]
    for value in wrong:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            low_latency.combine_reduce(sent(), wait_stats=value, registered=None)


def test_launches_receiving_half_wants_its_sending_half() -> None:
    low_latency, _ = makers()
    other = _native.barrier_launch(context()[0], 1)
    with pytest.raises(ValueError, match="a launch of rank_barrier instead of low_latency_combine_send"):
        low_latency.combine_recv(
            other, out=0, topk_idx=0, weights=0, num_tokens=1, topk=1, wait_stats=None, registered=0
        )


def test_launches_say_what_they_ask_of_a_device() -> None:
    low_latency, throughput = makers()
    few = low_latency.dispatch_recv(
        0, format=0, recv_x=0, recv_scales=0, recv_count=0, src_info=0, layout_range=0, cumulative_stats=0, wait_stats=0
    )
    assert (few.exact, few.warps, few.blocks) == (False, 4, 1)
    assert sent(blocks=3).blocks == 3 and sent(blocks=0).blocks > 0
    exact = throughput.dispatch(
        **{name: plain(name, what) for name, what in signature(throughput.dispatch).items() if name != "routing"},
        routing=routing(channels=5),
    )
    assert (exact.exact, exact.blocks) == (True, 10)


def test_launches_routing_tables_reach_the_kernel_each_in_a_place_of_its_own() -> None:
    _, throughput = makers()
    values = {name: plain(name, what) for name, what in signature(throughput.counts).items() if name != "routing"}
    seen: set[int] = set()
    before = throughput.counts(**values, routing=routing())
    for name in signature(_native.routing_tables):
        after = throughput.counts(**values, routing=routing(**{name: 2}))
        changed = [i for i, (a, b) in enumerate(zip(before.args, after.args, strict=True)) if a != b]
        assert changed and not seen & set(changed), name
        seen.update(changed)
