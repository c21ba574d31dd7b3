"""What apt says of kernels, and what is said where tools are missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rdma.guest import packages
from tests.rdma.guest.packages import KernelPackage, Unavailable

DEPENDS = """linux-image-amd64
  Depends: linux-image-6.1.0-56-amd64
"""
POLICY = """linux-image-6.1.0-56-amd64:
  Installed: (none)
  Candidate: 6.1.192-2
  Version table:
"""


def test_rdma_packages_reads_apts_answers() -> None:
    assert packages.parse_kernel(DEPENDS, POLICY) == KernelPackage("linux-image-6.1.0-56-amd64", "6.1.192-2")


@pytest.mark.parametrize(
    ("depends", "policy"), [("", ""), (DEPENDS, ""), (DEPENDS, POLICY.replace("6.1.192-2", "(none)")), ("", POLICY)]
)
def test_rdma_packages_a_kernel_that_apt_does_not_have(depends: str, policy: str) -> None:
    with pytest.raises(Unavailable, match=r"linux-image-amd64.*docker/install\.sh rdma"):
        packages.parse_kernel(depends, policy)


def test_rdma_packages_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_which", lambda program: None if program in ("tc", "ip", "busybox") else program)
    assert packages.missing_tools() == ["busybox-static", "iproute2"]
    with pytest.raises(Unavailable, match="busybox is not installed"):
        packages.tool("busybox")
    assert packages.tool("depmod") == "depmod"


def test_rdma_packages_installs_once_and_says_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def run(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 1, "", "not root, or no apt-get\n")

    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages, "_which", lambda program: None)
    monkeypatch.setattr(packages.subprocess, "run", run)
    with pytest.raises(Unavailable, match=r"qemu-system-x86.*not root, or no apt-get"):
        packages.require()
    assert len(ran) == 1 and ran[0][-1] == "rdma"


def test_rdma_packages_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.platform, "machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match="aarch64"):
        packages.require()


def test_rdma_packages_a_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: Unable to locate package\n")

    monkeypatch.setattr(packages.subprocess, "run", run)
    with pytest.raises(Unavailable, match="Unable to locate package"):
        packages.unpack_kernel(KernelPackage("linux-image-0", "1"), tmp_path / "tree")


def test_rdma_packages_install_script_knows_them_all() -> None:
    script = (packages.ROOT / "docker/install.sh").read_text()
    rdma = script[script.index("rdma") :]
    assert not [package for package in set(packages.TOOLS.values()) - {"apt", "dpkg"} if package not in rdma]
