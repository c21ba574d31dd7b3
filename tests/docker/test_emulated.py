"""How the demo comes to 64-bit ARM: what is installed there; no tool, no success. `make demo-arm` runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docker import emulated


def test_docker_emulated_installs_what_arm_needs() -> None:
    for python in emulated.PYTHONS.values():
        found = dict(word.split("==") for word in emulated.needed("uccl-ep", python, set()))
        assert {"torch", "numpy", "msgpack", "psutil", "typer", "rich", "sympy"} <= set(found)
        assert found["torch"] == emulated.TORCH[python]
        assert not [name for name in found if name.startswith(("nvidia", "pytest", "cupy"))]


def test_docker_emulated_python_is_a_script_that_others_are_started_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for QEMU says how it was called: the script is the program's name, so sys.executable is the script."""
    stand_in = tmp_path / "qemu"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setattr(emulated, "QEMU", str(stand_in))
    folder = tmp_path / "a folder"
    folder.mkdir()
    command = emulated.environment(tmp_path / "system", folder, "3.11")
    said = subprocess.run([command, "-c", "a b"], capture_output=True, text=True, check=True).stdout.splitlines()
    system = str(tmp_path / "system")
    assert said == ["-L", system, "-0", str(command), f"{system}/usr/bin/python3.11", "-c", "a b"]
    assert f"home = {system}/usr/bin\n" in (folder / "pyvenv.cfg").read_text(encoding="utf-8")


def test_docker_emulated_is_no_success_without_its_tools(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert emulated.main([]) == 77
    said = capsys.readouterr().out
    assert said.startswith("NOT RUN: apt-get, dpkg, qemu-aarch64-static, aarch64-linux-gnu-g++ not installed. Needed")
    assert said.endswith("docker/install.sh arm\n")
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(emulated, "interpreter", lambda version: None)
    assert emulated.main(["--suite", "sid"]) == 77
    assert "no Python 3.14 or 3.13 or 3.12" in capsys.readouterr().out
