"""Path host: ranks of one host, which map each other's memory and notice each other's end."""

from __future__ import annotations

import os
import subprocess
import sys

from uccl_ep.group.handshake import host_identity
from uccl_ep.sizes import format_bytes
from uccl_ep.tools.doctor import limits
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import Answer, Check, missing, not_needed, ok, slow

_LEAST_SHM_BYTES = 1 << 30  # of torch's data loaders and libfabric's shm; Docker's default of 64 MiB is too little
_CHILD_S = 20.0
_HOLDER = (  # a peer: makes a segment, says which descriptor it is, and holds it until its standard input ends
    "import os, sys; fd = os.memfd_create('uccl-ep-doctor'); os.write(fd, b'seen'); "
    "print(fd, flush=True); sys.stdin.read()"
)


def segments(host: Host) -> Answer:
    """Memory without a name, which ends with its last user."""
    try:
        os.close(os.memfd_create("uccl-ep-doctor"))
    except OSError as error:
        return missing(
            f"memfd_create fails: {error.strerror}",
            "memfd_create",
            "allow it in the container's seccomp profile (docker run --security-opt seccomp=unconfined to try)",
        )
    return ok("memfd_create works")


def peers_memory(host: Host) -> Answer:
    """Another process's segment, opened as ranks do: through /proc/<pid>/fd."""
    needed = "/proc/<pid>/fd of ranks of the same user can be opened (ptrace access mode read)"
    scope = host.text_or(f"{host.proc}/sys/kernel/yama/ptrace_scope")
    beside = f"; yama ptrace_scope {scope}, which only concerns attaching" if scope else ""
    # closed here: its standard input ends with the `with`, and it with that
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            problem = _look_into(child)
        finally:
            child.kill()
    if problem:
        fix = (
            "run the ranks of a host as one user in one pid namespace (one container, or docker run --pid=host), "
            "with /proc mounted without hidepid"
        )
        return missing(problem + beside, needed, fix)
    return ok("a child's segment was opened and read" + beside, needed)


def _look_into(child: subprocess.Popen[str]) -> str:
    """Why the child's segment cannot be read; empty: it can."""
    assert child.stdout is not None
    number = child.stdout.readline().strip()
    if not number.isdecimal():
        return "a second Python process could not make a segment"
    path = f"/proc/{child.pid}/fd/{number}"
    try:
        with open(path, "rb") as file:
            return "" if file.read() == b"seen" else f"{path} is not what the child wrote"
    except OSError as error:
        return f"{path}: {error.strerror}"


def one_host(host: Host) -> Answer:
    """How ranks know that they are on one host: the kernel's boot, the pid namespace, and who they run as."""
    identity = host_identity()
    if host.has(f"{host.proc}/sys/kernel/random/boot_id"):
        return ok(f"boot/pid namespace/user:group {identity}")
    return slow(
        f"by host name and network card only ({identity})",
        "/proc/sys/kernel/random/boot_id",
        "mount /proc in the container; without it two containers of a host may count as one or as two",
    )


def process_watch(host: Host) -> Answer:
    """How fast the end of a rank is seen."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return slow(
            f"pidfd_open fails ({error}); /proc/<pid>/stat is read every 100 ms instead",
            "pidfd_open: Linux 5.3, allowed by the container's seccomp profile",
            "update the kernel or the container runtime",
        )
    return ok("pidfd_open works: the end of a rank is seen at once")


def shm(host: Host) -> Answer:
    """/dev/shm: not used by our own segments, by others' in the same job."""
    folder = f"{host.dev}/shm"
    if not host.has(folder):
        return not_needed(f"there is no {folder}; our segments need none")
    room = os.statvfs(folder)
    total, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    shown, needed = f"{format_bytes(free)} free of {format_bytes(total)}", format_bytes(_LEAST_SHM_BYTES)
    if total < _LEAST_SHM_BYTES:
        return slow(shown, f"{needed} (torch's data loaders, libfabric's shm)", "docker run --shm-size=16g, --ipc=host")
    return ok(shown, needed)


CHECKS = (
    Check("host", "segments", segments),
    Check("host", "peers' memory", peers_memory),
    Check("host", "host identity", one_host),
    Check("host", "process watch", process_watch),
    Check("host", "open files", limits.open_files),
    Check("host", "/dev/shm", shm),
)
