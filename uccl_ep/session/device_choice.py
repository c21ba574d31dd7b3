"""Which processor a Buffer's kernels run on, and why."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uccl_ep.device.cores import cores_allowed, kernel_threads
from uccl_ep.device.cpu import CpuDevice
from uccl_ep.device.protocol import Device
from uccl_ep.errors import NotSupported, refuse

if TYPE_CHECKING:
    from uccl_ep.gpu.driver import Driver
    from uccl_ep.session.session import Session

_NAMES = re.compile(r"auto|cpu|(cuda|hip)(:\d+)?")


@dataclass(frozen=True)
class Choice:
    """A processor: the CPU, or a GPU with everything that its kernels need."""

    driver: Driver | None
    kernels: Any  # uccl_ep.gpu.kernels.KernelLibrary of the driver
    reason: str


def choose_device(argument: str | None, environment: str) -> Choice:
    """What `device=` of Buffer, else UCCL_EP_DEVICE, asks for. On a GPU all kernels are loaded when this returns.

    Args:
        argument: "auto", "cpu", "cuda", "cuda:1", "hip", "hip:0", or None: what the environment says.
        environment: the same, from UCCL_EP_DEVICE.

    Raises:
        InvalidArgument: another name.
        NotSupported: a GPU was asked for by name and cannot be used; says why.
        UcclEpError: its kernels cannot be compiled or loaded.
    """
    asked = "device" if argument is not None else "UCCL_EP_DEVICE"
    wanted = str(argument) if argument is not None else environment
    if not _NAMES.fullmatch(wanted):
        refuse(asked, wanted, "auto, cpu, cuda, cuda:N, hip or hip:N")
    if wanted == "cpu":
        return Choice(None, None, f"{asked}=cpu")
    cupy_driver = importlib.import_module("uccl_ep.gpu.cupy_driver")
    usable, why = cupy_driver.available()
    if not usable and wanted == "auto":
        return Choice(None, None, f"no GPU can be used: {why}")
    if not usable:
        raise NotSupported(f"{asked}={wanted}: no GPU can be used: {why}")
    from uccl_ep.gpu.driver import refuse_unmapped
    from uccl_ep.gpu.kernels import library

    driver: Driver = cupy_driver.open_driver(None if wanted == "auto" else wanted)
    refuse_unmapped(driver)
    reason = "a GPU can be used" if wanted == "auto" else f"{asked}={wanted}"
    return Choice(driver, library(driver), reason)


def make_device(choice: Choice, session: Session) -> Device:
    """The device of a session's rank."""
    if choice.driver is None:
        settings = session.settings
        if settings.host_threads == 0:
            ranks = session.hosts.count(session.hosts[session.rank])
            settings = replace(settings, host_threads=kernel_threads(cores_allowed(), ranks, settings.proxy_threads))
        return CpuDevice(settings, session.check, session.note, session.regions.arena)
    from uccl_ep.gpu.device import GpuDevice

    return GpuDevice(choice.driver, choice.kernels, session)


def kind_of(driver: Driver | None) -> str:
    """What kernels run on: cpu, cuda or hip; the same on all ranks of a group."""
    return "cpu" if driver is None else "hip" if driver.facts.arch.startswith("gfx") else "cuda"


def gpu_facts(driver: Driver | None) -> dict[str, Any]:
    """What an Hello says of a GPU; nothing without one."""
    if driver is None:
        return {}
    facts = driver.facts
    return {
        "device": kind_of(driver),
        "gpu": facts.identity,
        "num_sms": facts.num_sms,
        "exportable": int(facts.can_export),
        "domain": facts.domain,
        "domain_reason": "" if facts.domain else facts.domain_reason,
    }
