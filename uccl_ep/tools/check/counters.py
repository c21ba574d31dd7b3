"""What a port and its network interface say of themselves: state, and everything that they count.

Files of sysfs, and the driver's own statistics as `ethtool -S` has them, by its call. What cannot be read is absent.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_ETHTOOL, _SET_SIZES, _STRINGS, _STATISTICS, _OF_STATISTICS = 0x8946, 0x37, 0x1B, 0x1D, 1  # linux/ethtool.h
_NAME_BYTES = 32

Statistics = Mapping[str, int]


@dataclass(frozen=True)
class PortState:
    """A port, or an interface that is no RDMA device's, at one moment.

    Attributes:
        name: "mlx5_0:1", or the interface's. interface: empty where there is none (InfiniBand). driver: the kernel's.
        link: "InfiniBand", "Ethernet", or "" (not known). state: "ACTIVE", "up", ...
        gbps, mtu: 0 where not known. ecn: "roce_np/3": whether answers to marks are on for priority 3, and so on.
        counters: by name.
    """

    name: str
    interface: str = ""
    driver: str = ""
    link: str = ""
    state: str = ""
    gbps: float = 0.0
    mtu: int = 0
    ecn: Mapping[str, bool] = field(default_factory=dict)
    counters: Statistics = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For the other end."""
        return asdict(self)

    def since(self, before: PortState) -> dict[str, int]:
        """What has grown, by name."""
        grown = {name: value - before.counters.get(name, 0) for name, value in self.counters.items()}
        return {name: more for name, more in grown.items() if more > 0}


def read_port(
    device: str, port: int, sys: str = "/sys", statistics: Callable[[str], Statistics] | None = None
) -> PortState:
    """A port of an RDMA device."""
    folder = f"{sys}/class/infiniband/{device}/ports/{port}"
    netdevs = _names(f"{folder}/gid_attrs/ndevs")
    interface = next((text for name in netdevs if (text := _text(f"{folder}/gid_attrs/ndevs/{name}"))), "")
    link = _text(f"{folder}/link_layer")
    counted = {**_numbers(f"{folder}/counters"), **_numbers(f"{folder}/hw_counters")}
    own = _interface(interface, sys, statistics) if interface else PortState("")
    rate = _text(f"{folder}/rate").split()
    return PortState(
        name=f"{device}:{port}",
        interface=interface,
        driver=os.path.basename(_link(f"{sys}/class/infiniband/{device}/device/driver")),
        link=link,
        state=_text(f"{folder}/state").partition(":")[2].strip(),
        gbps=float(rate[0]) if rate and rate[0].replace(".", "", 1).isdecimal() else 0.0,
        mtu=own.mtu,
        ecn=own.ecn,
        counters={**own.counters, **counted},
    )


def read_interface(
    interface: str, sys: str = "/sys", statistics: Callable[[str], Statistics] | None = None
) -> PortState:
    """A network interface, for tcp."""
    return _interface(interface, sys, statistics)


def _interface(name: str, sys: str, statistics: Callable[[str], Statistics] | None) -> PortState:
    folder = f"{sys}/class/net/{name}"
    read = ethtool_statistics if statistics is None else statistics
    mtu, speed = _text(f"{folder}/mtu"), _text(f"{folder}/speed")
    ecn = {
        f"{side}/{priority}": _text(f"{folder}/ecn/{side}/enable/{priority}") == "1"
        for side in ("roce_np", "roce_rp")
        for priority in _names(f"{folder}/ecn/{side}/enable")
    }
    return PortState(
        name=name,
        interface=name,
        driver=os.path.basename(_link(f"{folder}/device/driver")),
        link="Ethernet",
        state=_text(f"{folder}/operstate"),
        gbps=int(speed) / 1000 if speed.isdecimal() else 0.0,
        mtu=int(mtu) if mtu.isdecimal() else 0,
        ecn=ecn,
        counters={**_numbers(f"{folder}/statistics"), **read(name)},
    )


def ethtool_statistics(interface: str) -> dict[str, int]:
    """The driver's statistics of an interface by name; none where it has none, or does not tell."""
    name = interface.encode()
    if not 0 < len(name) < 16:
        return {}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:

            def ask(request: bytes) -> bytes:
                buffer = array.array("B", request)
                address, _ = buffer.buffer_info()
                fcntl.ioctl(asked, _ETHTOOL, struct.pack("16sP", name, address))
                return buffer.tobytes()

            sizes = ask(struct.pack("=IIQI", _SET_SIZES, 0, 1 << _OF_STATISTICS, 0))
            count = struct.unpack_from("=I", sizes, 16)[0] if struct.unpack_from("=Q", sizes, 8)[0] else 0
            if not 0 < count < 1 << 16:
                return {}
            names = ask(struct.pack("=III", _STRINGS, _OF_STATISTICS, count) + bytes(_NAME_BYTES * count))[12:]
            values = struct.unpack_from(f"={count}Q", ask(struct.pack("=II", _STATISTICS, count) + bytes(8 * count)), 8)
    except OSError:
        return {}
    texts = [names[i * _NAME_BYTES : (i + 1) * _NAME_BYTES].split(b"\0")[0] for i in range(count)]
    return {text.decode("ascii", "replace").strip(): value for text, value in zip(texts, values, strict=True)}


def _numbers(folder: str) -> dict[str, int]:
    found = {name: _text(f"{folder}/{name}") for name in _names(folder) if name != "lifespan"}
    return {name: int(text) for name, text in found.items() if text.isdecimal()}


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""  # some files of ports and interfaces that are down cannot be read


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
