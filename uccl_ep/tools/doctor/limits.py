"""What a container or a login allows: cgroup memory and CPU time (both cgroup versions), locked memory, open files."""

from __future__ import annotations

import resource

from uccl_ep.sizes import format_bytes
from uccl_ep.system.cgroups import Cgroups
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, missing, ok, slow

LEAST_MEMORY_BYTES = 2 << 30  # a rank of small sizes with torch loaded
LEAST_LOCKED_BYTES = 256 << 20  # under this not even small buffers can be registered with a NIC
GOOD_LOCKED_BYTES = 16 << 30
GOOD_OPEN_FILES = 4096  # ranks of a host open about 4 files for each other, a socket each for ranks of other hosts


def memory(host: Host) -> Answer:
    """Memory that this process could take; every byte of a Buffer on the CPU counts, since memfds are shared memory."""
    facts = dict(line.split(":", 1) for line in host.text(f"{host.proc}/meminfo").splitlines() if ":" in line)
    available = int(facts.get("MemAvailable", facts.get("MemFree", "0 kB")).split()[0]) << 10
    limit = Cgroups(host.proc, host.sys).memory_limit()
    shown = f"{format_bytes(available)} available, cgroup limit {format_bytes(limit) if limit else 'none'}"
    needed = f"{format_bytes(LEAST_MEMORY_BYTES)} a rank, and what `uccl-ep plan` bills"
    if min(available, limit or available) < LEAST_MEMORY_BYTES:
        return slow(shown, needed, "docker run --memory=..., resources.limits.memory of the pod, srun --mem=...")
    return ok(shown, needed)


def processors(host: Host) -> Answer:
    """CPUs that this process may run on; the proxy and the kernels of a rank both spin while they wait."""
    allowed, limit = len(host.cpus()), Cgroups(host.proc, host.sys).cpu_limit()
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in host.text_or(f"{host.proc}/cpuinfo").splitlines()
            if "model name" in line
        ),
        "unknown model",
    )
    shown = f"{allowed} CPU(s) of {model}, cgroup limit {f'{limit:g}' if limit else 'none'}"
    each = 1 + host.settings.proxy_threads
    needed = f"{each} a rank (one that computes, UCCL_EP_PROXY_THREADS={host.settings.proxy_threads} for its proxy)"
    if min(allowed, limit or allowed) < each:
        return slow(shown, needed, "docker run --cpus=..., resources.limits.cpu of the pod, srun --cpus-per-task=...")
    return ok(shown, needed)


def locked_memory(host: Host) -> Answer:
    """What a NIC registers is locked."""
    soft, hard = host.rlimit(resource.RLIMIT_MEMLOCK)
    needed = "unlimited, or at least what `uccl-ep plan` bills for the ranks of this host"
    if soft == resource.RLIM_INFINITY:
        return ok("unlimited", needed)
    shown = f"{format_bytes(soft)} (hard limit {_amount(hard)})"
    if host.locks_any_memory():
        return ok(f"{shown}, which CAP_IPC_LOCK overrides", needed)
    fix = (
        "ulimit -l unlimited; docker run --ulimit memlock=-1:-1; LimitMEMLOCK=infinity in the unit that starts jobs; "
        "* - memlock unlimited in /etc/security/limits.conf"
    )
    if soft < LEAST_LOCKED_BYTES:
        return missing(shown, needed, fix)
    return slow(shown, needed, fix) if soft < GOOD_LOCKED_BYTES else ok(shown, needed)


def open_files(host: Host) -> Answer:
    """Descriptors: shared segments of the host's ranks, sockets to other hosts' ranks."""
    soft, hard = host.rlimit(resource.RLIMIT_NOFILE)
    shown = f"{_amount(soft, plain=True)} (hard limit {_amount(hard, plain=True)})"
    needed = f"{GOOD_OPEN_FILES} for jobs of hundreds of ranks"
    if soft != resource.RLIM_INFINITY and soft < GOOD_OPEN_FILES:
        return slow(shown, needed, f"ulimit -n {GOOD_OPEN_FILES}; docker run --ulimit nofile={GOOD_OPEN_FILES}")
    return ok(shown, needed)


def _amount(value: int, plain: bool = False) -> str:
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return str(value) if plain else format_bytes(value)
