"""The machine that a number comes from: figures without it are rumours."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cache_bytes() -> dict[str, int]:
    """Size of each cache that the first core sees, by level ("L2"); empty where the system does not tell."""
    found: dict[str, int] = {}
    units = {"K": 1 << 10, "M": 1 << 20}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
            found["L" + (folder / "level").read_text().strip()] = int(size[:-1]) * units[size[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return found


def fingerprint() -> dict[str, Any]:
    """Processor, cores that this process may use, caches, memory, kernel, load, and versions."""
    import numpy
    import psutil
    import torch

    import uccl_ep

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cache_bytes": cache_bytes(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "uccl_ep": uccl_ep.__version__,
        "gpu": None,  # the kernels ran on the CPU
    }
