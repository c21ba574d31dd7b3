"""Dockerfiles are thin wrappers over docker/install.sh: what they install, people and CI install by the same words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
INSTALL = (ROOT / "docker" / "install.sh").read_text(encoding="utf-8")
COMMANDS = set(re.findall(r"^  (\w+)\)", INSTALL, re.MULTILINE))


def instructions(text: str) -> list[str]:
    """Without comments, continued lines in one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def problems(text: str, extras: set[str]) -> list[str]:
    """What is not a thin wrapper in a Dockerfile."""
    found = []
    for line in instructions(text):
        if line.startswith("RUN"):
            script = re.sub(r"^RUN (--\S+ )*", "", line)
            step = re.fullmatch(
                r'(?:/src)?/docker/install\.sh (\w+)(?: ("?\$?\w+"?))?( && rm -rf /var/lib/apt/lists/\*)?', script
            )
            if step is None:
                found.append(f"does more than install.sh: {script}")
            elif step[1] not in COMMANDS:
                found.append(f"install.sh has no {step[1]}")
            elif step[2] and step[2] != '"$EXTRA"' and step[2] not in extras:
                found.append(f"pyproject.toml has no extra {step[2]}")
        if (extra := re.match(r"ARG EXTRA=(\w+)", line)) and extra[1] not in extras:
            found.append(f"pyproject.toml has no extra {extra[1]}")
    last = [line for line in instructions(text) if line.startswith("FROM")][-1]
    if " AS " in last:
        found.append("the last stage is the build's: compilers would be in the image")
    return found


@pytest.fixture
def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    return set(re.findall(r"^(\w+) = \[", text.partition("\n[")[0], re.MULTILINE))


def test_docker_has_an_image_for_each_kind_of_machine() -> None:
    assert [path.suffix for path in FILES] == [".cpu", ".cuda", ".efa", ".rocm"]
    assert {"build", "run", "verbs", "efa", "package"} <= COMMANDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.suffix[1:])
def test_docker_files_only_wrap_install_sh(path: Path, extras: set[str]) -> None:
    text = path.read_text(encoding="utf-8")
    assert problems(text, extras) == []
    assert f"-f docker/{path.name} " in text, "the first lines say how to build it"


def test_docker_files_check_can_fail(extras: set[str]) -> None:
    good = 'FROM a AS build\nARG EXTRA=cuda13\nRUN /src/docker/install.sh package "$EXTRA"\nFROM a\n'
    assert problems(good, extras) == []
    assert problems(good.replace("cuda13", "cuda99"), extras)
    assert problems(good.replace("package", "packages"), extras)
    assert problems(good + "RUN apt-get install -y curl\n", extras)
    assert problems(good + "RUN /src/docker/install.sh run && \\\n  curl x | sh\n", extras)
    assert problems("FROM a AS build\n", extras)


def test_docker_install_refuses_what_it_does_not_know() -> None:
    done = subprocess.run([ROOT / "docker/install.sh", "gpu"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and not done.stdout
    assert all(name in done.stderr for name in ("install.sh gpu", *COMMANDS))


@pytest.mark.parametrize("script", ["install.sh", "wheel.sh", "release.sh"])
def test_docker_scripts_are_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n", ROOT / "docker" / script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_docker_install_explains_every_command() -> None:
    explained = set(re.findall(r"^#   install\.sh \[?(\w+)", INSTALL, re.MULTILINE))
    assert explained == COMMANDS
