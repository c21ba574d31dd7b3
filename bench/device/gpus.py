"""GPUs of the time model: latencies and rates, each with its source or marked as an assumption."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU and its links. Latencies are microseconds of one unloaded access, rates 10^9 bytes a second.

    Attributes:
        copy_gb_per_s: read plus written of a plain device copy.
        link_gb_per_s: one way, to all GPUs of its node together.
        sm_gb_per_s: that one processor reads and writes.
        near_us, line_us, memory_us, peer_us, host_us: L1, L2, device memory, a peer's memory, pinned host memory.
        fence_us: a release to the system, with stores on their way.
        launch_us: the two ends of a kernel (`time_model.py`).
    """

    name: str
    sms: int
    copy_gb_per_s: float
    link_gb_per_s: float
    sm_gb_per_s: float
    near_us: float
    line_us: float
    memory_us: float
    peer_us: float = 1.0
    host_us: float = 1.2
    fence_us: float = 0.7
    launch_us: float = 2.0


# *Given*: rates of memory and links are the vendors' data sheets; a plain copy is assumed to reach 90 % of the former,
# loads of rows 80 % of the latter. H800's 160 GB/s is what DeepEP's docs/legacy.md calls its NVLink maximum.
# *Given, quoted from memory*: Hopper's L1 40.7, L2 263 and memory 478.8 cycles, pointer chases at up to 1.755 GHz
# ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499); the same for H200. B200's L1
# 19.6 ns and L2 150 ns (chipsandcheese.com, "Nvidia's B200").
# *Measured*, on an H100 (`results/h100`): 29 GB/s that one processor moves, read and written, in throughput dispatch
# with 20, 40 and 80 of them busy; before, 64 were assumed. *Assumed*: the same for B200, half for MI300X.
# *Assumed*, since no source that measured it was found: MI300X's latencies, and B200's memory, a tenth above Hopper's
# for its second die; a load from a peer over NVLink or xGMI 1.0 us, a read of the host over PCIe 1.2 us, a system fence
# 0.7 us, 2 us for the two ends of a launch.
_HOPPER = {"sm_gb_per_s": 29.0, "near_us": 0.023, "line_us": 0.150, "memory_us": 0.273}
H800 = Gpu("H800", 132, 0.9 * 3350, 160.0, **_HOPPER)
H100 = Gpu("H100", 132, 0.9 * 3350, 0.8 * 450, **_HOPPER)
H200 = Gpu("H200", 132, 0.9 * 4800, 0.8 * 450, **_HOPPER)
B200 = Gpu("B200", 148, 0.9 * 8000, 0.8 * 900, 29.0, 0.020, 0.150, 0.300)
MI300X = Gpu("MI300X", 304, 0.9 * 5300, 0.8 * 448, 14.5, 0.060, 0.120, 0.350)
GPUS = {gpu.name: gpu for gpu in (H800, H100, H200, B200, MI300X)}


def gpu_named(name: str) -> Gpu | None:
    """The GPU of the table whose name is in a driver's name for it."""
    return next((gpu for short, gpu in GPUS.items() if short in name), None)
