"""Path libfabric: Slingshot, and whatever else somebody asks libfabric for by name."""

from __future__ import annotations

import ctypes
from typing import Any

from uccl_ep.tools.doctor import limits, rdma
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, no_device, ok, slow

_LIBRARY = "libfabric.so.1"
_LEAST = (1, 15)  # kOldestApi of proxy/transport/libfabric
_NO_SLINGSHOT = no_device("no Slingshot NIC")


def unneeded(host: Host) -> str:
    """Why nobody here needs libfabric; empty: somebody does."""
    return rdma.unneeded(host, "libfabric")


def library(host: Host) -> Answer:
    """The library, by the version that was loaded."""
    needed = f"{_LIBRARY}, {_LEAST[0]}.{_LEAST[1]} or newer"
    try:
        opened: Any = host.load(_LIBRARY)
    except OSError as error:
        return missing(
            str(error), needed, "apt-get install libfabric1, or dnf install libfabric; on Slingshot the vendor's"
        )
    ask = opened.fi_version
    ask.restype = ctypes.c_uint32
    number = int(ask())
    version = (number >> 16, number & 0xFFFF)
    shown = f"{version[0]}.{version[1]}, {host.loaded_from(_LIBRARY)}"
    return ok(shown, needed) if version >= _LEAST else missing(shown, needed, "install a newer libfabric")


def slingshot(host: Host) -> Answer:
    """Slingshot's NICs and their device files."""
    found = rdma.nics(host, "libfabric")
    if not found:
        provider = host.settings.provider or "the provider that libfabric finds"
        return no_device(f"no Slingshot NIC; libfabric was asked for, and uses {provider}")
    answer = rdma.devices("libfabric", host)
    closed = [] if host.recorded else [n.name for n in found if not host.may_use(f"{host.dev}/{n.name}")]
    if closed:
        fix = "docker run " + " ".join(f"--device={host.dev}/{name}" for name in closed)
        return missing(f"{host.dev}/{rdma.listed(closed)} is closed", "device files that this user may open", fix)
    return answer


def service(host: Host) -> Answer:
    """The virtual network identifier that a launcher gives to a job on Slingshot."""
    if not rdma.nics(host, "libfabric"):
        return _NO_SLINGSHOT
    vnis = host.environment.get("SLINGSHOT_VNIS", "")
    needed = "SLINGSHOT_VNIS, which the launcher sets inside of a job"
    if not vnis:
        return slow("not set", needed, "start ranks with srun (the Slurm plugin sets it), or with the site's launcher")
    return ok(f"SLINGSHOT_VNIS={vnis}", needed)


def ports(host: Host) -> Answer:
    """Slingshot's ports."""
    return rdma.ports("libfabric", host) if rdma.nics(host, "libfabric") else _NO_SLINGSHOT


def distance(host: Host) -> Answer:
    """From each GPU to its Slingshot NIC."""
    return rdma.distance("libfabric", host) if rdma.nics(host, "libfabric") else _NO_SLINGSHOT


CHECKS = (
    Check("libfabric", "library", library),
    Check("libfabric", "devices", slingshot),
    Check("libfabric", "ports", ports),
    Check("libfabric", "distance", distance),
    Check("libfabric", "job service", service),
    Check("libfabric", "locked memory", limits.locked_memory),
)
