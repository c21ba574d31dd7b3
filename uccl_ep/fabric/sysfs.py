"""GPUs, NICs, their ports and how PCIe joins them, read from sysfs.

The root is a parameter, so that recorded trees of other machines are read by the same code. Nothing here fails: what a
container hides is recorded in `Machine.unreadable` and stands as "not known" in the result.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field

UNKNOWN_NUMA = -1
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NVIDIA, _AMD, _AMAZON = 0x10DE, 0x1002, 0x1D0F
_GPU_CLASSES = {0x0300, 0x0302, 0x0380, 0x1200}  # VGA, 3D, other display, processing accelerator
_IWARP = "4"  # node_type of an RNIC
_IB_OVERHEAD_BYTES = 96  # what the kernel takes off an Ethernet MTU before it picks the RDMA one (iboe_get_mtu)


@dataclass(frozen=True)
class PciFunction:
    """Where a device is on PCIe.

    Attributes:
        address: domain:bus:device.function, lower case.
        chain: from the host bridge ("pci0000:00") over every bridge down to the address itself.
        numa_node: UNKNOWN_NUMA where the firmware does not say.
    """

    address: str
    chain: tuple[str, ...]
    numa_node: int = UNKNOWN_NUMA


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table. `kind` is "v1" (InfiniBand or RoCE v1) or "v2" (RoCE v2)."""

    index: int
    address: str
    kind: str
    netdev: str = ""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address it stands for: IPv4 where it is one that was mapped."""
        six = ipaddress.IPv6Address(self.address)
        return six.ipv4_mapped or six


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device. `link_layer` as sysfs has it: InfiniBand, Ethernet, or Unknown (EFA).

    Attributes:
        rate_gbps: gigabits a second, 0 when not known. mtu: bytes of an RDMA packet, 0 when sysfs does not tell.
    """

    number: int
    state: str
    link_layer: str
    rate_gbps: float = 0.0
    lid: int = 0
    mtu: int = 0
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class Nic:
    """A device that moves memory: an RDMA device of the kernel, or a Slingshot one.

    Attributes:
        kind: "efa", "cxi", "iwarp" or "verbs".
        driver: the kernel's, such as mlx5_core; empty where there is no PCI device behind it (soft-RoCE).
        pci: None for a software device.
    """

    name: str
    kind: str
    driver: str = ""
    pci: PciFunction | None = None
    ports: tuple[Port, ...] = ()
    firmware: str = ""

    @property
    def software(self) -> bool:
        """It is made of the kernel's own network stack."""
        return self.pci is None and self.kind == "verbs"


@dataclass(frozen=True)
class Machine:
    """What sysfs says; each list ordered by PCI address, then name. `unreadable`: "path: why"."""

    gpus: tuple[PciFunction, ...] = ()
    nics: tuple[Nic, ...] = ()
    cpus_of_node: tuple[tuple[int, frozenset[int]], ...] = ()
    unreadable: tuple[str, ...] = ()

    def nic(self, name: str) -> Nic | None:
        """The NIC of that name."""
        return next((nic for nic in self.nics if nic.name == name), None)

    def numa_of(self, cpus: frozenset[int]) -> int:
        """The NUMA node that holds all of these CPUs; UNKNOWN_NUMA when several do."""
        return next((node for node, own in self.cpus_of_node if cpus and cpus <= own), UNKNOWN_NUMA)


def read_machine(root: str = "/sys") -> Machine:
    """What the tree at `root` tells of this machine."""
    reader = _Reader(root)
    nics = [reader.rdma_nic(name) for name in reader.names("class/infiniband")]
    nics += [reader.cxi_nic(name) for name in reader.names("class/cxi")]
    gpus = filter(None, map(reader.gpu, reader.names("bus/pci/devices")))
    return Machine(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.address)),
        nics=tuple(sorted(nics, key=lambda nic: (nic.pci.address if nic.pci else "~", nic.name))),
        cpus_of_node=tuple(reader.numa_nodes()),
        unreadable=tuple(reader.unreadable),
    )


def read_pci(address: str, root: str = "/sys") -> PciFunction | None:
    """The PCI function with that address, as a GPU's driver writes it; None where it cannot be seen."""
    wanted = normal_address(address)
    found = _Reader(root).pci(f"bus/pci/devices/{wanted}") if wanted else None
    return found if found is not None and found.address == wanted else None


def normal_address(address: str) -> str:
    """A PCI address as sysfs writes it; empty when it is none. Drivers write upper case, and domains of 8 digits."""
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", address.strip().lower())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


