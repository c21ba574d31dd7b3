"""Releases of rdma-core to run: the one that this machine has, and Debian's newer ones, downloaded and never installed.

A newer one brings its own C library, whose loader then runs our program: nothing of this machine's is replaced."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("trixie", "sid")
_PACKAGES = (
    "libibverbs1",
    "ibverbs-providers",
    "libnl-3-200",
    "libnl-route-3-200",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "libfabric1",
    "librdmacm1t64",
    "libpsm2-2",
    "libnuma1",
)
_TRIPLET = "x86_64-linux-gnu"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TOO_LONG_S = 300


class Unavailable(Exception):
    """A release cannot be had on this machine; the text says why and what to do."""


@dataclass(frozen=True)
class Release:
    """Libraries of one release of rdma-core.

    Attributes:
        name: its version as Debian has it, "44.0-2".
        command: what stands before a program to run it with these libraries.
        libraries: the folder that libibverbs.so.1 is in.
    """

    name: str
    command: tuple[str, ...]
    libraries: Path

    def has(self, provider: str) -> bool:
        """Whether this release brings that driver; libfabric, whose efa provider runs over libefa, lies beside them."""
        if provider == "libfabric":
            return (self.libraries / "libfabric.so.1").exists()
        return any((self.libraries / "libibverbs").glob(f"lib{provider}-rdmav*.so"))


def installed() -> Release:
    """The release that this machine has.

    Raises:
        Unavailable: there is none.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the box reads stores of x86-64 code; this is {platform.machine()}")
    asked = ["dpkg-query", "-W", "-f", "${Version}", "ibverbs-providers"]
    known = shutil.which("dpkg-query") and subprocess.run(asked, capture_output=True, text=True)
    if not known or known.returncode != 0:
        raise Unavailable("ibverbs-providers is not installed: run docker/install.sh verbs as root")
    return Release(known.stdout, (), Path("/usr/lib") / _TRIPLET)


def from_suite(suite: str, cache: Path) -> Release:
    """What a suite of Debian has, from the cache where it is there.

    Raises:
        Unavailable: it cannot be downloaded.
    """
    folder = cache / suite
    done = folder / "version"
    packages = " ".join(_PACKAGES)
    if not done.exists() or done.read_text().splitlines()[1:] != [packages]:  # an earlier one of fewer packages
        shutil.rmtree(folder, ignore_errors=True)
        version = _download(suite, folder)
        done.write_text(f"{version}\n{packages}\n")
    libraries = folder / "root/usr/lib" / _TRIPLET
    loader = libraries / "ld-linux-x86-64.so.2"
    return Release(done.read_text().splitlines()[0], (str(loader), "--library-path", str(libraries)), libraries)


def mirror(targets: str) -> str:
    """Where this machine has Debian from, of what `apt-get indextargets` printed ("origin site" a line).

    Raises:
        Unavailable: it has Debian from nowhere.
    """
    for line in targets.splitlines():
        origin, _, site = line.partition(" ")
        if origin == "Debian" and "security" not in site:
            return site
    raise Unavailable("apt knows no mirror of Debian: is this Debian, and was apt-get update run?")


def _run(command: list[str], where: Path) -> str:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=_TOO_LONG_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[-2:])} failed: {last[-1] if last else done.returncode}")
    return done.stdout


def _download(suite: str, folder: Path) -> str:
    """Fills folder/root; the version of ibverbs-providers. apt gets lists of its own, and checks its signatures."""
    for part in ("lists/partial", "archives/partial", "debs", "root"):
        (folder / part).mkdir(parents=True)
    site = mirror(_run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)"], folder))
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {site} {suite} main\n")
    apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Etc::sourcelist={folder}/sources.list"]
    apt += ["-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}"]
    _run([*apt, "update"], folder)
    _run([*apt, "download", *_PACKAGES], folder / "debs")
    version = ""
    for package in sorted((folder / "debs").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)
        if package.name.startswith("ibverbs-providers_"):
            version = package.name.split("_")[1]
    for part in ("lists", "archives", "debs"):
        shutil.rmtree(folder / part)
    return version
