"""Path cpu: kernels that run on this machine's processors. Everything else is built upon it."""

from __future__ import annotations

import importlib
import platform
import sys
from importlib import metadata

from uccl_ep.settings import PREFIX
from uccl_ep.tools.doctor import limits
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, ok, slow

_MOST_LISTED = 4
_LEAST_PYTHON = (3, 10)
_PACKAGES = (("torch", (2, 4)), ("numpy", (1, 24)), ("msgpack", (1, 0)), ("psutil", (5, 9)))
_LEAST_LINUX = (4, 18)  # memfd_create and what the wheel's C library asks for


def python(host: Host) -> Answer:
    """The interpreter."""
    found = f"{platform.python_version()} ({sys.implementation.name}, {platform.machine()})"
    needed = ".".join(map(str, _LEAST_PYTHON)) + " or newer"
    if sys.version_info[:2] < _LEAST_PYTHON:
        return missing(found, needed, "install a newer Python and uccl-ep into it")
    return ok(found, needed)


def linux(host: Host) -> Answer:
    """The kernel, and the C library."""
    release = host.text_or(f"{host.proc}/sys/kernel/osrelease") or platform.release()
    libc = " ".join(platform.libc_ver()).strip() or "another C library than glibc"
    needed = ".".join(map(str, _LEAST_LINUX)) + " or newer"
    numbers = version_of(release)
    if numbers and numbers < _LEAST_LINUX:
        return missing(f"{release}, {libc}", needed, "update the host's kernel: a container cannot bring its own")
    return ok(f"{release}, {libc}", needed)


def native_module(host: Host) -> Answer:
    """The compiled half of this package."""
    import uccl_ep

    try:
        native = importlib.import_module("uccl_ep._native")
    except ImportError as error:
        return missing(
            f"cannot be loaded: {error}",
            "uccl_ep._native",
            "in its checkout: pip install --force-reinstall --no-deps . (for this Python, processor and C library)",
        )
    return ok(f"uccl-ep {uccl_ep.__version__}, {native.__file__}")


def packages(host: Host) -> Answer:
    """What this package imports, by the versions that are installed."""
    found, wrong, wanted = [], [], []
    for name, least in _PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is not installed")
            wanted.append(name)
            continue
        found.append(f"{name} {version}")
        if version_of(version) < least:
            wrong.append(f"{name} {version} is older than {'.'.join(map(str, least))}")
            wanted.append(name)
    needed = ", ".join(f"{name} {'.'.join(map(str, least))}" for name, least in _PACKAGES)
    if wrong:
        return missing("; ".join([*wrong, *found]), needed, f"pip install --upgrade {' '.join(wanted)}")
    return ok(", ".join(found), needed)


def variables(host: Host) -> Answer:
    """UCCL_EP_* variables, and those of others under them, as a job started from here would read them."""
    if host.settings_problem:
        return missing(host.settings_problem, "values that are allowed", "uccl-ep env lists what each may be")
    if host.settings_warnings:
        return slow(
            "; ".join(host.settings_warnings), "what is read here", "unset it, or set the UCCL_EP_* that it means"
        )
    given = [f"{name}={host.environment[name]}" for name in sorted(host.environment) if name.startswith(PREFIX)]
    given += [f"{PREFIX}{value.field.upper()} by {value.words}" for value in host.settings.site]
    return ok(", ".join(given) or "all at their defaults")


def numa(host: Host) -> Answer:
    """Nodes of memory, for where ranks and proxies should run."""
    nodes = host.machine.cpus_of_node
    if not nodes:
        return slow(
            f"sysfs shows none{_hidden(host)}",
            "NUMA nodes and their CPUs",
            "mount /sys into the container, so that ranks can be kept near their GPUs and NICs",
        )
    here = host.machine.numa_of(host.cpus())
    where = f"this process on node {here}" if here >= 0 else "this process on CPUs of several"
    return ok(f"{len(nodes)} node(s) with {', '.join(str(len(cpus)) for _, cpus in nodes)} CPUs; {where}")


def sysfs(host: Host) -> Answer:
    """What of this machine's devices can be seen at all."""
    seen = f"{len(host.machine.gpus)} GPU(s), {len(host.machine.nics)} NIC(s)"
    unreadable = host.machine.unreadable
    if unreadable:
        shown = f"{seen}; {len(unreadable)} entries cannot be read: {'; '.join(unreadable[:_MOST_LISTED])}"
        fix = "run the container with a policy that lets it read /sys (read-only is enough), or as another user"
        return slow(shown, f"{host.sys} that can be read", fix)
    return ok(seen)


def _hidden(host: Host) -> str:
    hidden = [path for path in host.machine.unreadable if "system/node" in path]
    return f" ({hidden[0]})" if hidden else ""


def version_of(text: str) -> tuple[int, int]:
    """(major, minor) of "2.4.1+cpu" or "6.8.0-1030-aws"; (0, 0) of anything else."""
    parts = text.split(".")
    digits = ["".join(c for c in part if c.isdecimal()) for part in parts[:2]]
    if len(digits) < 2 or not all(digits):
        return 0, 0
    return int(digits[0]), int(digits[1])


CHECKS = (
    Check("cpu", "Python", python),
    Check("cpu", "Linux", linux),
    Check("cpu", "native module", native_module),
    Check("cpu", "packages", packages),
    Check("cpu", "variables", variables),
    Check("cpu", "processors", limits.processors),
    Check("cpu", "memory", limits.memory),
    Check("cpu", "NUMA", numa),
    Check("cpu", "sysfs", sysfs),
)
