"""The cache of compiled kernels beside users who would have their code run: only this user's, or root's, is read."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from uccl_ep.gpu import cache as cache_module
from uccl_ep.gpu.cache import KernelCache, Obtained, encode
from uccl_ep.gpu.compiler import Code, Usage
from uccl_ep.settings import settings

CODE = Code(b"machine code", (Usage("k", 40, 16, 0),), 0.25)
KEY = "ab" * 32
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("UCCL_EP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_said", set())


def poisoned(folder: Path, data: bytes = encode(CODE), mode: int = 0o644, owner: int = os.geteuid()) -> KernelCache:
    """A cache whose folder is ours, and holds an entry that somebody has prepared."""
    cache = KernelCache(folder)
    path = cache.path(KEY)
    path.write_bytes(data)
    path.chmod(mode)
    if owner != os.geteuid():
        os.chown(path, owner, owner)
    return cache


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can give a file to another user")
NOBODY = 65534


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("mode", "owner"),
    [(0o777, 0), (0o775, 0), pytest.param(0o700, NOBODY, marks=as_root)],
    ids=["777", "775", "foreign"],
)
def test_cache_takes_nothing_from_a_folder_that_others_write_to(
    homes: Path, named: bool, mode: int, owner: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies there would be run as code."""
    folder = homes / "shared" / "uccl-ep"
    monkeypatch.setenv("UCCL_EP_CACHE_DIR" if named else "XDG_CACHE_HOME", str(folder if named else folder.parent))
    poisoned(folder)
    folder.chmod(mode)
    if owner:
        os.chown(folder, owner, owner)
    settings.cache_clear()
    assert KernelCache().load(KEY) is None and KernelCache().load(KEY) is None
    assert KernelCache().obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    assert sorted(p.name for p in folder.iterdir()) == [f"{KEY}.kernel"]  # and nothing was written or locked there
    said = capsys.readouterr().err
    assert said.count(str(folder)) >= 1 and len(said.splitlines()) == 1
    assert ("chmod go-w" in said) if mode != 0o700 else (f"user {NOBODY}" in said)


@pytest.mark.parametrize("what", ["written by all", "link", "pipe", pytest.param("foreign", marks=as_root)])
def test_cache_takes_no_entry_that_is_not_ours(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    cache = poisoned(tmp_path, mode=0o666 if what == "written by all" else 0o644)
    path = cache.path(KEY)
    if what == "foreign":
        os.chown(path, NOBODY, NOBODY)
    elif what == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        path.unlink()
        os.mkfifo(path)
    assert cache.load(KEY) is None
    assert "cannot be read" in capsys.readouterr().err
    assert cache.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    assert cache.load(KEY) == CODE  # replaced, not followed


@as_root
def test_cache_of_root_is_read_by_everybody(tmp_path: Path) -> None:
    """`uccl-ep warmup` as root, then chmod 755: users read it, and cannot write to it."""
    shared = tmp_path / "shared"
    KernelCache(shared).store(KEY, CODE)
    for place in (shared, tmp_path, *tmp_path.parents):
        if place.stat().st_uid == 0 and "pytest" in str(place):  # pytest's own folders, closed to others
            place.chmod(0o755)
    body = """
import os, sys
from pathlib import Path
from uccl_ep.gpu.cache import KernelCache
os.setgroups([]); os.setgid(65534); os.setuid(65534)
cache = KernelCache(Path(sys.argv[1]))
assert cache.load(sys.argv[2]) is not None
cache.store("cd" * 32, cache.load(sys.argv[2]))
assert cache.load("cd" * 32) is None
"""
    done = subprocess.run([sys.executable, "-c", body, str(shared), KEY], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be kept") == 1


def test_cache_folder_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        KernelCache(tmp_path / "made" / "here").store(KEY, CODE)
    finally:
        os.umask(before)
    for folder in (tmp_path / "made", tmp_path / "made" / "here"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "made" / "here" / f"{KEY}.kernel").stat().st_mode & 0o777 == 0o644


def signed(body: bytes) -> bytes:
    """An entry with a right digest, which anybody can make."""
    return cache_module._HEADER.pack(cache_module.MAGIC, hashlib.sha256(body).digest(), len(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff",
        *(
            len(meta).to_bytes(4, "little") + meta
            for meta in (
                b"[]",
                b"null",
                b"[" * 100_000,
                b'{"usage": 3}',
                b'{"usage": [3], "seconds": 1}',
                b'{"usage": [{"kernel": "k"}], "seconds": 1}',
                b'{"usage": [{"kernel": "k", "registers": 1e999}], "seconds": 1}',
                b'{"usage": [], "seconds": []}',
                b'{"usage": []}',
            )
        ),
    ],
)
def test_cache_load_never_raises_for_a_well_signed_entry(
    tmp_path: Path, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert poisoned(tmp_path, signed(body)).load(KEY) is None
    assert "damaged" in capsys.readouterr().err


def test_cache_entry_beyond_the_bound_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = poisoned(tmp_path)
    os.truncate(cache.path(KEY), 8 << 30)  # a hole: takes no disk
    assert cache.load(KEY) is None
    assert f"more than {cache_module.MOST_BYTES}" in capsys.readouterr().err

    def no_memory(*_: object, **__: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(cache_module, "read_file", no_memory)
    assert cache.load(KEY) is None
    assert "no memory" in capsys.readouterr().err
