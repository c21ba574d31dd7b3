"""The cache of compiled kernels: entries prove themselves, one process makes what many ask for, nothing is fatal."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from uccl_ep.gpu import cache as cache_module
from uccl_ep.gpu.cache import STALE_S, KernelCache, Obtained, decode, default_folder, encode
from uccl_ep.gpu.compiler import Code, Usage
from uccl_ep.settings import settings

CODE = Code(b"\x7fELF machine code", (Usage("k", 40, 16, 0), Usage("l", 32, 0, 8)), 0.25)
KEY = "ab" * 32
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_said", set())


def never() -> Code:
    raise AssertionError("made although it is there")


def test_cache_round_trip(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "made" / "here")
    assert cache.load(KEY) is None
    assert cache.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    assert KernelCache(tmp_path / "made" / "here").obtain(KEY, never) == Obtained(CODE, True)
    assert cache.load("cd" * 32) is None
    assert cache.path(KEY).stat().st_mode & 0o777 == 0o644  # others may read a shared folder


def test_cache_no_code_and_no_usage_are_entries_too() -> None:
    for code in (Code(b"", (), 0.0), Code(bytes(range(256)) * 4097, (), 1e-9)):
        assert decode(encode(code)) == code


def test_cache_every_truncation_and_flipped_bit_is_seen() -> None:
    data = encode(CODE)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"bytes|kind"):
            decode(data[:length])
    chosen = random.Random(1)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << chosen.randrange(8)
        with pytest.raises(ValueError, match=r"bytes|kind|digest"):
            decode(bytes(damaged))
    with pytest.raises(ValueError, match="bytes"):
        decode(data + b"\0")


@pytest.mark.parametrize("damage", [b"", b"short", encode(CODE)[:-1], b"\0" * 200])
def test_cache_makes_a_damaged_entry_again(tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    cache = KernelCache(tmp_path)
    cache.path(KEY).write_bytes(damage)
    assert cache.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    assert "damaged" in capsys.readouterr().err
    assert cache.load(KEY) == CODE


def test_cache_entry_that_is_a_folder_or_unwritable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with the folder: the code comes, and why it is not kept is said once."""
    cache = KernelCache(tmp_path)
    cache.path(KEY).mkdir()
    for _ in range(3):
        assert cache.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    said = capsys.readouterr().err
    assert said.count("cannot be kept") == 1 and said.count("cannot be read") == 1
    (tmp_path / "file").write_text("")
    beside = KernelCache(tmp_path / "file" / "below")
    assert beside.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    assert beside.prune() == []
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".new")] == []


