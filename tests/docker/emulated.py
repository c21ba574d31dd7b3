"""`python -m tests.docker.emulated`: the demo on 64-bit ARM, its processes emulated by QEMU (`make demo-arm`).

The wheel is cross-compiled here; Python is Debian's and torch the package index's, both for ARM. Nothing is installed,
and no root is needed: packages are unpacked below build/arm, which is kept. `--suite sid` takes Debian unstable, whose
Python is 3.14, and the wheel of the stable ABI. What follows goes to the demo. Status 77 (NOT RUN) where the tools or a
Python that can build are missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from tests.docker import clean_root
from tests.docker.__main__ import STATUS_NOT_RUN
from tests.interpreters import interpreter

ROOT = clean_root.ROOT
MACHINE = "aarch64"
QEMU = "qemu-aarch64-static"
TOOLS = ("apt-get", "dpkg", QEMU, "aarch64-linux-gnu-g++")
PYTHONS = {"bookworm": "3.11", "sid": "3.14"}
TORCH = {"3.11": "2.8.0", "3.14": "2.9.1"}  # of those with a wheel for that Python, the newest without CUDA
BUILDERS = {"3.11": ("3.11",), "3.14": ("3.14", "3.13", "3.12")}  # from 3.12 on one wheel serves all that follow
SMALL = "--steps 2 --hidden 64 --experts 8 --topk 2".split()  # else each rank computes for minutes
LIMIT_S = 1800
_APT = """\
APT::Architecture "arm64"; APT::Architectures {{"arm64";}}; APT::Install-Recommends "false"; APT::Sandbox::User "root";
Dir::State "{folder}/state"; Dir::State::status "{folder}/status"; Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list"; Dir::Etc::sourceparts "-"; Acquire::Languages "none";
Debug::NoLocking "true";
"""


def missing(suite: str) -> str:
    """Why the demo cannot run here, and what to do; empty: it can be tried."""
    tools = [name for name in TOOLS if shutil.which(name) is None]
    if tools:
        return f"{', '.join(tools)} not installed. Needed: as root, docker/install.sh arm"
    if builder(suite) is None:
        return f"no Python {' or '.join(BUILDERS[PYTHONS[suite]])} is here to build the wheel with"
    return ""


def builder(suite: str) -> str | None:
    """A Python of this machine whose wheel suits the suite's Python."""
    return next(filter(None, map(interpreter, BUILDERS[PYTHONS[suite]])), None)


def run(command: Sequence[str], folder: Path = ROOT, **more: str) -> None:
    """Runs it in that folder, with its output on ours.

    Raises:
        subprocess.CalledProcessError: it failed. subprocess.TimeoutExpired: it took too long.
    """
    print(f"$ {shlex.join(command)}".replace(f"{ROOT}/", ""), flush=True)
    subprocess.run(command, check=True, timeout=LIMIT_S, env=os.environ | more, cwd=folder)


def needed(name: str, python: str, seen: set[str]) -> Iterator[str]:
    """What a distribution of this environment needs on ARM, in the versions that are here: `numpy==2.4.6`."""
    there = {"platform_machine": MACHINE, "python_version": python, "extra": ""}
    for line in importlib.metadata.requires(name) or []:
        wanted = Requirement(line)
        if wanted.name.lower() not in seen and (wanted.marker is None or wanted.marker.evaluate(there)):
            seen.add(wanted.name.lower())
            version = TORCH[python] if wanted.name == "torch" else importlib.metadata.version(wanted.name)
            yield f"{wanted.name}=={version}"
            yield from needed(wanted.name, python, seen)


