"""What tests.docker.image makes of a Dockerfile and this machine; `python -m tests.docker.image` is what builds it."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tests.docker import clean_root, image


def test_docker_image_has_one_base_which_is_the_clean_roots_debian() -> None:
    assert image.bases("FROM a:1 AS build\nFROM b\nFROM build\n") == {"a:1", "b"}
    (base,) = image.bases(image.DOCKERFILE.read_text(encoding="utf-8"))
    assert base == "debian:12-slim" and clean_root.SUITE == "bookworm"  # Debian 12


def test_docker_image_sees_what_pip_is_told_here_and_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"PIP_FIND_LINKS": "/a /b", "PIP_DEFAULT_TIMEOUT": "9", "SSL_CERT_FILE": "/c"}
    monkeypatch.setattr(clean_root, "told", lambda: told)
    monkeypatch.setattr(clean_root, "pip_folders", lambda: ["/mirror"])
    read = configparser.ConfigParser()
    read.read_string(image.pip_settings())
    assert dict(read["global"]) == {"default-timeout": "9", "find-links": "/a /b"}
    words = image.given(tmp_path / "x.whl", tmp_path / "pip.conf")
    assert words[-2:] == ["--build-arg", "WHEEL=/wheel/x.whl"]
    volumes = [value for name, value in zip(words[:-2:2], words[1:-2:2], strict=True) if name == "--volume"]
    assert {"/mirror:/mirror:ro", f"{tmp_path}:/wheel:ro", f"{tmp_path}/pip.conf:/etc/xdg/pip/pip.conf:ro"} <= {
        *volumes
    }
    assert all(volume.endswith(":ro") for volume in volumes)


def test_docker_image_is_no_success_without_buildah(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert image.main() == 77
    assert capsys.readouterr().out == "NOT RUN: buildah is not installed. Needed: as root, docker/install.sh images\n"