def test_cache_read_only_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KernelCache(tmp_path).store(KEY, CODE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *more: refuse() if flags & os.O_RDWR else opened(path, flags))
    for name in ("utime", "replace"):
        monkeypatch.setattr(cache_module.os, name, refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    cache = KernelCache(tmp_path)
    assert cache.obtain(KEY, never) == Obtained(CODE, True)
    assert cache.obtain("cd" * 32, lambda: CODE) == Obtained(CODE, False)


def test_cache_one_thread_makes_and_the_others_wait(tmp_path: Path) -> None:
    cache, made, results = KernelCache(tmp_path), [], []

    def make() -> Code:
        made.append(threading.get_ident())
        time.sleep(0.1)
        return CODE

    def ask() -> None:
        results.append(cache.obtain(KEY, make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 1
    assert sorted(r.cached for r in results if r) == [False] + 7 * [True]


def test_cache_looks_again_when_it_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may store and let go between our look and our lock."""
    cache, lock = KernelCache(tmp_path), KernelCache._lock

    def late(self: KernelCache, key: str, held: ExitStack) -> bool:
        KernelCache(tmp_path).store(key, CODE)
        return lock(self, key, held)

    monkeypatch.setattr(KernelCache, "_lock", late)
    assert cache.obtain(KEY, never) == Obtained(CODE, True)


def test_cache_does_not_wait_when_told_so(tmp_path: Path) -> None:
    cache, inside, leave = KernelCache(tmp_path), threading.Event(), threading.Event()

    def slow() -> Code:
        inside.set()
        assert leave.wait(20)
        return CODE

    thread = threading.Thread(target=cache.obtain, args=(KEY, slow))
    thread.start()
    assert inside.wait(20)
    assert cache.obtain(KEY, never, wait=False) is None
    leave.set()
    thread.join(20)
    assert cache.obtain(KEY, never, wait=False) == Obtained(CODE, True)


def test_cache_an_error_frees_the_lock(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)

    def fails() -> Code:
        raise RuntimeError("the compiler's error")

    with pytest.raises(RuntimeError, match="compiler's"):
        cache.obtain(KEY, fails)
    assert cache.obtain(KEY, lambda: CODE, wait=False) == Obtained(CODE, False)


HOLDER = """
import sys, time
from pathlib import Path
from uccl_ep.gpu.cache import KernelCache
def hold():
    print("holding", flush=True)
    time.sleep(60)
KernelCache(Path(sys.argv[1])).obtain(sys.argv[2], hold)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), KEY], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None and process.stdout.readline() == "holding\n"
    return process


def test_cache_a_killed_holder_is_no_obstacle(tmp_path: Path) -> None:
    process = holder(tmp_path)
    cache = KernelCache(tmp_path)
    assert cache.obtain(KEY, never, wait=False) is None
    threading.Timer(0.2, process.send_signal, [signal.SIGKILL]).start()
    started = time.monotonic()
    assert cache.obtain(KEY, lambda: CODE) == Obtained(CODE, False)
    process.wait(20)
    assert process.stdout is not None
    process.stdout.close()
    assert time.monotonic() - started < 10  # not the lock's 120 s


def test_cache_a_stuck_holder_only_costs_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = holder(tmp_path)
    try:
        assert KernelCache(tmp_path, lock_wait_s=0.1).obtain(KEY, lambda: CODE) == Obtained(CODE, False)
        assert "another process has held" in capsys.readouterr().err
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def test_cache_prunes_the_least_recently_used(tmp_path: Path) -> None:
    num_bytes = len(encode(CODE))
    cache = KernelCache(tmp_path, most_bytes=3 * num_bytes)
    keys = [f"{i:02x}" * 32 for i in range(6)]
    for age, key in enumerate(keys):
        cache.store(key, CODE)
        os.utime(cache.path(key), (1e9 - age, 1e9 - age))  # the later, the older
    assert cache.load(keys[5]) == CODE  # used: the youngest now
    assert sorted(cache.prune(keep={keys[4]})) == sorted([keys[3], keys[2], keys[1]])
    assert [cache.load(key) is not None for key in keys] == [True, False, False, False, True, True]
    assert cache.prune() == []


def test_cache_prune_sweeps_what_crashes_left(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    old, new = time.time() - STALE_S - 1, time.time()
    for name, moment in ((".new-a", old), (".new-b", new), ("a.lock", old), ("b.lock", new), ("notes.txt", old)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (moment, moment))
    cache.prune()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".new-b", "b.lock", "notes.txt"]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("UCCL_EP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def test_cache_folder_by_variable_then_xdg_then_home(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_folder() == homes / "user/.cache/uccl-ep"
    monkeypatch.setenv("XDG_CACHE_HOME", str(homes / "xdg"))
    assert default_folder() == homes / "xdg/uccl-ep"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    assert default_folder() == homes / "user/.cache/uccl-ep"
    monkeypatch.setenv("UCCL_EP_CACHE_DIR", "~/kernels")
    settings.cache_clear()
    assert default_folder() == homes / "user/kernels"


def test_cache_folder_without_a_home(homes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (homes / "user").write_text("a file: nothing can be made below it")
    private = homes / "temporary" / f"uccl-ep-{os.getuid()}"
    assert default_folder() == private == default_folder()
    said = capsys.readouterr().err
    assert said.count("cannot hold compiled kernels") == 1 and "UCCL_EP_CACHE_DIR" in said
    assert private.stat().st_mode & 0o777 == 0o700
    KernelCache().store(KEY, CODE)
    assert KernelCache().load(KEY) == CODE


@pytest.mark.parametrize("trap", ["link", "open", "foreign"])
def test_cache_trusts_no_prepared_temporary_folder(homes: Path, trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write there could have their code run by us."""
    (homes / "user").write_text("")
    private = homes / "temporary" / f"uccl-ep-{os.getuid()}"
    if trap == "link":
        (homes / "elsewhere").mkdir(mode=0o700)
        private.symlink_to(homes / "elsewhere")
    else:
        private.mkdir()
        private.chmod(0o777 if trap == "open" else 0o700)
    if trap == "foreign":
        owner = private.stat().st_uid
        monkeypatch.setattr(cache_module.os, "geteuid", lambda: owner + 1)
        (homes / "temporary" / f"uccl-ep-{owner + 1}").symlink_to(private)
    chosen = default_folder()
    assert chosen != private and chosen.parent == homes / "temporary"
    assert not cache_module.os.listdir(chosen)
    assert chosen.name.startswith("uccl-ep-") and chosen.stat().st_mode & 0o777 == 0o700 and not chosen.is_symlink()
