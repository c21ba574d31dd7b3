"""What the guest is made of: tools of this machine (docker/install.sh rdma installs them) and a kernel package, which
is downloaded and unpacked but never installed."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Program -> the Debian package that has it. The guest sees this machine's root, so what it runs is here too.
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "ip": "iproute2",
    "tc": "iproute2",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_bw": "perftest",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}
_META = "linux-image-amd64"  # Debian's name for its newest kernel; the cloud flavour has neither rxe nor 9p
_DOWNLOAD_S = 300
# apt's own download user cannot write into a folder of another user, and drops to that user only as root.
_APT = ("-o", "APT::Sandbox::User=root")


class Unavailable(Exception):
    """No guest can be had on this machine; the text says why and what to do."""


@dataclass(frozen=True)
class KernelPackage:
    """A kernel package as apt knows it."""

    name: str
    version: str


def missing_tools() -> list[str]:
    """Packages that this machine lacks, sorted."""
    return sorted({package for program, package in TOOLS.items() if _which(program) is None})


def _which(program: str) -> str | None:
    # Not every user's PATH has the folders of the administrator's programs.
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def tool(program: str) -> str:
    """Path of one of TOOLS.

    Raises:
        Unavailable: it is not installed.
    """
    found = _which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed (package {TOOLS[program]}): run docker/install.sh rdma as root")
    return found


def require() -> None:
    """Installs what is missing where that can be done.

    Raises:
        Unavailable: another processor, another distribution, or a missing package that could not be installed.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest is an x86_64 machine with this machine's programs; this is {platform.machine()}")
    if not missing_tools():
        return
    done = subprocess.run([str(ROOT / "docker/install.sh"), "rdma"], capture_output=True, text=True)
    if still := missing_tools():
        raise Unavailable(f"not installed: {' '.join(still)}. docker/install.sh rdma said: {_last(done)}")


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def parse_kernel(depends: str, policy: str) -> KernelPackage:
    """From `apt-cache depends` of the meta-package and `apt-cache policy` of what it depends on.

    Raises:
        Unavailable: apt does not know them.
    """
    name = re.search(r"Depends: (linux-image-\S+)", depends)
    version = re.search(r"Candidate: (?!\(none\))(\S+)", policy)
    if name is None or version is None:
        raise Unavailable(f"apt has no {_META}: is this Debian, and was apt-get update run (docker/install.sh rdma)?")
    return KernelPackage(name[1], version[1])


def newest_kernel() -> KernelPackage:
    """The kernel package that apt would install.

    Raises:
        Unavailable: apt does not know one.
    """
    depends = _apt_cache("depends", _META)
    name = re.search(r"Depends: (linux-image-\S+)", depends)
    return parse_kernel(depends, _apt_cache("policy", name[1]) if name else "")


def _apt_cache(*arguments: str) -> str:
    return subprocess.run(["apt-cache", *_APT, *arguments], capture_output=True, text=True).stdout


def unpack_kernel(kernel: KernelPackage, target: Path) -> None:
    """Downloads the package into `target`'s parent and unpacks it into `target`, which then holds boot/ and lib/.

    Raises:
        Unavailable: it cannot be downloaded.
    """
    downloads = target.parent / "download"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir(parents=True)
    command = ["apt-get", "-qq", *_APT, "download", f"{kernel.name}={kernel.version}"]
    try:
        done = subprocess.run(command, cwd=downloads, capture_output=True, text=True, timeout=_DOWNLOAD_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{kernel.name} did not download within {_DOWNLOAD_S} s") from error
    found = list(downloads.glob("*.deb"))
    if done.returncode != 0 or len(found) != 1:
        raise Unavailable(f"{' '.join(command)} failed: {_last(done)}")
    subprocess.run(["dpkg-deb", "-x", str(found[0]), str(target)], check=True)
    shutil.rmtree(downloads)
    if not (target / "lib/modules").exists():  # a system whose /lib is a link to usr/lib
        (target / "lib").mkdir(exist_ok=True)
        (target / "lib/modules").symlink_to("../usr/lib/modules")
