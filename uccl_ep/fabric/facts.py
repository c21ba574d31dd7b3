"""What a rank tells the others of its network: which families it could use, with which ports, and why not others.

Gathered before the first exchange, carried in the Hello as plain data, and checked field by field on arrival.
"""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

import uccl_ep
from uccl_ep.errors import UcclEpError
from uccl_ep.fabric.distance import numa_distance, pci_distance
from uccl_ep.fabric.gids import GidEntry, Networks, entries_of
from uccl_ep.fabric.nics import NicPort, Selection, check_selection, nearest, parse_selection, without_slow
from uccl_ep.fabric.registration import Registration, choose_registration
from uccl_ep.fabric.sysfs import Machine, Nic, PciFunction, Port, read_machine, read_pci
from uccl_ep.fabric.visibility import GpuOrder, order_of
from uccl_ep.group.handshake import route_address
from uccl_ep.settings import Settings
from uccl_ep.system.site_settings import address_by_names

if TYPE_CHECKING:
    from uccl_ep.gpu.driver import Driver

NIC_FAMILIES = ("efa", "verbs", "libfabric")  # in the order of preference
LIBRARIES = {
    "efa": ("libibverbs.so.1", "libefa.so.1"),
    "verbs": ("libibverbs.so.1",),
    "libfabric": ("libfabric.so.1",),
}
PACKAGES = {
    "libibverbs.so.1": "libibverbs1 and ibverbs-providers",
    "libefa.so.1": "ibverbs-providers, or AWS's EFA installer",
    "libfabric.so.1": "libfabric1",
}
Limits = Mapping[tuple[str, int], tuple[int, int]]
_KINDS = {"efa": ("efa",), "verbs": ("infiniband", "ethernet"), "libfabric": ("slingshot",)}


@dataclass(frozen=True)
class Facts:
    """A rank's network.

    Attributes:
        families: of NIC_FAMILIES, those that this rank could use.
        missing: for each of the others, why not.
        ports: what it could use them with, also those of families it cannot use.
        where: where it computes, for people: "GPU 0000:1b:00.0", "NUMA node 0", "the CPU".
        left_out: "mlx5_6:1 is DOWN" and the like.
        version: of this package.
        gpu_memory: how a NIC reaches this rank's GPU memory: "dmabuf", "peer_memory", or "host": not at all.
        gpu_memory_reason: why.
        gpu_scope, gpu_reason, gpu_no_flush: what that GPU promises of NICs' writes (uccl_ep.fabric.visibility).
    """

    families: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[NicPort, ...] = ()
    where: str = "the CPU"
    left_out: tuple[str, ...] = ()
    version: str = ""
    gpu_memory: str = "host"
    gpu_memory_reason: str = ""
    gpu_scope: str = GpuOrder.scope
    gpu_reason: str = GpuOrder.reason
    gpu_no_flush: str = GpuOrder.no_flush

    def of(self, family: str) -> tuple[NicPort, ...]:
        """The ports that a family would use."""
        return tuple(port for port in self.ports if port.kind in _KINDS.get(family, ()))

    def plain(self) -> dict[str, Any]:
        """For an Hello."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any], rank: int) -> Facts:
        """What another rank's Hello says.

        Raises:
            UcclEpError: it is no such thing; names the rank.
        """
        if not values:
            return cls()  # of a rank that had no reason to look
        try:
            ports = [_made(NicPort, {**port, "gids": _gids(port["gids"])}) for port in values["ports"]]
            plain = {name: tuple(values[name]) for name in ("families", "left_out")}
            return _made(cls, {**values, **plain, "ports": tuple(ports)})
        except (TypeError, ValueError, KeyError) as error:
            raise UcclEpError(f"rank {rank} describes its network in a form that is not known here: {error}") from error


def networks_of_this_host() -> dict[str, list[str]]:
    """The IP addresses of each interface, with prefix lengths."""
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for a in addresses:
            try:
                address = ipaddress.ip_address(a.address.partition("%")[0])
                bits = bin(int(ipaddress.ip_address(a.netmask))).count("1") if a.netmask else address.max_prefixlen
            except ValueError:
                continue  # a hardware address
            found.setdefault(name, []).append(f"{address}/{bits}")
    return found


def host_address(settings: Settings, networks: Networks | None = None) -> tuple[str, str]:
    """(the address that other hosts reach this one by, why it is that).

    Args:
        networks: of this host; None: they are looked up, where a variable asks for an interface by name.
    """
    if settings.interface:
        return settings.interface, "UCCL_EP_INTERFACE says so"
    default, why = route_address(), "the default route leaves from it"
    site = settings.from_site("interface")
    if site is None:
        return default, why
    found = address_by_names(site.reading, networks_of_this_host() if networks is None else networks, default)
    return (found, f"{site.words} says so") if found else (default, f"{why}; {site.words} names no interface here")


def can_load(name: str) -> bool:
    """Whether a shared library is on this machine."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


