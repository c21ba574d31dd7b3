"""Recorded machines as sysfs trees: a writer for compact descriptions, and the descriptions.

A device is named by its way from the host bridge ("0000:00/00:01.0/01:00.0/02:00.0"), as `lspci -PP` prints it. The
trees have what the kernel has where the code reads: symbolic links, the words of each file, EINVAL-like gaps.

Sources: aws-ofi-nccl's recorded topologies of p5, p5en and p6-b200; NVIDIA's DGX H100 user guide (network modules);
AMD's system acceptance guide (MI300X); rdma_rxe on Debian 12. Bus numbers of parts that those do not print go on in the
same pattern.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA, AMD, AMAZON, MELLANOX, BROADCOM, CRAY = "0x10de", "0x1002", "0x1d0f", "0x15b3", "0x14e4", "0x17db"
V2, V1 = "RoCE v2", "IB/RoCE v1"
IDLE = "0000:20/20:01.0/21:00.0"
_shared = tempfile.TemporaryDirectory(prefix="uccl-ep-recorded-")
_trees: dict[str, str] = {}  # roots by description


@dataclass
class Gid:
    index: int
    address: str
    kind: str = V2
    netdev: str = ""


@dataclass
class Nic:
    name: str
    way: str = ""  # empty: a software device
    numa: int = -1
    driver: str = "mlx5_core"
    vendor: str = MELLANOX
    layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    state: str = "4: ACTIVE"
    lid: int = 0
    gids: Sequence[Gid] = ()
    num_ports: int = 1
    node_type: str = "1: CA"


@dataclass
class Gpu:
    way: str
    numa: int = -1
    vendor: str = NVIDIA
    pci_class: str = "0x030200"

    @property
    def address(self) -> str:
        return self.way[:5] + self.way.split("/")[-1]


@dataclass
class Recorded:
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    numa_cpus: Sequence[str] = ("0-47", "48-95")
    mtus: dict[str, int] = field(default_factory=dict)  # of network interfaces
    cxi: Sequence[Nic] = ()
    modules: Sequence[str] = ()
    idle: tuple[str, str, str] | None = None  # vendor, class and device of a PCI function that no driver has taken
    unreadable: Sequence[str] = ()  # files of the tree that nobody may read, as in a container with a strict policy

    def tree(self) -> str:
        """The root of a tree for tests that only read it: one for each description, made once."""
        name = repr(self)
        if name not in _trees:
            _trees[name] = self.write(Path(_shared.name) / str(len(_trees)))
        return _trees[name]

    def write(self, root: Path) -> str:
        """Makes a tree that the caller may change; returns its root."""
        for folder in ("class", "bus/pci/devices", "devices/system/node"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for gpu in self.gpus:
            self._pci(root, gpu.way, gpu.numa, gpu.vendor, gpu.pci_class)
        for nic in self.nics:
            self._nic(root, nic)
        for nic in self.cxi:
            device = self._pci(root, nic.way, nic.numa, CRAY, "0x020000")
            self._driver(root, device, "cxi_core")
            put(device / "port/link", nic.state)
            put(device / "port/speed", nic.rate)
            put(device / f"cxi/{nic.name}/uevent", "")
            link(root / f"class/cxi/{nic.name}", device / f"cxi/{nic.name}")
            link(device / f"cxi/{nic.name}/device", device)
        if self.idle:
            vendor, pci_class, device_id = self.idle
            put(self._pci(root, IDLE, 0, vendor, pci_class) / "device", device_id)
        for number, cpus in enumerate(self.numa_cpus):
            put(root / f"devices/system/node/node{number}/cpulist", cpus)
        for name, mtu in self.mtus.items():
            put(root / f"class/net/{name}/mtu", str(mtu))
        for name in self.modules:
            (root / "module" / name).mkdir(parents=True)
        for name in self.unreadable:  # a folder in a file's place: to open it fails for root, too
            path = (root / name).resolve()
            path.unlink()
            path.mkdir()
        return str(root)

    @staticmethod
    def _pci(root: Path, way: str, numa: int, vendor: str, pci_class: str) -> Path:
        bridge, *functions = way.split("/")
        path = root / "devices" / f"pci{bridge}"
        for i, function in enumerate(functions):
            path = path / f"{bridge[:4]}:{function}"
            last = i == len(functions) - 1
            if not (path / "vendor").exists() or last:
                put(path / "vendor", vendor if last else "0x1000")
                put(path / "class", pci_class if last else "0x060400")
                put(path / "numa_node", str(numa))
            link(root / "bus/pci/devices" / path.name, path)
        return path

    @staticmethod
    def _driver(root: Path, device: Path, name: str) -> None:
        (root / "bus/pci/drivers" / name).mkdir(parents=True, exist_ok=True)
        link(device / "driver", root / "bus/pci/drivers" / name)

    def _nic(self, root: Path, nic: Nic) -> None:
        if nic.way:
            device = self._pci(root, nic.way, nic.numa, nic.vendor, "0x020700")
            self._driver(root, device, nic.driver)
            folder = device / "infiniband" / nic.name
        else:
            folder = root / "devices/virtual/infiniband" / nic.name
        folder.mkdir(parents=True)
        link(root / f"class/infiniband/{nic.name}", folder)
        if nic.way:
            link(folder / "device", device)
            put(folder / "fw_ver", "28.39.1002")
        put(folder / "node_type", nic.node_type)
        for number in range(1, nic.num_ports + 1):
            port = folder / f"ports/{number}"
            put(port / "state", nic.state)
            put(port / "link_layer", nic.layer)
            put(port / "rate", nic.rate)
            put(port / "lid", hex(nic.lid))
            for gid in nic.gids:
                put(port / f"gids/{gid.index}", gid.address)
                put(port / f"gid_attrs/types/{gid.index}", gid.kind)
                if gid.netdev:
                    put(port / f"gid_attrs/ndevs/{gid.index}", gid.netdev)
            put(port / "gids/250", "0000:0000:0000:0000:0000:0000:0000:0000")  # unused: no type, no netdev


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(target, path.parent))


# ---- machines --------------------------------------------------------------------------------------------------------


def switch(bus: int) -> str:
    """The way to below a switch whose root port is the first function of a host bridge's bus, as on AWS."""
    return f"0000:{bus:02x}/{bus:02x}:00.0/{bus + 1:02x}:00.0"


