"""Where newer releases come from."""

from pathlib import Path

import pytest

from tests.providers.packages import Release, Unavailable, mirror


def test_the_mirror_is_debians_and_not_the_one_of_fixes() -> None:
    lines = "Other http://a.example/x\nDebian http://b.example/debian-security/\nDebian http://c.example/debian/\n"
    assert mirror(lines) == "http://c.example/debian/"
    with pytest.raises(Unavailable, match="apt-get update"):
        mirror("Ubuntu http://d.example/ubuntu/\n")


def test_a_release_knows_its_drivers(tmp_path: Path) -> None:
    (tmp_path / "libibverbs").mkdir()
    (tmp_path / "libibverbs/libefa-rdmav65.so").touch()
    release = Release("65.0", (), tmp_path)
    assert release.has("efa") and not release.has("mlx5")
    assert not release.has("libfabric")
    (tmp_path / "libfabric.so.1").touch()
    assert release.has("libfabric")
