"""Path cuda: NVIDIA's GPUs."""

from __future__ import annotations

from uccl_ep.tools.doctor import gpu, gpu_memory
from uccl_ep.tools.doctor.gpu_probe import VENDORS
from uccl_ep.tools.doctor.host import NVIDIA, Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, not_needed, ok, slow

_LEAST_CAPABILITY = (8, 0)  # LEAST_NVIDIA of gpu/compiler.py
_MEND_DRIVER = (
    "nvidia-smi must work on the host; docker run --gpus all (NVIDIA Container Toolkit); a GPU request in the pod"
)


def unneeded(host: Host) -> str:
    """Why nobody here needs CUDA; empty: somebody does."""
    why = gpu.unneeded(host, "cuda", NVIDIA, VENDORS["cuda"].library)
    return "no NVIDIA GPU" if why == "no such GPU" else why


def gpus(host: Host) -> Answer:
    """NVIDIA's GPUs."""
    return gpu.present(host, NVIDIA, {} if host.recorded else host.cuda)


def driver(host: Host) -> Answer:
    """libcuda, by its own version, and the kernel modules behind it."""
    told = {} if host.recorded else host.cuda
    number = int(told.get("version", 0))
    version = (
        f"CUDA {number // 1000}.{number % 1000 // 10}, {gpu_memory.open_modules(host) or 'kernel modules not seen'}"
    )
    return gpu.driver(host, told, version, _MEND_DRIVER)


def device_files(host: Host) -> Answer:
    """What the driver library opens."""
    names = ("nvidiactl", "nvidia-uvm")
    return gpu.device_files(host, [f"{host.dev}/{name}" for name in names], _MEND_DRIVER)


def capability(host: Host) -> Answer:
    """Whether kernels run on these GPUs."""
    devices = [] if host.recorded else host.cuda.get("devices", [])
    if not devices:
        return not_needed("the driver names no GPU")
    needed = "compute capability 8.0 (A100) or newer"
    old = [d["name"] for d in devices if (d.get("major", 0), d.get("minor", 0)) < _LEAST_CAPABILITY]
    shown = ", ".join(sorted({f"{d['name']} {d.get('major', 0)}.{d.get('minor', 0)}" for d in devices}))
    if old:
        return missing(shown, needed, "leave these GPUs out by CUDA_VISIBLE_DEVICES, or use UCCL_EP_DEVICE=cpu")
    return ok(shown, needed)


def software(host: Host) -> Answer:
    """torch, CuPy, NVRTC."""
    return not_needed("a recorded tree is judged") if host.recorded else gpu.software(host, host.cuda)


def peer_access(host: Host) -> Answer:
    """Between this host's GPUs."""
    return not_needed("a recorded tree is judged") if host.recorded else gpu.peer_access(host, host.cuda)


def pinned_memory(host: Host) -> Answer:
    """Rings and control words lie in host memory that kernels write."""
    devices = [] if host.recorded else host.cuda.get("devices", [])
    if not devices:
        return not_needed("the driver names no GPU")
    without = [d["name"] for d in devices if not d.get("maps_host_memory")]
    needed = "GPUs that map host memory"
    if without:
        return missing(
            f"{without[0]} does not", needed, "use the GPU outside of this virtual machine, or UCCL_EP_DEVICE=cpu"
        )
    return ok("mapped by all", needed)


def fabric_handles(host: Host) -> Answer:
    """GPU memory that ranks in other containers of an NVLink domain can open."""
    devices = [] if host.recorded else host.cuda.get("devices", [])
    if not devices:
        return not_needed("the driver names no GPU")
    if all(d.get("fabric_handles") for d in devices):
        return ok("supported by all; they also need NVIDIA's IMEX service, which a Buffer tries by itself")
    return slow(
        "not supported: CUDA IPC is used, between processes of one container",
        "fabric handles, if ranks of a node are in several containers",
        "run the ranks of a host in one container; else NVIDIA's IMEX service on NVLink switches",
    )


def nvlink_domain(host: Host) -> Answer:
    """Whether GPUs of other hosts can open these GPUs' memory, so that a rack is one node."""
    devices = [] if host.recorded else host.cuda.get("devices", [])
    if not devices:
        return not_needed("the driver names no GPU")
    without = next((d for d in devices if not d.get("domain")), None)
    if without is not None:
        return not_needed(f"GPU {without['pci']}: {without.get('no_domain') or 'the driver was not asked'}")
    domains = ", ".join(sorted({d["domain"] for d in devices}))
    return ok(f"{domains}: UCCL_EP_MNNVL=1, or allow_mnnvl=True, makes one node of its hosts")


CHECKS = (
    Check("cuda", "GPUs", gpus),
    Check("cuda", "driver", driver),
    Check("cuda", "device files", device_files),
    Check("cuda", "compute capability", capability),
    Check("cuda", "torch, CuPy, NVRTC", software),
    Check("cuda", "peer access", peer_access),
    Check("cuda", "pinned memory", pinned_memory),
    Check("cuda", "fabric handles", fabric_handles),
    Check("cuda", "NVLink domain", nvlink_domain),
    Check("cuda", "kernel cache", gpu.kernel_cache),
)
