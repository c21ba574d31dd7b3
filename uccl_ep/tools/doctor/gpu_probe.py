"""Asks a vendor's GPU driver what is there, in a process of its own: `python -m uccl_ep.tools.doctor.gpu_probe cuda`.

A driver that hangs or crashes must end the question, not the doctor. The answer is one line of JSON. Nothing is left on
a GPU: no context is made, except by the last question (whether our own driver layer can use one).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uccl_ep.system import libnvml
from uccl_ep.system.own_python import run_module

_LIMIT_S = 120.0  # importing torch and waking eight GPUs takes 20 s on a cold machine
_TEXT_BYTES = 256
_MOST_SHOWN = 300  # characters of what a crashed child wrote


@dataclass(frozen=True)
class Vendor:
    """How a vendor's library names the same calls."""

    library: str
    prefix: str
    count: str
    version: str
    attributes: tuple[tuple[str, int], ...]  # name -> number; NVIDIA's have been fixed since they were introduced


VENDORS = {
    "cuda": Vendor(
        "libcuda.so.1",
        "cu",
        "cuDeviceGetCount",
        "cuDriverGetVersion",
        (("major", 75), ("minor", 76), ("maps_host_memory", 19), ("dmabuf", 124), ("fabric_handles", 128)),
    ),
    "hip": Vendor("libamdhip64.so", "hip", "hipGetDeviceCount", "hipDriverGetVersion", ()),
}


def run(kind: str) -> dict[str, Any]:
    """What the driver of "cuda" or "hip" says: {"version", "devices": [...], "peers": [[...]], "usable", "why"}, or
    {"error": why there is no answer}."""
    return ask_child(run_module("uccl_ep.tools.doctor.gpu_probe", kind), dict(os.environ))


def ask_child(command: Sequence[str], environment: dict[str, str], limit_s: float = _LIMIT_S) -> dict[str, Any]:
    """The JSON object on the last line that a command prints; what became of it under "error" otherwise."""
    try:
        ended = subprocess.run(list(command), capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"the GPU's driver has not answered within {limit_s:.0f} s"}
    except OSError as error:
        return {"error": f"no process could be started to ask the GPU's driver: {error}"}
    lines = ended.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip()[-_MOST_SHOWN:] or "it said nothing"
        return {"error": f"asking the GPU's driver ended with status {ended.returncode}: {said}"}
    return answer if isinstance(answer, dict) else {"error": f"asking the GPU's driver gave {answer!r}"}


def question(kind: str, library: Any, usable: Callable[[], tuple[bool, str]]) -> dict[str, Any]:
    """Asks an opened library.

    Args:
        kind: "cuda" or "hip".
        library: the vendor's, by ctypes; or a table of functions with the same names (tests).
        usable: whether our own driver layer can use a GPU, and why not.
    """
    vendor = VENDORS[kind]
    status = int(getattr(library, vendor.prefix + "Init")(ctypes.c_uint(0)))
    if status != 0:
        return {"error": f"{vendor.prefix}Init failed with {status}"}
    version, count = ctypes.c_int(), ctypes.c_int()
    getattr(library, vendor.version)(ctypes.byref(version))
    getattr(library, vendor.count)(ctypes.byref(count))
    devices = [_device(vendor, library, i) for i in range(count.value)]
    peers = [[_reaches(vendor, library, i, j) for j in range(count.value)] for i in range(count.value)]
    can, why = usable() if count.value else (False, "the driver sees no GPU")
    return {"version": version.value, "devices": devices, "peers": peers, "usable": can, "why": why}


def _device(vendor: Vendor, library: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {"index": index}
    for name, call in (("name", "DeviceGetName"), ("pci", "DeviceGetPCIBusId")):
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        getattr(library, vendor.prefix + call)(text, ctypes.c_int(_TEXT_BYTES), ctypes.c_int(index))
        found[name] = text.value.decode(errors="replace")
    found["pci"] = found["pci"].lower()
    for name, number in vendor.attributes:
        value = ctypes.c_int()
        status = library.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(index))
        found[name] = value.value if status == 0 else 0  # an older driver does not know the attribute
    return found


def _reaches(vendor: Vendor, library: Any, one: int, other: int) -> int:
    if one == other:
        return 1
    can = ctypes.c_int()
    status = getattr(library, vendor.prefix + "DeviceCanAccessPeer")(
        ctypes.byref(can), ctypes.c_int(one), ctypes.c_int(other)
    )
    return can.value if status == 0 else 0


def _usable() -> tuple[bool, str]:
    driver: Any = importlib.import_module("uccl_ep.gpu.cupy_driver")
    can, why = driver.available()
    return bool(can), str(why)


def main(arguments: Sequence[str]) -> int:
    """Prints the answer for the vendor named in `arguments`."""
    kind = arguments[0]
    try:
        answer = question(kind, ctypes.CDLL(VENDORS[kind].library), _usable)
    except OSError as error:
        answer = {"error": str(error)}
    for device in answer.get("devices", ()) if kind == "cuda" else ():
        device["domain"], device["no_domain"] = libnvml.domain_of(device["pci"])
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
