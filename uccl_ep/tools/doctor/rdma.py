"""What the paths over NICs share: devices, drivers, ports, addresses, packet size, distance, limits, and the way to GPU
memory. Each function is a check for one family, given first; verbs.py, efa.py and libfabric.py put them together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from uccl_ep.errors import InvalidArgument
from uccl_ep.fabric.distance import Distance
from uccl_ep.fabric.facts import LIBRARIES, PACKAGES
from uccl_ep.fabric.gids import choose_gid, wanted_gid
from uccl_ep.fabric.nics import NicPort, Place, share_out
from uccl_ep.fabric.sysfs import Nic
from uccl_ep.system.extras import install
from uccl_ep.tools.doctor.host import AMAZON, AMD, MELLANOX, NVIDIA, Host
from uccl_ep.tools.doctor.record import Answer, missing, not_needed, ok, slow, unknown

NIC_KIND = {"verbs": "verbs", "efa": "efa", "libfabric": "cxi"}
_DRIVER = {"verbs": "mlx5_ib (or the vendor's own)", "efa": "efa", "libfabric": "cxi_core"}
_GOOD_MTU = 4096  # bytes of payload; smaller packets cost rate and CPU on every NIC that was measured
_MOST_LISTED = 8
RECORDED = not_needed("a recorded tree has no device files")


def listed(items: list[str], most: int = _MOST_LISTED) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second of each pair under the first, in the order in which they come."""
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def nics(host: Host, family: str) -> list[Nic]:
    """The NICs that the family drives."""
    return [nic for nic in host.machine.nics if nic.kind == NIC_KIND[family]]


def hidden(host: Host, family: str) -> str:
    """What kept sysfs from saying whether there are such NICs; empty: nothing did."""
    folder = "class/cxi" if family == "libfabric" else "class/infiniband"
    return next((text for text in host.machine.unreadable if text.split(":")[0] == folder), "")


def without_driver(host: Host, family: str) -> list[str]:
    """PCI functions that are such a NIC while no driver presents them as one."""
    if nics(host, family):
        return []
    if family == "efa":
        return [f.address for f in host.pci if f.vendor == AMAZON and 0xEFA0 <= f.device <= 0xEFAF]
    if family == "verbs":
        network = (0x0200, 0x0207)  # Ethernet, InfiniBand
        return [f.address for f in host.pci if f.vendor == MELLANOX and f.pci_class in network]
    return []


def unneeded(host: Host, family: str) -> str:
    """Why nobody here needs the family; empty: somebody does."""
    if host.settings.transport == family or nics(host, family) or without_driver(host, family) or hidden(host, family):
        return ""
    return {"verbs": "no InfiniBand or RoCE device", "efa": "no EFA device", "libfabric": "no Slingshot NIC"}[family]


def _not_known(host: Host, family: str) -> Answer | None:
    """What a check of NICs says where sysfs hides whether there are any; None: it does not hide that."""
    unreadable = hidden(host, family)
    if not unreadable or nics(host, family):
        return None
    fix = "mount /sys read-only into the container and let its security context read it"
    return missing(f"not known, {unreadable}", "sysfs that can be read", fix)


def devices(family: str, host: Host) -> Answer:
    """The NICs and their firmware."""
    found = nics(host, family)
    if found:
        groups = grouped(
            (f"{n.driver or 'software'}{n.firmware and ', firmware ' + n.firmware}", n.name) for n in found
        )
        return ok("; ".join(f"{listed(names)} ({what})" for what, names in groups.items()))
    if not_known := _not_known(host, family):
        return not_known
    idle = without_driver(host, family)
    shown = f"no driver has taken {listed(idle)}" if idle else "none"
    fix = f"modprobe {_DRIVER[family].split()[0]} on the host; ls /sys/class/infiniband should then name it"
    return missing(shown, f"a NIC with its kernel driver {_DRIVER[family]}", fix)


def library(family: str, host: Host) -> Answer:
    """The user-space library that our transport opens."""
    names = LIBRARIES[family]
    for name in names:
        why = host.why_not(name)
        if why:
            return missing(why, name, f"apt-get install, or dnf install: {PACKAGES[name]}")
    return ok(", ".join(host.loaded_from(name) for name in names))


def device_files(family: str, host: Host) -> Answer:
    """/dev/infiniband/uverbsN of each NIC, which containers lack unless they are told."""
    if host.recorded:
        return RECORDED
    folder = f"{host.sys}/class/infiniband_verbs"
    node_of = {
        host.text_or(f"{folder}/{node}/ibdev"): node
        for node in (os.listdir(folder) if host.has(folder) else [])
        if node.startswith("uverbs")
    }
    wanted = {n.name: f"{host.dev}/infiniband/{node_of[n.name]}" for n in nics(host, family) if n.name in node_of}
    closed = [path for path in wanted.values() if not host.may_use(path)]
    needed = f"{host.dev}/infiniband/uverbs* that this user may read and write"
    if not wanted:
        if not_known := _not_known(host, family):
            return not_known
        return missing("no NIC has one", needed, "modprobe ib_uverbs on the host")
    if closed:
        fix = "docker run --device=/dev/infiniband; in Kubernetes the RDMA or EFA device plugin; or chmod 666"
        return missing(f"closed: {listed(closed)}", needed, fix)
    return ok(listed(list(wanted.values())), needed)


