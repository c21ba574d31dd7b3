"""The image's parts from made-up kernels and modules: unpacking, loading order, the archive, the cache's key."""

from __future__ import annotations

import gzip
import lzma
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rdma.guest import image
from tests.rdma.guest.packages import KernelPackage, Unavailable

ELF = b"\x7fELF" + bytes(range(256)) * 40
DEPENDENCIES = """kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko kernel/fs/fscache/fscache.ko
kernel/net/9p/9pnet.ko:
kernel/fs/netfs/netfs.ko: kernel/fs/fscache/fscache.ko
kernel/fs/fscache/fscache.ko:
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko kernel/drivers/virtio/virtio-ring.ko
kernel/drivers/virtio/virtio-ring.ko:
"""


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_rdma_image_finds_the_kernel_behind_decoys(compress: object) -> None:
    assert callable(compress)
    noise = random.Random(5).randbytes(5000)
    decoy = b"\xfd7zXZ\x00 no stream \x1f\x8b\x08 neither "
    assert image.extract_kernel(noise + decoy + compress(b"not it") + compress(ELF) + noise) == ELF


def test_rdma_image_no_kernel_inside() -> None:
    with pytest.raises(Unavailable, match="no kernel"):
        image.extract_kernel(b"MZ" + bytes(1000))


def test_rdma_image_modules_load_after_what_they_need() -> None:
    order = image.module_files(
        DEPENDENCIES, "kernel/drivers/virtio/virtio_pci.ko\n", ("virtio_pci", "9p", "9pnet_virtio")
    )
    assert len(order) == len(set(order)) == 6
    needs = {line.partition(":")[0]: line.partition(":")[2].split() for line in DEPENDENCIES.splitlines()}
    for file in order:
        assert all(order.index(needed) < order.index(file) for needed in needs[file])


def test_rdma_image_a_kernel_without_9p() -> None:
    with pytest.raises(Unavailable, match="no module overlay"):
        image.module_files(DEPENDENCIES, "", ("9p", "overlay"))


def test_rdma_image_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "init": b"#!/bin/sh\n",
        "bin/busybox": bytes(4099),
        "bin/sh": "busybox",
        "a/b/c": b"",
    }
    archive = image.cpio(files)
    assert len(archive) % 4 == 0 and archive.startswith(b"070701") and b"TRAILER!!!" in archive
    if shutil.which("cpio") is None:
        pytest.skip("cpio is not installed to read the archive back")
    subprocess.run(["cpio", "-idm", "--quiet"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "bin/busybox").read_bytes() == bytes(4099) and (tmp_path / "bin/sh").readlink() == Path(
        "busybox"
    )
    assert (tmp_path / "init").stat().st_mode & 0o111 and (tmp_path / "a/b/c").read_bytes() == b""
    assert (tmp_path / "proc").is_dir() and (tmp_path / "whole").is_dir()


def test_rdma_image_key_follows_package_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("image.py", "packages.py", "first.sh"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(image, "HERE", tmp_path)
    first = image.key(KernelPackage("linux-image-6", "1"))
    assert first.startswith("linux-image-6-") and first == image.key(KernelPackage("linux-image-6", "1"))
    other_version = image.key(KernelPackage("linux-image-6", "2"))
    (tmp_path / "first.sh").write_text("changed")
    assert len({first, other_version, image.key(KernelPackage("linux-image-6", "1"))}) == 3


def test_rdma_image_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(kernel: KernelPackage, folder: Path) -> None:
        made.append(kernel)
        (folder / "tree/lib/modules/6.1.0").mkdir(parents=True)

    kernel = KernelPackage("linux-image-6", "1")
    monkeypatch.setattr(image, "require", lambda: None)
    monkeypatch.setattr(image, "newest_kernel", lambda: kernel)
    monkeypatch.setattr(image, "_make", make)
    (tmp_path / image.key(kernel)).mkdir(parents=True)  # one that was interrupted
    (tmp_path / "linux-image-5-old").mkdir()
    found = image.prepare(tmp_path)
    assert found == image.prepare(tmp_path) and len(made) == 1
    assert found.release == "6.1.0" and not (tmp_path / "linux-image-5-old").exists()


def test_rdma_image_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UCCL_EP_CACHE_DIR", raising=False)
    assert image.cache_folder().parts[-2:] == ("build", "rdma")
    monkeypatch.setenv("UCCL_EP_CACHE_DIR", str(tmp_path))
    assert image.cache_folder() == tmp_path / "rdma"
