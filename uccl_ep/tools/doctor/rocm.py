"""Path rocm: AMD's GPUs."""

from __future__ import annotations

from uccl_ep.tools.doctor import gpu
from uccl_ep.tools.doctor.gpu_probe import VENDORS
from uccl_ep.tools.doctor.host import AMD, Host
from uccl_ep.tools.doctor.record import Answer, Check, not_needed

_MEND_DRIVER = (
    "rocminfo must work on the host; docker run --device=/dev/kfd --device=/dev/dri --group-add video "
    "--group-add render"
)


def unneeded(host: Host) -> str:
    """Why nobody here needs ROCm; empty: somebody does."""
    why = gpu.unneeded(host, "hip", AMD, VENDORS["hip"].library)
    return "no AMD GPU" if why == "no such GPU" else why


def gpus(host: Host) -> Answer:
    """AMD's GPUs."""
    return gpu.present(host, AMD, {} if host.recorded else host.hip)


def driver(host: Host) -> Answer:
    """AMD's runtime, by its own version, and the kernel's driver behind it."""
    told = {} if host.recorded else host.hip
    number = int(told.get("version", 0))
    module = host.text_or(f"{host.sys}/module/amdgpu/version") or "the kernel's own"
    version = f"HIP {number // 10_000_000}.{number // 100_000 % 100}, amdgpu {module}"
    return gpu.driver(host, told, version, _MEND_DRIVER)


def device_files(host: Host) -> Answer:
    """What the runtime opens."""
    return gpu.device_files(host, [f"{host.dev}/kfd"], _MEND_DRIVER)


def software(host: Host) -> Answer:
    """torch, CuPy, hiprtc."""
    return not_needed("a recorded tree is judged") if host.recorded else gpu.software(host, host.hip)


def peer_access(host: Host) -> Answer:
    """Between this host's GPUs."""
    return not_needed("a recorded tree is judged") if host.recorded else gpu.peer_access(host, host.hip)


CHECKS = (
    Check("rocm", "GPUs", gpus),
    Check("rocm", "driver", driver),
    Check("rocm", "device files", device_files),
    Check("rocm", "torch, CuPy, hiprtc", software),
    Check("rocm", "peer access", peer_access),
    Check("rocm", "kernel cache", gpu.kernel_cache),
)