def unpack_python(suite: str, folder: Path) -> Path:
    """Debian's Python for ARM and the libraries that it loads, in a folder; made once."""
    system, apt = folder / "system", folder / "apt"
    if system.is_dir():
        return system
    shutil.rmtree(apt, ignore_errors=True)
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(_APT.format(folder=apt), encoding="utf-8")
    mirror = clean_root.mirror() or "http://deb.debian.org/debian"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} {suite} main\n", encoding="utf-8")
    run(["apt-get", "update", "-qq"], APT_CONFIG=str(apt / "apt.conf"))
    run(
        ["apt-get", "install", "-qq", "--download-only", "--yes", "python3", "libstdc++6"],
        APT_CONFIG=str(apt / "apt.conf"),
    )
    target = folder / "unpacking"
    shutil.rmtree(target, ignore_errors=True)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(target)], check=True, timeout=LIMIT_S)
    if not (target / "lib").exists():
        (target / "lib").symlink_to("usr/lib")  # Debian's base system has it, and the loader's name begins so
    target.rename(system)  # in one step: nobody sees half a system
    shutil.rmtree(apt)
    return system


def environment(system: Path, folder: Path, python: str) -> Path:
    """What `venv` would make around the suite's Python: its `python`, a script, so that ranks start others by it."""
    command = folder / "bin" / "python"
    command.parent.mkdir(exist_ok=True)
    start = [shutil.which(QEMU) or QEMU, "-L", str(system), "-0", str(command), str(system / f"usr/bin/python{python}")]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    (folder / "pyvenv.cfg").write_text(f"home = {system}/usr/bin\nversion = {python}\n", encoding="utf-8")
    return command


def cross_compile(suite: str, folder: Path) -> Path:
    """The wheel for ARM, by a compiler that runs here; a second call compiles what has changed."""
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    python = builder(suite)
    assert python is not None
    said = {
        "_PYTHON_HOST_PLATFORM": f"linux-{MACHINE}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{PYTHONS[suite].replace('.', '')}-{MACHINE}-linux-gnu.so",
        "CMAKE_TOOLCHAIN_FILE": str(ROOT / "cmake" / f"{MACHINE}.cmake"),
    }
    run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "wheel"), str(ROOT)], **said)
    (wheel,) = (folder / "wheel").glob(f"uccl_ep-*_{MACHINE}.whl")
    return wheel


def install(folder: Path, python: str, wheel: Path) -> None:
    """The wheel and what it needs, for ARM, by this machine's pip: the ARM's own would compute for minutes."""
    target = folder / "lib" / f"python{python}" / "site-packages"
    shutil.rmtree(target, ignore_errors=True)
    platforms = [f"manylinux_2_{minor}_{MACHINE}" for minor in (17, 24, 26, 27, 28)]
    platforms += [f"manylinux2014_{MACHINE}", f"linux_{MACHINE}"]
    words = [word for name in platforms for word in ("--platform", name)]
    words += ["--python-version", python, "--only-binary=:all:", "--no-deps", "--target", str(target)]
    run([sys.executable, "-m", "pip", "install", "-q", *words, str(wheel), *needed("uccl-ep", python, set())])


def prepare(suite: str) -> Path:
    """The command of an ARM Python that has uccl-ep."""
    python = PYTHONS[suite]
    folder = ROOT / "build" / "arm" / suite
    folder.mkdir(parents=True, exist_ok=True)
    command = environment(unpack_python(suite, folder), folder, python)
    install(folder, python, cross_compile(suite, folder))
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 77, or an error's traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.docker.emulated")
    parser.add_argument("--suite", choices=sorted(PYTHONS), default="bookworm", help="the Debian whose Python runs")
    options, demo = parser.parse_known_args(arguments)
    why = missing(options.suite)
    if why:
        print(f"NOT RUN: {why}", flush=True)
        return STATUS_NOT_RUN
    begin = time.monotonic()
    told: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}
    command = str(prepare(options.suite))
    folder = Path(command).parent  # not the checkout, where Python finds the sources first
    middle, before = time.monotonic(), _processor_s()
    said = "import platform, sys; assert platform.machine() == sys.argv[1]; print(platform.machine(), sys.version)"
    run([command, "-c", said, MACHINE], folder, **told)
    for words in (["version"], ["demo", *(demo or SMALL)]):
        run([command, "-m", "uccl_ep", *words], folder, **told)
    end, after = time.monotonic(), _processor_s()
    print(f"made in {middle - begin:.0f} s ({before:.0f} s of processors), ", end="")
    print(f"demo in {end - middle:.0f} s ({after - before:.0f} s of processors)", flush=True)
    return 0


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
