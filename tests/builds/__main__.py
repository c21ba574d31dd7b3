"""Reads every build of DeepEP anew and writes builds.json: `python -m tests.builds`.

Wheels come from the package index that pip knows, branches from GitHub, or from a clone that lies on this machine
(`--clone OWNER/NAME=FOLDER`). Nothing of them is installed, imported or executed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.builds.read import names_of
from tests.builds.record import BUILDS, FILE, Build, write


def wheel(build: Build, folder: Path) -> tuple[Path, str]:
    """The package's folder and the build's version."""
    options = ["--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--python-version", "3.11"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", *options]
    subprocess.run([*command, "-d", str(folder), build.source], check=True)
    (found,) = folder.glob("*.whl")
    with zipfile.ZipFile(found) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return folder / build.path, build.source.partition("==")[2]


def branch(build: Build, folder: Path, clones: dict[str, str]) -> tuple[Path, str]:
    """The package's folder and the commit, of a branch or tag."""
    repository, _, name = build.source.partition("@")
    clone = clones.get(repository, str(folder / "clone"))
    if repository not in clones:
        address = f"https://github.com/{repository}.git"
        command = ["git", "clone", "-q", "--bare", "--depth", "1", "--branch", name, address, clone]
        subprocess.run(command, check=True)
    shown = subprocess.run(
        ["git", "-C", clone, "log", "-1", "--format=%h %cs", name], check=True, capture_output=True, text=True
    )
    archive = folder / "sources.tar"
    subprocess.run(["git", "-C", clone, "archive", "-o", str(archive), name, *build.folders], check=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / build.path, shown.stdout.strip()


def main() -> None:
    """Reads all, and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.builds", description=__doc__)
    parser.add_argument("--clone", action="append", default=[], metavar="OWNER/NAME=FOLDER")
    clones = dict(each.split("=", 1) for each in parser.parse_args().clone)
    read = {}
    for build in BUILDS:
        with tempfile.TemporaryDirectory() as scratch:
            package, version = (
                branch(build, Path(scratch), clones) if "@" in build.source else wheel(build, Path(scratch))
            )
            read[build.name] = version, names_of(package)
        print(f"{build.name}: {version}, {len(read[build.name][1])} names", flush=True)
    write(read)
    print(f"written: {FILE}. `git diff` shows what is new; tests/builds/test_record.py says what we lack.")


if __name__ == "__main__":
    main()