@functools.cache
def limits_of_this_host() -> Limits:
    """(queue pairs that its device allows, bytes of a packet) of each port, where pyverbs can tell; 0: not known."""
    from uccl_ep.fabric.verbs_devices import discover

    devices = discover().devices
    return {(d.name, p.number): (d.limit("max_qp") or 0, p.active_mtu) for d in devices for p in d.ports}


@dataclass(frozen=True)
class Probes:
    """What the facts are gathered from; tests put recorded machines here."""

    root: str = "/sys"
    can_load: Callable[[str], bool] = field(default_factory=lambda: can_load)
    networks: Callable[[], Networks] = field(default_factory=lambda: networks_of_this_host)
    limits: Callable[[], Limits] = field(default_factory=lambda: limits_of_this_host)
    cpus: Callable[[], frozenset[int]] = lambda: frozenset(os.sched_getaffinity(0))
    machine: Callable[[str], Machine] = read_machine  # from that root


def gather(
    settings: Settings,
    gpu: str,
    memory: Callable[[Sequence[str]], Registration],
    probes: Probes | None = None,
    order: GpuOrder = GpuOrder(),  # noqa: B008 - frozen
) -> Facts:
    """This rank's facts.

    Args:
        gpu: the PCI address of the GPU that its kernels run on; empty: the CPU.
        memory: finds out how these RDMA devices, the nearest, reach that GPU's memory; asked only where there is a NIC.
        order: what that GPU promises of NICs' writes.

    Raises:
        InvalidArgument: UCCL_EP_NICS names a NIC that this host does not have.
        NotSupported: UCCL_EP_GPU_MEMORY asks for what does not work here.
    """
    probes = probes or Probes()
    machine = probes.machine(probes.root)
    selection = parse_selection(settings.nics)
    if settings.from_site("nics") is None:  # others' lists hold for a whole cluster: not every host has every name
        check_selection(selection, [(nic.name, port.number) for nic in machine.nics for port in nic.ports])
    home = _home(machine, gpu, settings, probes)
    networks = probes.networks() if machine.nics else {}
    limits = probes.limits() if machine.nics else {}
    ports, left_out = [], []
    for nic in machine.nics:
        for port in nic.ports:
            why = _why_not(nic, port, selection, settings)
            if why:
                left_out.append(f"{nic.name}:{port.number} {why}")
            else:
                ports.append(home.port(nic, port, networks, limits.get((nic.name, port.number), (0, 0))))
    kept: list[NicPort] = []
    for kind in dict.fromkeys(port.kind for port in ports):
        some = [port for port in ports if port.kind == kind]
        fast, slow = (some, []) if selection.names_some else without_slow(some)
        kept += fast
        left_out += slow
    families, missing = _families(kept, left_out, settings.transport, probes)
    near = nearest([port for port in kept if port.kind != "slingshot"])
    registration = memory(list(dict.fromkeys(port.name for port in near))) if kept else None
    return Facts(
        families=tuple(families),
        missing=missing,
        ports=tuple(kept),
        where=home.words,
        left_out=tuple(left_out),
        version=uccl_ep.__version__,
        gpu_memory=registration.path if registration else "host",
        gpu_memory_reason=registration.reason if registration else "no NIC could reach it",
        gpu_scope=order.scope,
        gpu_reason=order.reason,
        gpu_no_flush=order.no_flush,
    )


def tell(settings: Settings, driver: Driver | None) -> dict[str, Any]:
    """What this rank's Hello says of its network, or why that is not known. Where no NIC family is wanted,
    nothing is looked at."""
    if settings.transport not in ("auto", *NIC_FAMILIES):
        return {}
    kind = "cpu" if driver is None else "hip" if driver.facts.arch.startswith("gfx") else "cuda"
    gpu = "" if driver is None else driver.facts.identity
    order = GpuOrder() if driver is None else order_of(driver.facts, settings.proxy)

    def memory(nics: Sequence[str]) -> Registration:
        return choose_registration(settings.gpu_memory, kind, driver, settings.proxy, nics=nics)

    try:
        facts = gather(settings, gpu, memory, order=order)
    except Exception as error:  # told to all ranks, which then raise the same
        return {"error": f"{type(error).__name__}: {error}"}
    return {"fabric": facts.plain()}


@dataclass(frozen=True)
class _Home:
    """Where a rank computes: what distances are measured from."""

    words: str
    gpu: PciFunction | None
    numa_node: int

    def port(self, nic: Nic, port: Port, networks: Networks, limits: tuple[int, int]) -> NicPort:
        distance, hops = (
            pci_distance(self.gpu, nic.pci) if self.gpu is not None else (numa_distance(self.numa_node, nic.pci), 0)
        )
        return NicPort(
            name=nic.name,
            port=port.number,
            kind=_kind(nic, port),
            rate_gbps=port.rate_gbps,
            mtu=limits[1] or port.mtu,
            distance=int(distance),
            hops=hops,
            pci=nic.pci.address if nic.pci is not None else "",
            max_queue_pairs=limits[0],
            lid=port.lid,
            gids=entries_of(port.gids, networks),
        )