def efa(bus: int, at: int, numa: int, rate: str) -> Nic:
    """EFA on bus `at` behind the switch at `bus`; named after its bus as udev does."""
    way = f"{switch(bus)}/{bus + 2:02x}:{(at - bus) // 8:02x}.{(at - bus) % 8}/{at:02x}:00.0"
    gid = Gid(0, f"fe80:0000:0000:0000:08ff:edff:fe00:{at:04x}", V1)
    return Nic(f"rdmap{at}s0", way, numa, "efa", AMAZON, "Unknown", rate, gids=(gid,), node_type="7: unspecified")


def gpu(bus: int, at: int, numa: int) -> Gpu:
    return Gpu(f"{switch(bus)}/{bus + 2:02x}:{(at - bus) // 8:02x}.{(at - bus) % 8}/{at:02x}:00.0", numa)


def p5() -> Recorded:
    """p5.48xlarge: 8 H100, each on a switch with 4 EFA of 100 Gb/s."""
    made = Recorded()
    for i, first in enumerate((0x4F, 0x60, 0x71, 0x82, 0x93, 0xA4, 0xB5, 0xC6)):
        bus, numa = first - 0xB, i // 4
        made.nics += [efa(bus, first + n, numa, "100 Gb/sec (4X EDR)") for n in range(4)]
        made.gpus.append(gpu(bus, first + 4, numa))
    return made


