"""Folders and files that nobody else can write to: made so under any umask, refused otherwise, read without waiting."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from uccl_ep.system.private import (
    make_folder,
    private_folder,
    read_file,
    temporary_folder,
    why_not_private,
    write_file,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can give a file to another user")


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_private_folders_are_made_for_this_user_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]
    assert private_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_private_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(OSError, match=rf"mode {mode:o}; chmod go-w"):
        private_folder(tmp_path)
    tmp_path.chmod(0o755)  # others may look
    assert private_folder(tmp_path) == tmp_path


@as_root
def test_private_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(OSError, match=f"belongs to user {NOBODY}, not to user 0"):
        private_folder(tmp_path)


@as_root
def test_private_folder_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert why_not_private(tmp_path, or_root=True) == ""
    assert f"belongs to user 0, not to user {NOBODY}" in why_not_private(tmp_path)
    tmp_path.chmod(0o777)
    assert "others can write" in why_not_private(tmp_path, or_root=True)


@as_root
@pytest.mark.parametrize("at", ["folder", "above"])
def test_private_folder_behind_a_planted_link(tmp_path: Path, at: str) -> None:
    """In a sticky folder anybody can make the link before its time; this user's own links are fine."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    wanted = tmp_path / "link" / "below" if at == "above" else tmp_path / "link"
    assert private_folder(wanted) == wanted
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    for use in (private_folder, make_folder):
        with pytest.raises(OSError, match=f"link is a link of user {NOBODY}"):
            use(wanted)
    with pytest.raises(OSError, match="is a link of user"):
        make_folder(tmp_path / "link" / "new")
    assert not (tmp_path / "target" / "new").exists()


def test_private_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="Not a directory"):
            private_folder(place)


@pytest.mark.parametrize("trap", ["link", "777", pytest.param("foreign", marks=as_root)])
def test_private_temporary_folder(tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = temporary_folder()
    assert folder.name == f"uccl-ep-{os.geteuid()}" and temporary_folder() == folder
    if trap == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap == "777":
        folder.chmod(0o777)
    else:
        os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(OSError, match=r"is a link|others can write|belongs to user"):
        temporary_folder()


def test_private_file_is_read(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"abc")
    assert read_file(tmp_path / "a", 3) == b"abc"
    with pytest.raises(OSError, match="3 bytes, more than 2"):
        read_file(tmp_path / "a", 2)
    (tmp_path / "a").chmod(0o646)
    with pytest.raises(OSError, match="others can write to it"):
        read_file(tmp_path / "a", 3)
    assert read_file(tmp_path / "a", 3, anybody=True) == b"abc"


@pytest.mark.parametrize("anybody", [True, False])
def test_private_read_never_waits(tmp_path: Path, anybody: bool) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name, why in {"fifo": "pipe", "zero": "link", "folder": "folder", "socket": "socket"}.items():
            with pytest.raises(OSError, match=why):
                read_file(tmp_path / name, 1 << 20, anybody=anybody)
    with pytest.raises(OSError, match="a device"):
        read_file(Path("/dev/zero"), 1 << 20, anybody=anybody)


@as_root
def test_private_file_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", b"abc")
    os.chown(tmp_path / "a", NOBODY, NOBODY)
    with pytest.raises(OSError, match=f"belongs to user {NOBODY}"):
        read_file(tmp_path / "a", 3, or_root=True)
    os.chown(tmp_path / "a", 0, 0)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert read_file(tmp_path / "a", 3, or_root=True) == b"abc"
    with pytest.raises(OSError, match="belongs to user 0"):
        read_file(tmp_path / "a", 3)


def test_private_write_replaces_a_link_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").write_bytes(b"victim")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    write_file(tmp_path / "a", b"new", 0o640)
    assert (tmp_path / "victim").read_bytes() == b"victim" and not (tmp_path / "a").is_symlink()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640

    def taken_away(temporary: str, path: Path) -> None:
        os.unlink(temporary)  # who can write to the folder can do so at any moment
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "replace", taken_away)
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "b", b"new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "victim"]