def ports(family: str, host: Host) -> Answer:
    """Ports that carry data."""
    try:
        facts = host.facts(_first_gpu(host))
    except InvalidArgument as error:
        return missing(str(error), "names of NICs of this host", "correct or unset UCCL_EP_NICS")
    names = {nic.name for nic in nics(host, family)}
    unused = [reason for reason in facts.left_out if reason.split(":")[0] in names]
    groups = grouped((f"{p.rate_gbps:g} Gb/s" if p.rate_gbps else "an unknown rate", str(p)) for p in facts.of(family))
    good = [f"{listed(some)} at {rate}" for rate, some in groups.items()]
    shown = "; ".join([*good, *([f"not used: {listed(unused, 4)}"] if unused else [])])
    states = {f"{n.name}:{p.number}": p.state for n in nics(host, family) for p in n.ports if not p.active}
    unclear = [name for name, state in states.items() if state == "unknown"]
    fix = "check cable and switch port; ip link set dev ... up; InfiniBand: a subnet manager must run"
    if unclear:
        fix = f"let this process read the state of {listed(unclear)} in sysfs; {fix}"
    if not good:
        if not_known := _not_known(host, family):
            return not_known
        return missing(shown or "none", "a port that is ACTIVE", fix)
    return slow(shown, f"all ports ACTIVE, not {listed(list(states))}", fix) if states else ok(shown)


def addresses(family: str, host: Host) -> Answer:
    """The address that each port would speak with, by the rule that a job goes by (fabric/gids.py)."""
    found, wrong = [], []
    for port in host.facts(_first_gpu(host)).of(family):
        try:
            chosen = choose_gid(
                port.kind, port.lid, port.gids, [], wanted_gid(host.settings, port.kind), one_host=False
            )
        except InvalidArgument as error:
            wrong.append(f"{port}: {error}")
            continue
        index = "LID" if chosen.index < 0 else f"GID {chosen.index}"
        found.append((f"{index} ({chosen.reason})", str(port)))
    shown = [f"{listed(names)}: {what}" for what, names in grouped(found).items()]
    if wrong:
        fix = "ip address add ... dev INTERFACE (as root), or set UCCL_EP_GID_INDEX to an entry of the table"
        return missing("; ".join([*wrong, *shown]), "an address that other hosts reach, on each port", fix)
    return ok("; ".join(shown)) if shown else not_needed("no active port")


def mtu(family: str, host: Host) -> Answer:
    """Bytes of an RDMA packet."""
    known = {str(port): port.mtu for port in host.facts(_first_gpu(host)).of(family)}
    needed = f"{_GOOD_MTU}, the same on both ends"
    small = [f"{name} {size}" for name, size in known.items() if 0 < size < _GOOD_MTU]
    if small:
        fix = "RoCE: ip link set dev INTERFACE mtu 9000 (4200 at least) on every host and switch port"
        return slow(listed(small), needed, fix)
    unclear = [name for name, size in known.items() if not size]
    if unclear and host.recorded:
        return not_needed(f"a recorded tree does not tell it of {listed(unclear)}")
    if unclear:
        return unknown(f"not known of {listed(unclear)}", needed, f"{install('rdma')}: pyverbs knows it")
    return ok(listed([f"{name} {size}" for name, size in known.items()]), needed) if known else not_needed("no port")


def distance(family: str, host: Host) -> Answer:
    """Which NIC each GPU would use, and how far it is; without GPUs, as seen from this process's NUMA node."""
    places = []
    gpus = gpus_of(host) or [""]
    for rank, gpu in enumerate(gpus):
        facts = host.facts(gpu)
        places.append(Place(rank, facts.where, _one_link_layer(facts.of(family))))
    shares = share_out(places)
    rows, far = [], []
    for place in places:
        mine = shares[place.rank].ports
        words = Distance(mine[0].distance).words if mine else "no NIC"
        rows.append((words, f"{place.where} - {'+'.join(map(str, mine)) or 'none'}"))
        if any(port.distance >= Distance.ACROSS_SOCKETS and not port.software for port in mine):
            far.append(place.where)
    shown = "; ".join(f"{words}: {listed(some)}" for words, some in grouped(rows).items())
    if far and gpus != [""]:
        fix = "pass the PCIe topology (/sys) through to the virtual machine; or move NICs to the GPUs' sockets"
        return slow(shown, f"a NIC nearer to {listed(far)}", fix)
    return ok(shown)


def _one_link_layer(some: tuple[NicPort, ...]) -> tuple[NicPort, ...]:
    """A job uses InfiniBand or RoCE, not both: the one with more bandwidth here."""

    def rate(kind: str) -> tuple[float, bool]:
        return sum(port.rate_gbps for port in some if port.kind == kind), kind == "infiniband"

    best = max({port.kind for port in some}, key=rate, default="")
    return tuple(port for port in some if port.kind == best)


def limits_known(family: str, host: Host) -> Answer:
    """What only the driver says: how many queue pairs, which packet size."""
    if host.recorded:
        return not_needed("a recorded tree is judged")
    names = {nic.name for nic in nics(host, family)}
    known = {key: value for key, value in host.limits().items() if key[0] in names and value[0]}
    needed = "pyverbs, so that too many queue pairs are refused before the job starts"
    if not known:
        return unknown("the device cannot be asked", needed, install("rdma"))
    return ok(listed([f"{n}:{p} {pairs} queue pairs" for (n, p), (pairs, _) in sorted(known.items())]), needed)


def _first_gpu(host: Host) -> str:
    return next(iter(gpus_of(host)), "")


def gpus_of(host: Host) -> list[str]:
    """PCI addresses of the GPUs that ranks would run on."""
    if host.settings.device == "cpu":
        return []
    return host.gpus_of(NVIDIA) or host.gpus_of(AMD)
