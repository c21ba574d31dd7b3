"""What the checks of both vendors' GPUs share; cuda.py and rocm.py say what differs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uccl_ep.gpu.compiler import how_to_install
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, missing, not_needed, ok, slow

ON_CPU = "UCCL_EP_DEVICE=cpu"
"""Why a GPU that may be there is not needed."""
_MOST_LISTED = 8


def unneeded(host: Host, kind: str, vendor: int, library: str) -> str:
    """Why nobody here needs this vendor's path; empty: somebody does."""
    wanted = host.settings.device
    if wanted == "cpu":
        return ON_CPU
    if wanted.startswith(kind) or host.gpus_of(vendor):
        return ""
    if host.recorded or not host.can_load(library):
        return "no such GPU"
    return ""


def present(host: Host, vendor: int, told: Mapping[str, Any]) -> Answer:
    """GPUs on PCI and as the driver names them."""
    on_pci = host.gpus_of(vendor)
    devices = told.get("devices", [])
    shown = ", ".join(f"{d['name']} {d['pci']}" for d in devices[:_MOST_LISTED]) or ", ".join(on_pci[:_MOST_LISTED])
    if not on_pci and not devices:
        return missing("none", "a GPU", "install one, or unset UCCL_EP_DEVICE")
    count = f"{len(devices) or len(on_pci)} GPU(s): {shown}"
    if devices and len(devices) < len(on_pci):
        visible = "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or the container's --gpus"
        return slow(f"{count}; PCI has {len(on_pci)}", "all GPUs that the job should use", f"look at {visible}")
    return ok(count)


def driver(host: Host, told: Mapping[str, Any], version: str, fix: str) -> Answer:
    """The vendor's driver library."""
    if host.recorded:
        return not_needed("not asked: a recorded tree is judged")
    if "error" in told:
        return missing(str(told["error"]), "the GPU's driver, in this container too", fix)
    return ok(version)


def software(host: Host, told: Mapping[str, Any]) -> Answer:
    """torch, CuPy and the compiler: what `device="auto"` goes by."""
    if "error" in told:
        return not_needed("the GPU's driver has given no answer")
    why = str(told.get("why", ""))
    if not told.get("usable"):
        return missing(why, "torch and CuPy for this vendor, and a GPU that kernels know", how_to_install())
    return ok(why)


def peer_access(host: Host, told: Mapping[str, Any]) -> Answer:
    """Whether GPUs of this host reach each other's memory: ranks of a node load each other's rows."""
    devices, peers = told.get("devices", []), told.get("peers", [])
    if len(devices) < 2:
        return not_needed("fewer than two GPUs")
    closed = [f"{i}-{j}" for i, row in enumerate(peers) for j, can in enumerate(row) if i < j and not can]
    needed = "every GPU reaches every other's memory (NVLink, xGMI, or PCIe without ACS in the way)"
    if closed:
        shown = f"GPUs {', '.join(closed[:_MOST_LISTED])}{' and more' if len(closed) > _MOST_LISTED else ''} do not"
        fix = (
            "start the NVLink fabric's service (nvidia-fabricmanager); PCIe: switch ACS off, or iommu=pt; "
            "or set UCCL_EP_RANKS_PER_NODE=1"
        )
        return slow(shown, needed, fix)
    return ok(f"all {len(devices)} reach each other", needed)


def device_files(host: Host, paths: list[str], fix: str) -> Answer:
    """Files of the driver that a container lacks unless it is told."""
    if host.recorded:
        return not_needed("a recorded tree has no device files")
    closed = [path for path in paths if not host.may_use(path)]
    needed = "device files that this user may read and write"
    return missing(f"closed: {', '.join(closed)}", needed, fix) if closed else ok(", ".join(paths), needed)


def kernel_cache(host: Host) -> Answer:
    """Where compiled kernels are kept between starts."""
    base = host.environment.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    folder = Path(host.settings.cache_dir or f"{base}/uccl-ep")  # as gpu/cache.py has it, without making it
    parent = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    needed = "a folder that this user may write"
    if not host.may_use(str(parent)):
        fix = "set UCCL_EP_CACHE_DIR to a writable folder, best one that all hosts share; then uccl-ep warmup"
        return slow(f"{folder} cannot be written: every start compiles again", needed, fix)
    kept = len(list(folder.glob("*"))) if folder.is_dir() else 0
    return ok(f"{folder}, {kept} file(s); uccl-ep warmup fills it", needed)