@dataclass
class _Reader:
    root: str
    unreadable: list[str] = field(default_factory=list)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(os.path.join(self.root, folder)))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._hidden(folder, error)
            return []

    def text(self, path: str, default: str = "") -> str:
        """A file's contents; a missing file is `default` without a word, one that cannot be read is recorded."""
        try:
            with open(os.path.join(self.root, path), encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return default
        except OSError as error:
            self._hidden(path, error)
            return default

    def number(self, path: str, default: int) -> int:
        try:
            return int(self.text(path) or str(default), 0)
        except ValueError:
            return default

    def _hidden(self, path: str, error: OSError) -> None:
        self.unreadable.append(f"{path}: {error.strerror or error}")

    def pci(self, link: str) -> PciFunction | None:
        """The PCI function behind a `device` link; None for a virtual device."""
        path = os.path.realpath(os.path.join(self.root, link))
        if not os.path.isdir(path):
            return None
        parts = path.split(os.sep)
        first = next((i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), None)
        if first is None:
            return None
        chain = [parts[first], *(part for part in parts[first + 1 :] if _ADDRESS.fullmatch(part))]
        if len(chain) < 2:
            return None
        numa = self.number(os.path.relpath(os.path.join(path, "numa_node"), self.root), UNKNOWN_NUMA)
        return PciFunction(chain[-1], tuple(chain), max(numa, UNKNOWN_NUMA))

    def gpu(self, name: str) -> PciFunction | None:
        folder = f"bus/pci/devices/{name}"
        if self.number(f"{folder}/vendor", 0) not in (_NVIDIA, _AMD):
            return None
        return self.pci(folder) if self.number(f"{folder}/class", 0) >> 8 in _GPU_CLASSES else None

    def numa_nodes(self) -> list[tuple[int, frozenset[int]]]:
        numbers = [int(name[4:]) for name in self.names("devices/system/node") if re.fullmatch(r"node\d+", name)]
        return [(n, _cpus(self.text(f"devices/system/node/node{n}/cpulist"))) for n in sorted(numbers)]

    def rdma_nic(self, name: str) -> Nic:
        folder = f"class/infiniband/{name}"
        pci = self.pci(f"{folder}/device")
        driver = self._driver(f"{folder}/device")
        efa = driver == "efa" or (not driver and self.number(f"{folder}/device/vendor", 0) == _AMAZON)
        kind = "efa" if efa else "iwarp" if self.text(f"{folder}/node_type").startswith(_IWARP) else "verbs"
        numbers = [int(port) for port in self.names(f"{folder}/ports") if port.isdecimal()]
        ports = tuple(self._port(f"{folder}/ports/{number}", number) for number in sorted(numbers))
        return Nic(name, kind, driver, pci, ports, self.text(f"{folder}/fw_ver"))

    def cxi_nic(self, name: str) -> Nic:
        folder = f"class/cxi/{name}"
        state = "ACTIVE" if self.text(f"{folder}/device/port/link", "up").lower() in ("up", "1") else "DOWN"
        port = Port(1, state, "Slingshot", _rate(self.text(f"{folder}/device/port/speed")))
        return Nic(name, "cxi", self._driver(f"{folder}/device"), self.pci(f"{folder}/device"), (port,))

    def _driver(self, device: str) -> str:
        link = os.path.join(self.root, device, "driver")
        return os.path.basename(os.path.realpath(link)) if os.path.islink(link) else ""

    def _port(self, folder: str, number: int) -> Port:
        state = self.text(f"{folder}/state", "unknown").partition(":")[2].strip() or "unknown"
        gids = tuple(self._gids(folder))
        netdevs = {gid.netdev for gid in gids if gid.netdev}
        mtu = max((self.number(f"class/net/{name}/mtu", 0) for name in netdevs), default=0)
        return Port(
            number=number,
            state=state,
            link_layer=self.text(f"{folder}/link_layer", "Unknown"),
            rate_gbps=_rate(self.text(f"{folder}/rate")),
            lid=self.number(f"{folder}/lid", 0),
            mtu=rdma_mtu(mtu) if netdevs else 0,
            gids=gids,
        )

    def _gids(self, folder: str) -> list[Gid]:
        found = []
        for name in sorted((n for n in self.names(f"{folder}/gids") if n.isdecimal()), key=int):
            address = self.text(f"{folder}/gids/{name}")
            try:
                if int(ipaddress.IPv6Address(address)) == 0:
                    continue  # an entry that nobody has filled
            except ValueError:
                continue
            # The kernel answers EINVAL for entries without a type or a netdev: EFA has neither.
            kind = "v2" if "v2" in self._quiet(f"{folder}/gid_attrs/types/{name}").lower() else "v1"
            netdev = self._quiet(f"{folder}/gid_attrs/ndevs/{name}")
            found.append(Gid(int(name), str(ipaddress.IPv6Address(address)), kind, netdev))
        return found

    def _quiet(self, path: str) -> str:
        before = len(self.unreadable)
        text = self.text(path)
        del self.unreadable[before:]
        return text


def rdma_mtu(ethernet_mtu: int) -> int:
    """The RDMA MTU, in bytes, that fits into an Ethernet one; 0 when none does."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size + _IB_OVERHEAD_BYTES <= ethernet_mtu), default=0)


def _rate(text: str) -> float:
    """Gb/s of "400 Gb/sec (4X NDR)" or "BS_200G"; 0 when there is none."""
    match = re.search(r"(\d+(?:\.\d+)?)\s*G", text)
    return float(match[1]) if match else 0.0


def _cpus(text: str) -> frozenset[int]:
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
