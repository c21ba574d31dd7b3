"""Path efa: AWS's Elastic Fabric Adapter."""

from __future__ import annotations

from functools import partial

from uccl_ep.system.extras import install
from uccl_ep.tools.doctor import gpu_memory, limits, rdma
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, not_needed, ok, unknown

_WRITE = "rdma_write"  # as EFA's own query calls it


def unneeded(host: Host) -> str:
    """Why nobody here needs EFA; empty: somebody does."""
    return rdma.unneeded(host, "efa")


def remote_write(host: Host) -> Answer:
    """The one capability that older instances' EFA lacks."""
    if host.recorded:
        return not_needed("a recorded tree is judged")
    told = {device.name: device.efa for device in host.discover().devices}
    asked = {nic.name: told.get(nic.name) for nic in rdma.nics(host, "efa")}
    needed = "EFA that writes remote memory: p5, p5e, p5en, p6 and later instances"
    unclear = [name for name, efa in asked.items() if efa is None]
    without = [name for name, efa in asked.items() if efa is not None and _WRITE not in efa.capabilities]
    if without:
        return missing(f"{rdma.listed(without)} cannot", needed, "use such an instance, or UCCL_EP_TRANSPORT=tcp")
    if unclear or not asked:
        return unknown(f"not known of {rdma.listed(unclear) or 'any'}", needed, install("rdma"))
    return ok(f"{rdma.listed(list(asked))} can", needed)


_PARTS = (
    ("devices", rdma.devices),
    ("library", rdma.library),
    ("device files", rdma.device_files),
    ("ports", rdma.ports),
    ("addresses", rdma.addresses),
    ("distance", rdma.distance),
)
CHECKS = (
    *(Check("efa", name, partial(part, "efa")) for name, part in _PARTS),
    Check("efa", "remote write", remote_write),
    Check("efa", "GPU memory", gpu_memory.registration),
    Check("efa", "locked memory", limits.locked_memory),
)
