"""Path tcp: our own network between hosts, which needs no more than an address that other hosts reach."""

from __future__ import annotations

import ipaddress
import socket

from uccl_ep.fabric.facts import host_address
from uccl_ep.tools.doctor import limits
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, ok, slow

_USUAL_MTU = 1500


def address(host: Host) -> Answer:
    """Where other hosts reach this one."""
    chosen, why = host_address(host.settings, host.networks())
    needed = "an address of this host that the job's other hosts reach"
    own = _interfaces(host)
    if chosen not in own:
        there = ", ".join(own) or "none"
        fix = f"set UCCL_EP_INTERFACE to an address of this host: {there}"
        return missing(f"{chosen} ({why}) is no address of this host", needed, fix)
    if ipaddress.ip_address(chosen).is_loopback:
        others = [a for a in own if not ipaddress.ip_address(a).is_loopback]
        fix = f"set UCCL_EP_INTERFACE to one of {', '.join(others)}" if others else "docker run --network=host"
        return slow(f"{chosen} ({why}): ranks of other hosts do not reach it", needed, fix)
    return ok(f"{chosen} on {own[chosen]} ({why})", needed)


def _interfaces(host: Host) -> dict[str, str]:
    """The name of the interface of each address."""
    return {str(ipaddress.ip_interface(text).ip): name for name, texts in host.networks().items() for text in texts}


def listening(host: Host) -> Answer:
    """A listener on that address, as every rank opens one."""
    chosen, _ = host_address(host.settings, host.networks())
    family = socket.AF_INET6 if ":" in chosen else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((chosen, 0))
            listener.listen(1)
            port = listener.getsockname()[1]
    except OSError as error:
        return missing(
            f"{chosen}: {error.strerror or error}", "a listener on any free port", "let the container open sockets"
        )
    return ok(f"{chosen} port {port} could be opened")


def link(host: Host) -> Answer:
    """Speed and packet size of the interface; both bound what tcp can carry."""
    chosen, _ = host_address(host.settings, host.networks())
    name = _interfaces(host).get(chosen, "")
    folder = f"{host.sys}/class/net/{name}"
    mtu, speed = _number(host, f"{folder}/mtu"), _number(host, f"{folder}/speed")
    rate = f"{speed / 1000:g} Gb/s" if speed > 0 else "an unknown speed"
    shown = f"{name or chosen}: MTU {mtu or 'unknown'}, {rate}"
    if 0 < mtu < _USUAL_MTU:
        return slow(shown, f"MTU {_USUAL_MTU}, better 9000", f"ip link set dev {name} mtu {_USUAL_MTU} (as root)")
    return ok(shown, f"MTU {_USUAL_MTU}, better 9000")


def _number(host: Host, path: str) -> int:
    try:
        return int(host.text(path))
    except (OSError, ValueError):  # the kernel refuses to tell the speed of virtual interfaces
        return 0


CHECKS = (
    Check("tcp", "address", address),
    Check("tcp", "listening", listening),
    Check("tcp", "link", link),
    Check("tcp", "open files", limits.open_files),
)
