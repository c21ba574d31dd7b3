"""A bare Debian of its own: nothing in it but what debootstrap's smallest variant has, and what a test installs.

The base is kept in build/clean-root. Each CleanRoot is a layer over it (overlayfs) that goes away with the context;
all mounts are in a mount namespace of the command that runs, so nothing of them is left in this machine.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PYTHON = (3, 11)  # the suite's
SOURCES = Path("/src")  # where the repository lies in a clean root, read-only
_BASE_LIMIT_S = 900  # some 100 packages are fetched and unpacked
# What a machine's administrator may have said about mirrors, proxies and certificates: as true inside as outside.
NETWORK = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/apt/apt.conf.d",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/ssl/certs/ca-certificates.crt",
)
_KEPT = re.compile(r"(PIP_\w+|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY|SSL_CERT_FILE)$")
# Where a layer cannot be laid (the file system is one itself, as in many containers) the base is copied, once a root.
_ENTER = """
set -e
over="lowerdir=$BASE,upperdir=$LAYER/upper,workdir=$LAYER/work"
if ! mount -t overlay overlay -o "$over" "$LAYER/root" 2>/dev/null; then
  [ -e "$LAYER/copied" ] || { cp -a "$BASE/." "$LAYER/root/"; touch "$LAYER/copied"; }
  cp -a "$LAYER/upper/." "$LAYER/root/"
fi
mount -t proc proc "$LAYER/root/proc"
mount --rbind /dev "$LAYER/root/dev"
bind() { mkdir -p "$LAYER/root$2"; mount --bind "$1" "$LAYER/root$2"; mount -o remount,bind,ro "$LAYER/root$2"; }
while [ "$1" != -- ]; do bind "$1" "$2"; shift 2; done
shift
exec chroot "$LAYER/root" "$@"
"""


def told() -> dict[str, str]:
    """Variables of this machine that pip and apt go by."""
    return {name: value for name, value in os.environ.items() if _KEPT.match(name)}


def missing() -> str:
    """Why no clean root can be made here; empty: it can, or can be tried."""
    if os.geteuid() != 0:
        return "not root"
    tools = [name for name in ("unshare", "chroot", "dpkg") if shutil.which(name) is None]
    if tools:
        return f"{', '.join(tools)} not installed"
    if sys.version_info[:2] != PYTHON:
        return "its Python is {}.{}, and a wheel is for the one that builds it".format(*PYTHON)
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "proc", "proc", folder]
        tried = subprocess.run(command, capture_output=True, text=True)
    return f"nothing may be mounted here: {tried.stderr.strip()}" if tried.returncode else ""


def unavailable() -> str:
    """Why there is no clean root here, and what to do; empty: there is one. It is made when it was not there."""
    why = missing()
    if not why:
        try:
            base()
        except subprocess.TimeoutExpired as error:
            why = f"debootstrap was not done within {error.timeout:.0f} s"
        except subprocess.CalledProcessError as error:
            said = (error.stdout or "") + (error.stderr or "")
            why = "debootstrap failed: " + " / ".join(said.splitlines()[-3:])
    fix = "as root, docker/install.sh roots, where mounting is allowed and a Debian mirror is reached"
    return f"a clean root cannot be made: {why}. Needed: {fix}" if why else ""


def _debootstrap(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command, and its environment. Where it is not installed its package is unpacked, and nothing installed."""
    if shutil.which("debootstrap"):
        return ["debootstrap"], {}
    for command in (["apt-get", "download", "debootstrap"], ["sh", "-c", "dpkg -x debootstrap_*.deb unpacked"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=100)
    return [f"{folder}/unpacked/usr/sbin/debootstrap"], {"DEBOOTSTRAP_DIR": f"{folder}/unpacked/usr/share/debootstrap"}


def mirror() -> str:
    """Where this machine's apt finds Debian; empty: where debootstrap looks by itself."""
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        found = re.search(r"^(?:URIs:\s*|deb (?:\[.*?\] )?)(\S*debian/?)\s", text, re.MULTILINE)
        if found:
            return found[1]
    return ""


def base() -> Path:
    """The bare system; made once.

    Raises:
        subprocess.SubprocessError: it could not be made: no network, or no mirror.
    """
    folder = ROOT / "build" / "clean-root" / SUITE
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as name:
        command, environment = _debootstrap(Path(name))
        target = Path(name) / "root"
        where = [mirror()] if mirror() else []
        words = [*command, "--variant=minbase", "--include=ca-certificates", SUITE, str(target), *where]
        around = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *words]
        subprocess.run(
            around, env={**os.environ, **environment}, check=True, capture_output=True, text=True, timeout=_BASE_LIMIT_S
        )
        target.rename(folder)  # in one step: nobody sees half a system
    return folder


class CleanRoot:
    """One layer over the base. A context manager."""

    def __enter__(self) -> CleanRoot:
        self._base = base()
        self._layer = tempfile.TemporaryDirectory(dir=self._base.parent, prefix="layer-")
        for name in ("upper", "work", "root"):
            (Path(self._layer.name) / name).mkdir()
        upper = Path(self._layer.name) / "upper"
        for name in NETWORK:
            source, target = Path(name), upper / name[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.is_file():
                shutil.copy(source.resolve(), target)
        user = Path.home() / ".config" / "pip" / "pip.conf"
        if user.is_file():
            (upper / "root/.config/pip").mkdir(parents=True)
            shutil.copy(user, upper / "root/.config/pip/pip.conf")
        return self

    def __exit__(self, *_: object) -> None:
        self._layer.cleanup()

    def put(self, path: Path) -> str:
        """Copies a file into the clean root; where it is there."""
        target = Path(self._layer.name) / "upper" / "brought" / path.name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
        return f"/brought/{path.name}"

    def run(self, command: Sequence[str], limit_s: float = 300, **environment: str) -> str:
        """What a command printed in the clean root, errors too.

        Raises:
            AssertionError: it failed; with what it printed. subprocess.TimeoutExpired: it took too long.
        """
        shared = {str(ROOT): str(SOURCES), **{folder: folder for folder in pip_folders()}}
        pairs = [word for pair in shared.items() for word in pair]
        kept = told() | environment
        clean = ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        clean += [f"{name}={value}" for name, value in kept.items()]
        around = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "clean-root"]
        done = subprocess.run(
            [*around, *pairs, "--", *clean, *command],
            env={**os.environ, "BASE": str(self._base), "LAYER": self._layer.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == 0, f"{shlex.join(command)}: ended with {done.returncode}\n{done.stdout}"
        return done.stdout


@functools.cache  # it starts a pip
def pip_folders() -> list[str]:
    """Local folders that this machine's pip takes packages from; they are shared with a clean root."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    words = re.findall(r"(?:file://)?(/[\w./-]+)", " ".join([said, *told().values()]))
    folders = {Path(word) for word in words if os.path.isdir(word)}
    # A package index links to files beside it; a folder right below a top one would bring too much.
    return sorted({str(folder.parent if len(folder.parts) > 3 else folder) for folder in folders})
