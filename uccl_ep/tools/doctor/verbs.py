"""Path verbs: InfiniBand and RoCE."""

from __future__ import annotations

from functools import partial

from uccl_ep.tools.doctor import gpu_memory, limits, rdma
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Check

_PARTS = (
    ("devices", rdma.devices),
    ("library", rdma.library),
    ("device files", rdma.device_files),
    ("ports", rdma.ports),
    ("addresses", rdma.addresses),
    ("MTU", rdma.mtu),
    ("distance", rdma.distance),
    ("queue pairs", rdma.limits_known),
)


def unneeded(host: Host) -> str:
    """Why nobody here needs verbs; empty: somebody does."""
    return rdma.unneeded(host, "verbs")


CHECKS = (
    *(Check("verbs", name, partial(part, "verbs")) for name, part in _PARTS),
    Check("verbs", "GPU memory", gpu_memory.registration),
    Check("verbs", "locked memory", limits.locked_memory),
)
