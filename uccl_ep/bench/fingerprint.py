"""The machine that a number comes from, and the versions that were loaded: figures without these are rumours."""

from __future__ import annotations

import os
import platform
import time
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


def fingerprint() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, kernel, load, and loaded versions."""
    import numpy
    import psutil
    import torch

    import uccl_ep

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "uccl_ep": uccl_ep.__version__,
        "gpu": None,  # the kernels ran on the CPU
    }
