"""What this machine's RDMA devices are: ports, link layers, GID tables, limits, and what EFA says of itself.

pyverbs is asked where it is installed. Without it, or where it finds no device, sysfs tells the most of it; `Discovery`
says which of the two spoke and why. Nothing here opens a queue pair, and nothing raises for want of hardware.
"""

from __future__ import annotations

import importlib
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/class/infiniband")
_MOST_GIDS = 1024  # entries of a port's table that are looked at
_EFA_VENDOR = 0x1D0F
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}  # enum IBV_LINK_LAYER
_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}  # enum ibv_port_state
_PHYSICAL = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp"}
_GID_TYPES = {0: "InfiniBand", 1: "RoCE v1", 2: "RoCE v2"}  # enum ibv_gid_type
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # enum ibv_mtu
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}  # of a port's active_width
_LANE_GBPS = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}
_LIMITS = ("max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_mr_size", "max_srq", "max_srq_wr")


@dataclass(frozen=True)
class GidEntry:
    """One address in a port's GID table.

    Attributes:
        gid: eight groups of four hexadecimal digits.
        type: "InfiniBand", "RoCE v1" or "RoCE v2".
        netdev: the network interface it belongs to; empty where it has none.
    """

    index: int
    gid: str
    type: str
    netdev: str = ""

    @property
    def ipv4(self) -> str:
        """The IPv4 address that it maps; empty: none."""
        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return str(mapped) if mapped else ""

    @property
    def link_local(self) -> bool:
        """It reaches the same link only (fe80::/10)."""
        return ipaddress.IPv6Address(self.gid).is_link_local


@dataclass(frozen=True)
class VerbsPort:
    """One port of a device.

    Attributes:
        number: from 1 on. state: "ACTIVE" when it can be used.
        link_layer: "InfiniBand", "Ethernet" (RoCE), or "Unspecified" (EFA).
        active_mtu, max_mtu: bytes of payload in a packet; 0: unknown (sysfs does not tell).
        lid: InfiniBand's local address. gbps: of all its lanes; 0.0: unknown.
    """

    number: int
    state: str
    physical_state: str
    link_layer: str
    lid: int
    gbps: float
    gids: tuple[GidEntry, ...]
    active_mtu: int = 0
    max_mtu: int = 0


@dataclass(frozen=True)
class EfaAttributes:
    """What EFA's own query says (efadv_query_device); sizes in bytes."""

    max_sq_wr: int
    max_rq_wr: int
    max_sq_sge: int
    max_rq_sge: int
    inline_bytes: int
    max_rdma_bytes: int
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class VerbsDevice:
    """One RDMA device.

    Attributes:
        limits: what the device allows, by libibverbs' names such as "max_qp"; empty: unknown (sysfs does not tell).
        efa: None where the device is none, or could not be asked.
    """

    name: str
    node_guid: str
    node_type: str
    fw_version: str
    ports: tuple[VerbsPort, ...]
    limits: tuple[tuple[str, int], ...] = ()
    efa: EfaAttributes | None = None

    def limit(self, name: str) -> int | None:
        """A limit by its name; None: unknown."""
        return dict(self.limits).get(name)


@dataclass(frozen=True)
class Discovery:
    """All devices, by name, and how they were found.

    Attributes:
        source: "pyverbs" or "sysfs". reason: why it was that one.
        problems: entries that could not be read, in words.
    """

    devices: tuple[VerbsDevice, ...]
    source: str
    reason: str
    problems: tuple[str, ...] = ()


def discover(sysfs: Path = SYSFS, load: Callable[[str], Any] = importlib.import_module) -> Discovery:
    """The RDMA devices of this machine, or of a recorded `sysfs` folder.

    Args:
        sysfs: what lies at /sys/class/infiniband.
        load: imports a module of pyverbs by its name.
    """
    problems: list[str] = []
    try:
        device = load("pyverbs.device")
    except ImportError as error:
        return _from_sysfs(sysfs, f"pyverbs cannot be imported ({error})", problems)
    try:
        listed = list(device.get_device_list())
    except Exception as error:  # pyverbs has no common class for "no RDMA in this kernel"
        return _from_sysfs(sysfs, f"pyverbs finds no device ({error})", problems)
    if not listed:
        return _from_sysfs(sysfs, "pyverbs finds no device that this process may open", problems)
    found = []
    for entry in listed:
        name = entry.name.decode()
        try:
            found.append(_ask_device(device, load, name, str(entry.node_type), problems))
        except Exception as error:
            problems.append(f"{name}: pyverbs cannot open or query it ({error})")
            found += [d for d in _from_sysfs(sysfs, "", problems).devices if d.name == name]
    return Discovery(_sorted(found), "pyverbs", "pyverbs is installed and finds devices", tuple(problems))


def _sorted(devices: list[VerbsDevice]) -> tuple[VerbsDevice, ...]:
    return tuple(sorted(devices, key=lambda device: device.name))


# ---- pyverbs ---------------------------------------------------------------------------------------------------------


def _ask_device(module: Any, load: Callable[[str], Any], name: str, node_type: str, problems: list[str]) -> VerbsDevice:
    with closing(module.Context(name=name)) as context:
        attributes = context.query_device()
        table = _ask_gids(context, name, problems)
        ports = tuple(_ask_port(context, number, table) for number in range(1, attributes.phys_port_cnt + 1))
        limits = tuple((limit, int(getattr(attributes, limit))) for limit in _LIMITS)
    efa = _ask_efa(load, name, problems) if attributes.vendor_id == _EFA_VENDOR else None
    types = {"1": "CA", "2": "Switch", "3": "Router", "4": "RNIC", "5": "usNIC", "6": "usNIC UDP", "7": "unspecified"}
    guid = _guid(attributes.node_guid)
    return VerbsDevice(name, guid, types.get(node_type, node_type), str(attributes.fw_version), ports, limits, efa)