def _home(machine: Machine, gpu: str, settings: Settings, probes: Probes) -> _Home:
    if gpu:
        return _Home(f"GPU {gpu}", read_pci(gpu, probes.root), -1)
    cpus = frozenset(settings.pin_cpus) or probes.cpus()
    node = machine.numa_of(cpus)
    return _Home(f"NUMA node {node}" if node >= 0 else "the CPU", None, node)


def _kind(nic: Nic, port: Port) -> str:
    if nic.kind in ("efa", "cxi"):
        return {"efa": "efa", "cxi": "slingshot"}[nic.kind]
    return "infiniband" if port.link_layer == "InfiniBand" else "ethernet"


def _why_not(nic: Nic, port: Port, selection: Selection, settings: Settings) -> str:
    """Why a port is not used; empty: nothing speaks against it."""
    site = settings.from_site("nics")
    means_it = site is None or site.of_uccl or nic.kind not in ("efa", "cxi")  # NCCL reaches those without verbs
    if means_it and not selection.allows(nic.name, port.number):
        return f"is left out by {site.words if site is not None else 'UCCL_EP_NICS'}"
    if nic.kind == "iwarp":
        return "is iWARP, which has no write with immediate data"
    if not port.active:
        return f"is {port.state}: check the cable, the switch port" + (
            " and the subnet manager" if port.link_layer == "InfiniBand" else ""
        )
    if nic.kind == "verbs" and port.link_layer == "Ethernet" and settings.gid_index < 0:
        if not any(gid.kind == "v2" for gid in port.gids):
            return "has no RoCE v2 address: give its network interface an IP address"
    return ""


def _families(
    ports: Sequence[NicPort], left_out: Sequence[str], wanted: str, probes: Probes
) -> tuple[list[str], dict[str, str]]:
    """(families that this rank could use, why not the others). soft-RoCE counts only for whoever asks for verbs."""
    can, cannot = [], {}
    for family in NIC_FAMILIES:
        some = [port for port in ports if port.kind in _KINDS[family]]
        absent = [name for name in LIBRARIES[family] if (some or wanted == family) and not probes.can_load(name)]
        if wanted == "libfabric" == family:
            can.append(family)  # whether the library is there, and where, the native side says best
        elif not some:
            seen = f" ({'; '.join(left_out)})" if left_out else ""
            cannot[family] = f"no {_names(family)}{seen}"
        elif absent:
            cannot[family] = f"{absent[0]} is not installed (packages: {PACKAGES[absent[0]]})"
        elif family == "libfabric":
            cannot[family] = (
                "Slingshot's provider refuses writes with completion data, which every message here is: "
                "UCCL_EP_TRANSPORT=libfabric tries it all the same"
            )
        elif wanted != family and all(port.software for port in some):
            cannot[family] = "only soft-RoCE, which is slower than tcp: UCCL_EP_TRANSPORT=verbs uses it all the same"
        else:
            can.append(family)
    return can, cannot


def _names(family: str) -> str:
    return {"efa": "EFA device", "verbs": "active InfiniBand or RoCE port", "libfabric": "Slingshot NIC (cxi)"}[family]


_Made = TypeVar("_Made")


def _made(kind: type[_Made], values: Mapping[str, Any]) -> _Made:
    """An object of a dataclass whose fields have defaults or not, with values of the fields' own types."""
    wanted = _types_of(kind)  # type: ignore[arg-type]  # a class has a hash, whatever its objects are
    if set(values) != set(wanted):
        raise ValueError(f"{kind.__name__} has fields {sorted(values)}, expected {sorted(wanted)}")
    for name, (said, allowed) in wanted.items():
        if not isinstance(values[name], allowed) or isinstance(values[name], bool):
            raise ValueError(f"{kind.__name__}.{name} is {values[name]!r}, expected {said}")
    return kind(**values)


@functools.cache
def _types_of(kind: type[Any]) -> dict[str, tuple[str, tuple[type, ...]]]:
    """Of each field of a dataclass its type as it is written, and what a value may be."""
    return {f.name: (str(f.type), _SHAPES[str(f.type).partition("[")[0]]) for f in fields(kind)}


_SHAPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "tuple": (tuple,),
    "Mapping": (dict,),
}


def _gids(values: Sequence[Mapping[str, Any]]) -> tuple[GidEntry, ...]:
    made = tuple(_made(GidEntry, value) for value in values)
    for entry in made:
        ipaddress.IPv6Address(entry.address)
    return made