def p5en() -> Recorded:
    """p5en.48xlarge: 4 switches, each with 2 H200 and 4 EFA of 200 Gb/s."""
    made = Recorded()
    for i, bus in enumerate((0x41, 0x5B, 0x75, 0x8F)):
        made.nics += [efa(bus, bus + 0x11 + n, i // 2, "200 Gb/sec (4X HDR)") for n in range(4)]
        made.gpus += [gpu(bus, bus + 0x15 + n, i // 2) for n in range(2)]
    return made


def p6_b200() -> Recorded:
    """p6-b200.48xlarge: 4 switches, each with 2 B200 and 2 EFA of 400 Gb/s, and two InfiniBand ports that belong to
    NVLink's management."""
    made = Recorded()
    for i, bus in enumerate((0x46, 0x57, 0x68, 0x79)):
        made.nics += [efa(bus, bus + 0xB + n, i // 2, "400 Gb/sec (4X NDR)") for n in range(2)]
        made.gpus += [gpu(bus, bus + 0xD + n, i // 2) for n in range(2)]
    for at in (0xAB, 0xAC):
        made.nics.append(Nic(f"ibp{at}s0f0", f"0000:a8/a8:00.0/a9:00.0/aa:00.{at & 1}/{at:02x}:00.0", 1, lid=1))
    return made


def dgx_h100() -> Recorded:
    """DGX H100: 8 GPUs, each with a ConnectX-7 on its switch; two dual-port ones for storage, on Ethernet."""
    made = Recorded(numa_cpus=("0-55,112-167", "56-111,168-223"))
    compute = ((0x18, 0x1B, 0), (0x40, 0x43, 3), (0x4F, 0x52, 4), (0x5E, 0x61, 5),
               (0x9A, 0x9D, 6), (0xC0, 0xC3, 9), (0xCE, 0xD1, 10), (0xDC, 0xDF, 11))  # fmt: skip
    for i, (nic, card, number) in enumerate(compute):
        root = nic - 3
        way = f"0000:{root:02x}/{root:02x}:01.0/{root + 1:02x}:00.0"
        gids = (Gid(0, f"fe80:0000:0000:0000:946d:ae03:00{nic:02x}:0001", V1),)
        made.nics.append(
            Nic(f"mlx5_{number}", f"{way}/{root + 2:02x}:00.0/{nic:02x}:00.0", i // 4, lid=17 + i, gids=gids)
        )
        made.gpus.append(Gpu(f"{way}/{root + 2:02x}:02.0/{card:02x}:00.0", i // 4))
    for n, (bus, number) in enumerate(((0x29, 1), (0x29, 2), (0xAA, 7), (0xAA, 8))):
        gids = roce(f"eth{n}", f"10.9.{n}.5")  # type: ignore[assignment]
        way = f"0000:{bus - 1:02x}/{bus - 1:02x}:01.0/{bus:02x}:00.{n % 2}"
        made.nics.append(Nic(f"mlx5_{number}", way, n // 2, layer="Ethernet", rate="200 Gb/sec (4X HDR)", gids=gids))
        made.mtus[f"eth{n}"] = 9000
    return made


def mi300x_thor2() -> Recorded:
    """8 MI300X, each behind the two bridges of its own card on a switch with a Thor-2 of 400 Gb/s; a slow port."""
    made = Recorded()
    for i, root in enumerate((0x00, 0x18, 0x48, 0x60, 0x80, 0x98, 0xC8, 0xE0)):
        way = f"0000:{root:02x}/{root:02x}:01.1/{root + 1:02x}:00.0"
        card = f"{way}/{root + 2:02x}:00.0/{root + 3:02x}:00.0/{root + 4:02x}:00.0/{root + 5:02x}:00.0"
        made.gpus.append(Gpu(card, i // 4, AMD, "0x120000"))
        netdev = f"ens{i}np0"
        made.nics.append(
            Nic(f"bnxt_re{i}", f"{way}/{root + 2:02x}:01.0/{root + 6:02x}:00.0", i // 4, "bnxt_en", BROADCOM,
                "Ethernet", "400 Gb/sec (4X NDR)", gids=roce(netdev, f"10.2.{i}.7"))
        )  # fmt: skip
        made.mtus[netdev] = 9000
    made.nics.append(
        Nic("bnxt_re8", "0000:20/20:03.1/21:00.0", 0, "bnxt_en", BROADCOM, "Ethernet", "25 Gb/sec (1X EDR)",
            gids=roce("eno1", "192.168.1.7"))
    )  # fmt: skip
    return made


def slingshot() -> Recorded:
    """A GH200 blade: 4 superchips, each a NUMA node and a PCIe domain of its own with a GPU and a Cassini NIC."""
    made = Recorded(numa_cpus=tuple(f"{72 * i}-{72 * i + 71}" for i in range(4)))
    cxi = []
    for i in range(4):
        made.gpus.append(Gpu(f"00{i}9:00/00:00.0/01:00.0", i))
        cxi.append(Nic(f"cxi{i}", f"00{i}6:00/00:00.0/01:00.0", i, state="up", rate="BS_200G"))
    made.cxi = cxi
    return made


def soft_roce(netdev: str = "lo", ip: str = "127.0.0.1") -> Recorded:
    """A virtual machine with rdma_rxe on one interface and no PCIe device at all."""
    gids = [Gid(0, "fe80:0000:0000:0000:0200:00ff:fe00:0000", V2, netdev), Gid(1, mapped(ip), V2, netdev)]
    nic = Nic("rxe0", layer="Ethernet", rate="2.5 Gb/sec (1X SDR)", gids=gids)
    return Recorded(nics=[nic], numa_cpus=("0-1",), mtus={netdev: 4500})


def roce_many_gids() -> Recorded:
    """Two RoCE ports as a cluster with VLANs and IPv6 has them: eight entries, of which one is right (index 5); the
    second port's network interface has never been given an address."""
    made = Recorded(numa_cpus=("0-31",), mtus={"eth0": 9000, "eth0.7": 9000, "eth1": 1500})
    addresses = ("fe80::a00:27ff:fe00:1", "2001:db8:0:7::11", "10.7.0.11", "192.168.7.11")
    table = []
    for i, address in enumerate(addresses):
        entry = mapped(address) if "." in address else ipaddress.IPv6Address(address).exploded
        netdev = "eth0.7" if i == 3 else "eth0"
        table += [Gid(2 * i, entry, V1, netdev), Gid(2 * i + 1, entry, V2, netdev)]
    rate = "200 Gb/sec (4X HDR)"
    made.nics.append(Nic("mlx5_0", "0000:10/10:01.0/11:00.0", 0, layer="Ethernet", rate=rate, gids=table))
    only_v1 = [Gid(0, "fe80:0000:0000:0000:0a00:27ff:fe00:0002", V1, "eth1")]
    made.nics.append(Nic("mlx5_1", "0000:10/10:01.0/11:00.1", 0, layer="Ethernet", rate=rate, gids=only_v1))
    made.gpus.append(Gpu("0000:10/10:02.0/12:00.0", 0))
    return made


def openshift_pod() -> Recorded:
    """A pod that sees a host's PCI tree, while its policy keeps it from NUMA nodes, port states and addresses."""
    made = dgx_h100()
    made.unreadable = (
        "devices/system/node/node0/cpulist",
        "class/infiniband/mlx5_0/ports/1/state",
        "class/infiniband/mlx5_3/ports/1/gids/0",
        "class/infiniband/mlx5_4/ports/1/rate",
        "bus/pci/devices/0000:1b:00.0/numa_node",
        "bus/pci/devices/0000:43:00.0/class",
    )
    return made


def mapped(ip: str) -> str:
    """An IPv4 address as sysfs shows it in a GID table."""
    a, b, c, d = map(int, ip.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def roce(netdev: str, ip: str, others: Sequence[Gid] = ()) -> tuple[Gid, ...]:
    """The usual table of a RoCE port with one address: link-local and IPv4, each as v1 and as v2."""
    local = "fe80:0000:0000:0000:0a00:27ff:fe00:00" + ip.rpartition(".")[2].zfill(2)
    pairs = [(local, 0), (mapped(ip), 2)]
    table = [Gid(i + n, address, kind, netdev) for address, i in pairs for n, kind in enumerate((V1, V2))]
    return (*table, *others)
