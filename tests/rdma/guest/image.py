"""The guest's kernel and first file system, made once and cached by content.

The kernel is taken out of its compressed file, because QEMU then starts it directly: an emulated processor takes
seconds to decompress one. The first file system holds busybox and only the modules that mount this machine's root.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.rdma.guest.packages import ROOT, KernelPackage, Unavailable, newest_kernel, require, tool, unpack_kernel

HERE = Path(__file__).resolve().parent
FIRST_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
_APPLETS = ("sh", "mount", "umount", "insmod", "switch_root", "mkdir", "poweroff")
_XZ, _ZSTD, _GZIP = b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"


@dataclass(frozen=True)
class Image:
    """What QEMU boots, and the modules of the same kernel, which the guest binds onto /lib/modules.

    Attributes:
        modules: the folder whose name is the kernel's release.
    """

    kernel: Path
    first: Path
    modules: Path

    @property
    def release(self) -> str:
        """What `uname -r` says in the guest."""
        return self.modules.name


def cache_folder() -> Path:
    """Where images and runs are kept: UCCL_EP_CACHE_DIR, else the checkout's build folder."""
    chosen = os.environ.get("UCCL_EP_CACHE_DIR", "").strip()
    return (Path(chosen).expanduser().absolute() if chosen else ROOT / "build") / "rdma"


def prepare(cache: Path) -> Image:
    """The image of the newest kernel, from the cache where its key is there.

    Raises:
        Unavailable: see packages.py.
    """
    require()
    kernel = newest_kernel()
    folder = cache / key(kernel)
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _make(kernel, folder)
        (folder / "done").write_text(f"{kernel.name} {kernel.version}\n")
        _forget_others(folder)
    (modules,) = (folder / "tree/lib/modules").iterdir()
    return Image(folder / "vmlinux", folder / "first.cpio.gz", modules)


def key(kernel: KernelPackage) -> str:
    """Names an image by all that decides its bytes: the kernel package, and the files here that make it."""
    digest = hashlib.sha256(f"{kernel.name} {kernel.version}\n".encode())
    for name in ("image.py", "packages.py", "first.sh"):
        digest.update((HERE / name).read_bytes())
    return f"{kernel.name}-{digest.hexdigest()[:16]}"


def _make(kernel: KernelPackage, folder: Path) -> None:
    tree = folder / "tree"
    unpack_kernel(kernel, tree)
    (compressed,) = (tree / "boot").glob("vmlinuz-*")
    (folder / "vmlinux").write_bytes(extract_kernel(compressed.read_bytes()))
    (modules,) = (tree / "lib/modules").iterdir()
    subprocess.run([tool("depmod"), "-b", str(tree), modules.name], check=True)
    files = dict(_first_files(modules))
    (folder / "first.cpio.gz").write_bytes(gzip.compress(cpio(files), 1))


def _forget_others(folder: Path) -> None:
    """Deletes older images: each is 500 MB."""
    for other in folder.parent.iterdir():
        if other != folder and other.name.startswith("linux-image-"):
            shutil.rmtree(other, ignore_errors=True)


def extract_kernel(data: bytes) -> bytes:
    """The ELF file inside a bzImage, whatever it was compressed with.

    Raises:
        Unavailable: there is none.
    """
    for magic in (_XZ, _ZSTD, _GZIP):
        at = data.find(magic)
        while at >= 0:
            inner = _decompress(magic, data[at:])
            if inner.startswith(b"\x7fELF"):
                return inner
            at = data.find(magic, at + 1)
    raise Unavailable("the kernel package's vmlinuz holds no kernel that can be unpacked (xz, zstd or gzip)")


def _decompress(magic: bytes, data: bytes) -> bytes:
    """What a stream at the front of `data` holds; what follows the stream is ignored; empty: it is no stream."""
    if magic == _ZSTD:
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True).stdout
    try:
        if magic == _XZ:
            return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)
        return zlib.decompressobj(wbits=31).decompress(data)
    except (lzma.LZMAError, zlib.error):
        return b""


def module_files(dependencies: str, builtin: str, wanted: Iterable[str]) -> list[str]:
    """Files of `wanted` modules and all they need, in loading order, from modules.dep and modules.builtin.

    Raises:
        Unavailable: a module is neither in a file nor built in.
    """
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
    files = {_module_name(file): file for file in needs}
    inside = {_module_name(line) for line in builtin.splitlines()}
    order: list[str] = []

    def add(file: str) -> None:
        for needed in reversed(needs[file]):  # modules.dep lists the nearest first
            add(needed)
        if file not in order:
            order.append(file)

    for name in wanted:
        if name in files:
            add(files[name])
        elif name not in inside:
            raise Unavailable(f"the kernel has no module {name}")
    return order


def _module_name(file: str) -> str:
    return file.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")


def _first_files(modules: Path) -> Iterable[tuple[str, bytes | str]]:
    """Contents of the first file system: bytes are an executable file, a str is what a link points to."""
    yield "init", (HERE / "first.sh").read_bytes()
    yield "bin/busybox", Path(tool("busybox")).read_bytes()
    for applet in _APPLETS:
        yield f"bin/{applet}", "busybox"
    names = []
    texts = [(modules / name).read_text() for name in ("modules.dep", "modules.builtin")]
    for file in module_files(*texts, FIRST_MODULES):  # type: ignore[call-arg]
        data = (modules / file).read_bytes()
        name = f"{_module_name(file)}.ko"
        yield f"modules/{name}", _decompress(_XZ, data) if file.endswith(".xz") else data
        names.append(name)
    yield "modules/order", "".join(f"{name}\n" for name in names).encode()


def cpio(files: dict[str, bytes | str]) -> bytes:
    """An archive in the kernel's format ("newc"), with the folders that the paths need and the usual empty ones."""
    folders = {"dev", "proc", "sys", "below", "above", "whole"}
    for path in files:
        folders.update("/".join(path.split("/")[:n]) for n in range(1, path.count("/") + 1))
    parts = [_entry(path, 0o040755, b"") for path in sorted(folders)]
    for path, content in files.items():
        link = isinstance(content, str)
        parts.append(_entry(path, 0o120777 if link else 0o100755, content.encode() if link else content))
    parts.append(_entry("TRAILER!!!", 0, b""))
    return b"".join(parts)


def _entry(path: str, mode: int, data: bytes) -> bytes:
    name = path.encode() + b"\0"
    fields = (hash_of(path), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
    return _padded(head) + _padded(data)


def hash_of(path: str) -> int:
    """An inode number: any, as long as no two entries share one."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "little")


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
