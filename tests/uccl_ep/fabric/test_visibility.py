"""What is done about NICs' bytes that a GPU may show too late: by GPU, family, readers and proxy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.fabric.visibility import WORDS, GpuOrder, choose_way, order_of
from uccl_ep.gpu.driver import Facts

H100 = Facts("H100", "sm_90a", 32, 132, 227 << 10, 80 << 30, "0000:1b:00.0", True, True, 100, 1)
A100 = replace(H100, name="A100", arch="sm_80")
GB200 = replace(H100, name="GB200", arch="sm_100a", writes_ordering=200, coherent_host=True)
MI300X = replace(H100, name="MI300X", arch="gfx942", writes_ordering=0, flush_options=0)
ORDERED = replace(H100, name="all", writes_ordering=200)


@pytest.mark.parametrize(
    "facts, scope, reason",
    [
        (H100, "owner", "this GPU, and no other, sees NICs' writes"),
        (A100, "none", "sm_80 is older than the GPUs whose own order is relied upon"),
        (GB200, "none", "NVLink-C2C"),
        (MI300X, "none", "AMD promises no order"),
        (ORDERED, "all", "all GPUs see"),
        (replace(H100, writes_ordering=0), "none", "promises no order"),
    ],
)
def test_visibility_what_a_gpu_promises(facts: Facts, scope: str, reason: str) -> None:
    order = order_of(facts, "thread")
    assert order.scope == scope and reason in order.reason
    assert (order.no_flush == "") == (facts is not MI300X)


def test_visibility_where_the_driver_cannot_flush() -> None:
    assert "UCCL_EP_PROXY=thread" in order_of(A100, "process").no_flush
    assert "has no call for it on this GPU" in order_of(replace(A100, flush_options=2), "thread").no_flush


@pytest.mark.parametrize(
    "facts, family, others_read, proxy, way",
    [
        (ORDERED, "efa", True, "process", "none"),
        (H100, "verbs", False, "thread", "owner"),
        (H100, "verbs", True, "thread", "nic_read"),
        (A100, "verbs", False, "thread", "nic_read"),
        (GB200, "verbs", True, "process", "nic_read"),
        (MI300X, "verbs", True, "thread", "nic_read"),
        (H100, "efa", False, "thread", "owner"),
        (H100, "efa", True, "thread", "driver"),
        (H100, "efa", True, "process", ""),
        (MI300X, "efa", False, "thread", ""),
    ],
)
def test_visibility_way(facts: Facts, family: str, others_read: bool, proxy: str, way: str) -> None:
    chosen, why = choose_way(order_of(facts, proxy), family, others_read)
    assert chosen == way and order_of(facts, proxy).reason in why
    assert chosen in WORDS or "has no read of its own memory; the driver's flush: " in why


def test_visibility_of_a_rank_that_says_nothing_is_the_worst() -> None:
    assert GpuOrder.told({}) == GpuOrder() and GpuOrder().scope == "none" and GpuOrder().no_flush
    told = {"gpu_scope": "owner", "gpu_reason": "a test", "gpu_no_flush": "", "gpu_memory": "dmabuf"}
    assert GpuOrder.told(told) == GpuOrder("owner", "a test", "")
