"""The machine that figures come from, its GPU included: name, driver, CUDA, PCIe link, clocks as they were found."""

from __future__ import annotations

import platform as host
import shutil
import subprocess
from importlib import metadata
from typing import Any

from uccl_ep.tools.bench.fingerprint import fingerprint

QUERY = (
    "name",
    "uuid",
    "driver_version",
    "vbios_version",
    "memory.total",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.limit",
    "mig.mode.current",
)
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_LIMIT_S = 20


def gpu_facts() -> dict[str, str]:
    """What nvidia-smi says of the first GPU; {} with the reason under "unknown" where it says nothing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"unknown": "no nvidia-smi on the path"}
    command = [tool, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"unknown": f"nvidia-smi: {error}"}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode != 0 or len(values) != len(QUERY):
        return {"unknown": f"nvidia-smi: {(done.stderr or done.stdout).strip()[:300]}"}
    facts = dict(zip(QUERY, values, strict=True))
    facts["uuid"] = facts["uuid"][-8:]  # enough to tell two runs apart
    return facts


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine(device: str) -> dict[str, Any]:
    """The fingerprint of uccl_ep.tools.bench, and what is behind `device`."""
    import torch

    found = fingerprint()
    found["versions"] = _versions()
    found["machine"] = host.machine()
    if device == "cpu":
        return found
    found["gpu"] = gpu_facts()
    found["cuda"] = {
        "torch": torch.version.cuda or torch.version.hip,
        "arch": list(torch.cuda.get_arch_list()),
        "properties": _properties(),
    }
    return found


def _properties() -> dict[str, Any]:
    import torch

    p = torch.cuda.get_device_properties(0)
    names = ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size")
    return {name: getattr(p, name) for name in names if hasattr(p, name)}
