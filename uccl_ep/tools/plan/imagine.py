"""The hellos that a job's ranks would make, from sysfs trees of their hosts: what a plan starts from before
there is a job. The same code as at a real start reads the trees (fabric/facts.py); only drivers cannot be asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from uccl_ep.cost_model.expected_bytes import Load
from uccl_ep.errors import UcclEpError, refuse
from uccl_ep.fabric.facts import Probes, gather
from uccl_ep.fabric.registration import IN_HOST_MEMORY, Kernel, Registration, choose_registration
from uccl_ep.fabric.sysfs import Machine, PciFunction, read_machine
from uccl_ep.fabric.visibility import GpuOrder
from uccl_ep.group.handshake import Hello
from uccl_ep.group.self_description import UNLIMITED, SelfDescription, describe_self
from uccl_ep.settings import Settings

_AMD = 0x1002
_PRESUMED_KERNEL = "6.1"  # of a recorded tree, which does not have the release


@dataclass(frozen=True)
class Job:
    """A job to be planned.

    Attributes:
        ranks: all of them. ranks_per_host: on each host; the last may have fewer.
        load: a step. shrink: enable_shrink.
        trees: roots of sysfs, one a host; the last stands for all further hosts.
    """

    ranks: int
    ranks_per_host: int
    load: Load
    shrink: bool = False
    trees: tuple[str, ...] = ("/sys",)

    @property
    def num_hosts(self) -> int:
        """Hosts it takes."""
        return -(-self.ranks // self.ranks_per_host)

    def check(self, max_ranks: int) -> None:
        """Raises InvalidArgument for sizes that no Buffer takes and trees that are not there."""
        if not 1 <= self.ranks <= max_ranks:
            refuse("--ranks", self.ranks, f"1 to {max_ranks}")
        if not 1 <= self.ranks_per_host <= self.ranks:
            refuse("--ranks-per-node", self.ranks_per_host, f"1 to --ranks={self.ranks}")
        for tree in self.trees:
            if not os.path.isdir(tree):
                refuse("--sysfs", tree, "a folder that looks like /sys")
        self.load.check(self.ranks)


class PresumedDriver:
    """A GPU's driver that is believed to export its memory, since it cannot be asked before the job."""

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        """No memory is needed."""
        return 0

    def free(self, address: int) -> None:
        """Nothing was allocated."""

    def dmabuf(self, address: int, num_bytes: int) -> int:
        """A descriptor that stands for one; the caller closes it."""
        return os.open(os.devnull, os.O_RDONLY)


@dataclass(frozen=True)
class _Host:
    """A host, and its share of the job."""

    name: str
    tree: str
    machine: Machine
    ranks: range

    @property
    def recorded(self) -> bool:
        return self.tree != "/sys"

    def gpu_of(self, local: int, settings: Settings) -> PciFunction | None:
        gpus = self.machine.gpus
        return None if settings.device == "cpu" or not gpus else gpus[local % len(gpus)]


def introduce(job: Job, settings: Settings) -> list[Hello]:
    """What the ranks would say of themselves. A rank whose network cannot be described says so in `error`."""
    hosts: list[_Host] = []
    for number in range(job.num_hosts):
        first = number * job.ranks_per_host
        tree = job.trees[min(number, len(job.trees) - 1)]
        ranks = range(first, min(first + job.ranks_per_host, job.ranks))
        hosts.append(_Host(f"host{number}", tree, _read_once(tree, hosts), ranks))
    made: dict[tuple[str, int, int], Hello] = {}  # hosts with the same tree say the same, but for the numbers
    told = []
    for host in hosts:
        for rank in host.ranks:
            key = (host.tree, len(host.ranks), rank - host.ranks.start)
            if key not in made:
                made[key] = _introduction(host, rank, settings)
            process = f"{host.name}/{rank}"
            told.append(
                replace(made[key], rank=rank, pid=rank + 1, hostname=host.name, host_id=host.name, process=process)
            )
    return told


def _read_once(tree: str, hosts: Sequence[_Host]) -> Machine:
    return next((host.machine for host in hosts if host.tree == tree), None) or read_machine(tree)


