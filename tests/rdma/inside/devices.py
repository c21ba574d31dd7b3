"""Step: the guest's kernel and devices, and that pyverbs and sysfs tell the same of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.rdma.inside.context import Context
from tests.rdma.inside.report import Report
from tests.rdma.inside.sides import python_with_pyverbs
from uccl_ep.fabric.verbs_devices import Discovery, VerbsDevice, VerbsPort, discover

_ASK = """
import json, sys
from dataclasses import asdict
from uccl_ep.fabric.verbs_devices import discover
print(json.dumps(asdict(discover())))
"""


def run(context: Context, report: Report) -> None:
    ready = os.environ.get("UCCL_EP_GUEST_READY_S", "?")
    report.add("kernel", f"{platform.release()}, soft-RoCE ready {ready} s after its start")
    python = python_with_pyverbs()
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, cwd=Path.cwd())
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    asked = json.loads(done.stdout)
    read = discover(load=_refuse)
    for device in asked["devices"]:
        (port,) = device["ports"]
        gids = ", ".join(f"{g['index']}: {g['type']}" for g in port["gids"])
        most = dict(device["limits"]).get("max_qp", 0)
        figure = f"{port['link_layer']}, {port['state']}, MTU {port['active_mtu']}, GIDs {gids}, max_qp {most:,}"
        report.add(device["name"], figure, port["state"] == "ACTIVE" and port["active_mtu"] == 4096 and most > 1000)
    report.add("pyverbs asked, sysfs read", "the same devices, ports, GIDs", _same(asked, read))
    report.add("pyverbs comes from", f"{asked['source']} of {python}", asked["source"] == "pyverbs")


def _refuse(name: str) -> None:
    raise ImportError("left out on purpose")


def _same(asked: dict[str, object], read: Discovery) -> bool:
    """Where both tell something, it is the same."""
    devices = [_without_what_sysfs_lacks(d) for d in read.devices]
    wanted = json.loads(json.dumps([_plain(d) for d in devices]))
    mine = asked["devices"]
    assert isinstance(mine, list)
    for device in mine:
        device["limits"], device["fw_version"] = [], ""
        for port in device["ports"]:
            port["active_mtu"] = port["max_mtu"] = 0
    return bool(mine == wanted and read.source == "sysfs" and not read.problems)


def _without_what_sysfs_lacks(device: VerbsDevice) -> VerbsDevice:
    ports = tuple(replace(port, active_mtu=0, max_mtu=0) for port in device.ports)
    return replace(device, limits=(), fw_version="", ports=ports)


def _plain(value: VerbsDevice | VerbsPort) -> object:
    from dataclasses import asdict

    return asdict(value)
