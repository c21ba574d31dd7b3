"""`python -m tests.docker.image`: builds docker/Dockerfile.cpu as it is, prints its size, and runs the demo in it.

No registry and no daemon: the base that the Dockerfile names is the clean root of clean_root.py, and buildah runs each
step in a chroot. uccl-ep comes as the wheel of tests/packaging, which is built already where that has run; compiling it
in a clean root is test_install.py's. Status 77 (NOT RUN) where there is no clean root or no buildah.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.docker import clean_root
from tests.docker.__main__ import STATUS_NOT_RUN
from tests.packaging.wheel import built_wheel

ROOT = clean_root.ROOT
DOCKERFILE = ROOT / "docker" / "Dockerfile.cpu"
IMAGE = "localhost/uccl-ep:cpu"
_LIMIT_S = 1500


class Store:
    """Images and containers of this run alone, in a folder that goes away with them."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run")]
        # In a container whose own files are an overlay no other can lie on it: whole copies, then.
        self.driver = "overlay"
        if not self._try("from", "--name", "probe", "scratch") or not self._try("mount", "probe"):
            self.driver = "vfs"
        self._try("rm", "probe")

    def run(self, *words: str) -> str:
        """What `buildah WORDS` wrote to its standard output; the rest is shown as it comes.

        Raises:
            subprocess.CalledProcessError: it failed. subprocess.TimeoutExpired: it took too long.
        """
        command = [*self._command, "--storage-driver", self.driver, *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S).stdout

    def _try(self, *words: str) -> bool:
        command = [*self._command, "--storage-driver", self.driver, *words]
        return subprocess.run(command, capture_output=True, timeout=_LIMIT_S).returncode == 0


def unavailable() -> str:
    """Why no image can be built here, and what to do; empty: it can."""
    if shutil.which("buildah") is None:
        return "buildah is not installed. Needed: as root, docker/install.sh images"
    return clean_root.unavailable()


def bases(dockerfile: str) -> set[str]:
    """The images that a Dockerfile takes from a registry."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    return set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages


def pip_settings() -> str:
    """This machine's variables for pip as a pip.conf, which a build can see without keeping it."""
    told = {name: value for name, value in clean_root.told().items() if name.startswith("PIP_")}
    return "\n".join(
        ["[global]", *(f"{name[4:].lower().replace('_', '-')} = {told[name]}" for name in sorted(told)), ""]
    )


def given(wheel: Path, settings: Path) -> list[str]:
    """Arguments of `buildah build`: what this machine says of mirrors and certificates, and the wheel."""
    # Where apt finds Debian is in the base already, and buildah brings resolv.conf itself.
    ours = [name for name in clean_root.NETWORK if "sources" not in name and "resolv" not in name]
    shared = {name: name for name in ours if Path(name).exists()}
    shared |= {folder: folder for folder in clean_root.pip_folders()}
    shared |= {str(settings): "/etc/xdg/pip/pip.conf", str(wheel.parent): "/wheel"}
    user = Path.home() / ".config" / "pip" / "pip.conf"
    if user.is_file():
        shared[str(user)] = "/root/.config/pip/pip.conf"
    words = [word for pair in shared.items() for word in ("--volume", ":".join(pair) + ":ro")]
    return [*words, "--build-arg", f"WHEEL=/wheel/{wheel.name}"]


def build(store: Store, wheel: Path, folder: Path) -> str:
    """Builds the base and the image; the image's size, in words."""
    (base,) = bases(DOCKERFILE.read_text(encoding="utf-8"))
    store.run("from", "--name", "base", "scratch")
    mounted = store.run("mount", "base").strip()
    subprocess.run(["cp", "-a", f"{clean_root.base()}/.", mounted], check=True, timeout=_LIMIT_S)
    store.run("commit", "--quiet", "--rm", "base", f"docker.io/library/{base}")
    settings = folder / "pip.conf"
    settings.write_text(pip_settings(), encoding="utf-8")
    where = ["--isolation", "chroot", "--network", "host", "--pull=false", "--file", str(DOCKERFILE)]
    store.run("build", *where, *given(wheel, settings), "--tag", IMAGE, str(ROOT))
    (about,) = json.loads(store.run("images", "--json", IMAGE))
    return str(about["size"])


def main(arguments: Sequence[str] = ()) -> int:
    """The exit status: 0, 77, or an error's traceback."""
    why = unavailable()
    if why:
        print(f"NOT RUN: {why}", flush=True)
        return STATUS_NOT_RUN
    begin = time.monotonic()
    wheel = built_wheel()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="image-") as folder:
        store = Store(Path(folder))
        print(f"the wheel is there after {time.monotonic() - begin:.0f} s; images as {store.driver}", flush=True)
        try:
            size = build(store, wheel, Path(folder))
            print(f"{IMAGE}: {size}, built after {time.monotonic() - begin:.0f} s", flush=True)
            store.run("from", "--name", "try", IMAGE)
            for command in (["uccl-ep", "version"], ["uccl-ep", "demo", *arguments]):
                print(f"$ {' '.join(command)}", flush=True)
                print(store.run("run", "--isolation", "chroot", "try", "--", *command), flush=True)
        finally:
            store.run("rm", "--all")
    print(f"image and demo: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