def _introduction(host: _Host, rank: int, settings: Settings) -> Hello:
    local = rank - host.ranks.start
    gpu = host.gpu_of(local, settings)
    kind = _kind(gpu, host.tree)
    fabric, error = {}, ""
    if settings.transport in ("auto", "efa", "verbs", "libfabric"):
        try:
            fabric = gather(
                settings,
                "" if gpu is None else gpu.address,
                lambda nics: _registration(host, kind, settings),
                _probes(host, local, settings),
                _order(kind, settings),
            ).plain()
        except UcclEpError as problem:
            error = str(problem)
    return Hello(
        rank=rank,
        hostname=host.name,
        host_id=host.name,
        process=f"{host.name}/{rank}",
        pid=rank + 1,
        interface="",
        settings={},
        session=0,
        public=b"",
        error=error,
        device=kind,
        gpu="" if gpu is None else gpu.address,
        exportable=1,
        domain="presumed" if kind == "cuda" and settings.mnnvl == "1" else "",
        fabric=fabric,
        self_description=_portrait(host, local, gpu, settings).plain(),
    )


def _kind(gpu: PciFunction | None, tree: str) -> str:
    if gpu is None:
        return "cpu"
    try:
        with open(f"{tree}/bus/pci/devices/{gpu.address}/vendor", encoding="ascii") as file:
            return "hip" if int(file.read(), 16) == _AMD else "cuda"
    except (OSError, ValueError):
        return "cuda"


def _registration(host: _Host, kind: str, settings: Settings) -> Registration:
    if kind == "cpu":
        return IN_HOST_MEMORY
    kernel = Kernel(_PRESUMED_KERNEL if host.recorded else "", host.tree)
    found = choose_registration(settings.gpu_memory, kind, PresumedDriver(), settings.proxy, kernel)
    presumed = "presumed: the GPU's driver can be asked when the job starts"
    attempts = [replace(a, reason=presumed) if a.path == "dmabuf" and a.works else a for a in found.attempts]
    return Registration(found.path, tuple(attempts))


def _order(kind: str, settings: Settings) -> GpuOrder:
    """What the GPU's driver will say can be asked when the job starts: believed is what most GPUs of a kind say."""
    if kind == "cuda" and settings.proxy == "thread":
        return GpuOrder("none", "presumed: the GPU's driver can be asked when the job starts", "")
    return GpuOrder("none", "presumed", f"none with {kind} and UCCL_EP_PROXY={settings.proxy}")


def _probes(host: _Host, local: int, settings: Settings) -> Probes:
    cpus = frozenset(_cpus_of(host, local, host.gpu_of(local, settings)))
    if not host.recorded:
        here = cpus or frozenset(os.sched_getaffinity(0))
        return Probes(host.tree, cpus=lambda: here, machine=lambda _: host.machine)
    return Probes(host.tree, lambda library: True, dict, dict, lambda: cpus, lambda _: host.machine)


def _cpus_of(host: _Host, local: int, gpu: PciFunction | None) -> list[int]:
    """The rank's part of its NUMA node's CPUs, dealt evenly among the ranks that are on it; empty: not known."""
    nodes = dict(host.machine.cpus_of_node)
    if not nodes:
        return []
    numbers = sorted(nodes)
    gpus = host.machine.gpus

    def node_of(index: int) -> int:
        function = gpus[index % len(gpus)] if gpu is not None else None
        known = function is not None and function.numa_node in nodes
        return function.numa_node if known and function else numbers[index * len(numbers) // len(host.ranks)]

    node = node_of(local)
    mates = [index for index in range(len(host.ranks)) if node_of(index) == node]
    cpus = sorted(nodes[node])
    each = len(cpus) // len(mates)
    first = mates.index(local) * each
    return cpus[first : first + each]


def _portrait(host: _Host, local: int, gpu: PciFunction | None, settings: Settings) -> SelfDescription:
    mine = describe_self(settings)
    every = {cpu for _, cpus in host.machine.cpus_of_node for cpu in cpus}
    near = _cpus_of(host, local, gpu)
    return SelfDescription(
        num_cpus=len(every) or mine.num_cpus,
        pin_cpus=settings.pin_cpus,
        proxy_threads=settings.proxy_threads,
        locked_bytes=UNLIMITED if host.recorded else mine.locked_bytes,
        settings=mine.settings,
        suggested_cpus=tuple(near[-settings.proxy_threads :]) if len(near) > settings.proxy_threads else (),
    )