def _guid(value: int) -> str:
    """libibverbs keeps it in network order, whatever this machine's is."""
    digits = value.to_bytes(8, "little").hex()
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def _ask_gids(context: Any, name: str, problems: list[str]) -> list[tuple[int, GidEntry]]:
    """(port, entry) of the device's non-empty entries."""
    try:
        entries = context.query_gid_table(_MOST_GIDS)
    except Exception as error:
        problems.append(f"{name}: its GID table cannot be read ({error})")
        return []
    found = []
    for e in entries:
        kind = _GID_TYPES.get(int(e.gid_type), f"type {e.gid_type}")
        text = e.gid_str() if callable(e.gid_str) else e.gid_str
        found.append((int(e.port_num), GidEntry(int(e.gid_index), _full(str(text)), kind, _interface(e.ndev_ifindex))))
    return found


def _interface(index: int) -> str:
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:  # it belongs to another network namespace
        return ""


def _full(gid: str) -> str:
    digits = ipaddress.IPv6Address(gid).packed.hex()
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def _ask_port(context: Any, number: int, table: list[tuple[int, GidEntry]]) -> VerbsPort:
    port = context.query_port(number)
    return VerbsPort(
        number,
        _STATES.get(port.state, f"state {port.state}"),
        _PHYSICAL.get(port.phys_state, f"state {port.phys_state}"),
        _LINK_LAYERS.get(port.link_layer, "Unspecified"),
        port.lid,
        _LANES.get(port.active_width, 0) * _LANE_GBPS.get(port.active_speed, 0.0),
        tuple(entry for of, entry in table if of == number),
        _MTU_BYTES.get(port.active_mtu, 0),
        _MTU_BYTES.get(port.max_mtu, 0),
    )


def _ask_efa(load: Callable[[str], Any], name: str, problems: list[str]) -> EfaAttributes | None:
    try:
        efadv, enums = load("pyverbs.providers.efa.efadv"), load("pyverbs.providers.efa.efa_enums")
        with closing(efadv.EfaContext(name=name)) as context:
            a = context.query_efa_device()
    except Exception as error:
        problems.append(f"{name}: EFA's own attributes cannot be read ({error})")
        return None
    prefix = "EFADV_DEVICE_ATTR_CAPS_"
    known = {n.removeprefix(prefix).lower(): int(getattr(enums, n)) for n in dir(enums) if n.startswith(prefix)}
    capabilities = tuple(sorted(n for n, bit in known.items() if a.device_caps & bit))
    return EfaAttributes(
        a.max_sq_wr, a.max_rq_wr, a.max_sq_sge, a.max_rq_sge, a.inline_buf_size, a.max_rdma_size, capabilities
    )


# ---- sysfs -----------------------------------------------------------------------------------------------------------


def _from_sysfs(root: Path, reason: str, problems: list[str]) -> Discovery:
    found = []
    for folder in _entries(root):
        ports = [_read_port(port, problems) for port in _entries(folder / "ports") if port.name.isdecimal()]
        node_type = _read(folder / "node_type", problems).partition(": ")[2]
        guid, version = _read(folder / "node_guid", problems), _read(folder / "fw_ver", [])  # rxe has no fw_ver
        found.append(VerbsDevice(folder.name, guid, node_type, version, tuple(sorted(ports, key=lambda p: p.number))))
    return Discovery(_sorted(found), "sysfs", f"{reason}; sysfs gives neither MTU nor limits", tuple(problems))


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return  # no such thing here: no device, or no port


def _read(file: Path, problems: list[str]) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        problems.append(f"{file}: {error.strerror}")
        return ""


def _read_port(folder: Path, problems: list[str]) -> VerbsPort:
    layer = _read(folder / "link_layer", problems)
    lid, rate = _read(folder / "lid", problems), _read(folder / "rate", problems).partition(" ")[0]
    try:
        number = int(lid or "0", 16)
        gbps = float(rate or "0")
    except ValueError:
        problems.append(f"{folder}: lid {lid!r} or rate {rate!r} is no number")
        number, gbps = 0, 0.0
    return VerbsPort(
        int(folder.name),
        _read(folder / "state", problems).partition(": ")[2],
        _read(folder / "phys_state", problems).partition(": ")[2],
        layer if layer in _LINK_LAYERS.values() else "Unspecified",
        number,
        gbps,
        tuple(_read_gids(folder, layer, problems)),
    )


def _read_gids(port: Path, layer: str, problems: list[str]) -> Iterator[GidEntry]:
    for file in sorted((f for f in _entries(port / "gids") if f.name.isdecimal()), key=lambda f: int(f.name)):
        text = _read(file, [])  # an unused entry may refuse to be read
        try:
            gid = _full(text)
        except ValueError:
            if text:
                problems.append(f"{file}: {text!r} is no GID")
            continue
        if not int(gid.replace(":", ""), 16):
            continue
        attributes = port / "gid_attrs"
        kind = _read(attributes / "types" / file.name, [])
        if kind != "RoCE v2":  # sysfs has one name, "IB/RoCE v1", for two things
            kind = "RoCE v1" if layer == "Ethernet" else "InfiniBand"
        yield GidEntry(int(file.name), gid, kind, _read(attributes / "ndevs" / file.name, []))
