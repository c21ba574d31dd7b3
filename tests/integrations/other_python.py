"""What lies beneath an integrator that wants a newer Python than the one that runs the tests.

The same things as in the Python of the tests: the releases that constraints.txt pins, torch among them, and uccl_ep
itself, editable, its native module compiled for that Python. Made once for each Python; a changed native source makes
pip compile again what depends on it. Where pip knows no CPU build of torch for that Python, it takes the one with CUDA:
gigabytes. PIP_EXTRA_INDEX_URL tells pip where a CPU build is.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interpreters import interpreter

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("scikit-build-core", "nanobind", "cmake", "ninja")  # as the Makefile: a second build compiles what changed
_NATIVE = ("proxy", "kernels", "cmake", "CMakeLists.txt", "pyproject.toml")
_INSTALL_LIMIT_S = 3000  # a torch with CUDA and what it brings, and the compilation of the native module
_STAMP = "installed"


class NoSuchPython(Exception):
    """No interpreter of that version here, or what must lie beneath cannot be installed; the message says which."""


def site_of(environment: Path) -> Path:
    """Where an environment's packages lie."""
    (site,) = environment.glob("lib/python*/site-packages")
    return site


def beneath(version: str, cache_folder: Path) -> tuple[Path, Path]:
    """(interpreter, environment with torch and uccl_ep) of Python `version`, which is made when there is none yet.

    Raises:
        NoSuchPython: see there.
    """
    python = interpreter(version)
    if python is None:
        raise NoSuchPython(
            f"no Python {version} on this machine: looked on PATH, in pyenv and in uv. Install one (`pyenv install "
            f"{version}`, `uv python install {version}`), or run the tests with it"
        )
    pins = (ROOT / "constraints.txt").read_bytes()
    folder = cache_folder / f"python-{version}-{hashlib.sha256(pins + python.encode()).hexdigest()[:12]}"
    with _alone(folder):
        stamp, wanted = folder / _STAMP, _native_key()
        if not stamp.is_file() or stamp.read_text() != wanted:
            _install(python, folder)
            stamp.write_text(wanted)
    return Path(python), folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds others back who want the same folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _native_key() -> str:
    """Changes when the native module must be compiled anew."""
    digest = hashlib.sha256()
    for name in _NATIVE:
        top = ROOT / name
        for file in (
            sorted(f for f in top.rglob("*") if f.suffix in {".h", ".cpp", ".cmake"}) if top.is_dir() else [top]
        ):
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _install(python: str, folder: Path) -> None:
    """Also goes on where an earlier attempt stopped."""
    own = str(folder / "bin" / "python")
    pip = [own, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-q", "-c", "constraints.txt"]
    made = [] if Path(own).is_file() else [[python, "-m", "venv", str(folder)]]
    for command in (*made, [*pip, *TOOLS], [*pip, "--no-build-isolation", "-e", "."]):
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NoSuchPython(f"{' '.join(command)} took more than {_INSTALL_LIMIT_S} s") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise NoSuchPython(f"{' '.join(command)}: {said[-1] if said else 'no message'}")
