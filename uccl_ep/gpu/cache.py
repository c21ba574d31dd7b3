"""Compiled kernels on disk: content-addressed entries that any number of ranks, also on a shared home, may use at once.

An entry appears whole (os.replace) and proves itself (length and digest), so that neither a crash nor a race can give a
wrong kernel. Locks only save work: one compiles, the others read. What an entry holds is run as code, so nothing is
taken from a folder that others than this user, or root, can write to.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from uccl_ep.gpu.compiler import Code, Usage
from uccl_ep.settings import settings
from uccl_ep.system.private import private_folder, read_file, temporary_folder, write_file

MAGIC = b"UCCLEPK1"
SUFFIX = ".kernel"
MOST_BYTES = 256 << 20  # an architecture's kernels take about 1 MiB
LOCK_WAIT_S = 120.0  # a compiler takes a second or two; after this, compiling twice is the smaller evil
STALE_S = 3600.0  # temporary files and locks that nobody can be using any more
_HEADER = struct.Struct("<8s32sQ")  # magic, SHA-256 of the body, the body's bytes
_META = struct.Struct("<I")  # bytes of JSON in front of the binary

_said: set[str] = set()
_said_lock = threading.Lock()


def say(text: str) -> None:
    """A line on stderr."""
    print(f"uccl-ep: {text}", file=sys.stderr, flush=True)


def say_once(text: str) -> None:
    """A line on stderr, the first time in this process."""
    with _said_lock:
        new = text not in _said
        _said.add(text)
    if new:
        say(text)


def default_folder() -> Path:
    """UCCL_EP_CACHE_DIR; else the user's cache folder (XDG); else, said once, a private one among temporary files."""
    named = settings().cache_dir
    if named:
        return Path(named)
    folder = Path("~/.cache/uccl-ep")
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "uccl-ep"
        private_folder(folder, or_root=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        why = "not writable"
    except (OSError, RuntimeError) as error:  # RuntimeError: no home at all
        why = str(error)
    private = _temporary_folder()
    say_once(f"{folder} cannot hold compiled kernels ({why}); using {private}. UCCL_EP_CACHE_DIR names another folder.")
    return private


def _temporary_folder() -> Path:
    """Named by user, and used only when it is really ours; else a new one."""
    try:
        return temporary_folder()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="uccl-ep-"))


@dataclass(frozen=True)
class Obtained:
    code: Code
    cached: bool  # read, not made


def encode(code: Code) -> bytes:
    """An entry's bytes."""
    meta = json.dumps({"usage": [asdict(u) for u in code.usage], "seconds": code.seconds}).encode()
    body = _META.pack(len(meta)) + meta + code.binary
    return _HEADER.pack(MAGIC, hashlib.sha256(body).digest(), len(body)) + body


def decode(data: bytes) -> Code:
    """The code of an entry.

    Raises:
        ValueError: the bytes are not what `encode` made; says what is wrong.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are no header")
    magic, digest, num_bytes = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != MAGIC or len(body) != num_bytes:
        raise ValueError(f"{len(body)} bytes instead of {num_bytes}" if magic == MAGIC else "another kind of file")
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the digest does not match")
    try:  # the digest is no signature: anybody can make one
        (meta_bytes,) = _META.unpack_from(body)
        meta = json.loads(body[_META.size : _META.size + meta_bytes])
        usage = tuple(Usage(str(u.pop("kernel")), **{n: int(v) for n, v in u.items()}) for u in meta["usage"])
        return Code(body[_META.size + meta_bytes :], usage, float(meta["seconds"]))
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no usage of kernels in it: {type(error).__name__}") from error


class KernelCache:
    """Entries of one folder. Never raises for what the folder does: a cache that fails is an empty cache.

    A folder that others can write to is neither read nor written to, which is said once. One that only root can write
    to is read by everybody (`uccl-ep warmup` as root, then `chmod 755`).

    Args:
        folder: made when missing, for this user only; default: `default_folder()`.
        most_bytes: the bound that `prune` keeps. A larger entry is not read.
        lock_wait_s: how long to wait for another process that makes the same entry.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_BYTES, lock_wait_s: float = LOCK_WAIT_S
    ) -> None:
        self.folder = (folder if folder is not None else default_folder()).expanduser()
        self._most_bytes = most_bytes
        self._lock_wait_s = lock_wait_s
        self._used = True
        try:
            private_folder(self.folder, or_root=True)
        except OSError as error:
            self._used = False
            say_once(f"no compiled kernels are read from or kept in {self.folder} ({error}): each start compiles them")

    def path(self, key: str) -> Path:
        return self.folder / (key + SUFFIX)

    def load(self, key: str) -> Code | None:
        """The entry, or None when there is none, or (said) a damaged one."""
        if not self._used:
            return None
        path = self.path(key)
        try:
            code = decode(read_file(path, self._most_bytes, or_root=True))
        except FileNotFoundError:
            return None
        except OSError as error:
            say_once(f"compiled kernels in {self.folder} cannot be read ({error.strerror}): compiling again")
            return None
        except (ValueError, MemoryError) as error:
            say_once(f"{path} is damaged ({str(error) or 'there is no memory for it'}): compiling again")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # prune() takes the least recently used
        return code

    def store(self, key: str, code: Code) -> None:
        """Writes the entry; a reader sees all of it or nothing."""
        if not self._used:
            return
        try:
            write_file(self.path(key), encode(code), 0o644)  # 0600 would keep others out of what root keeps for them
        except OSError as error:
            why = error.strerror or error  # without the temporary name, which makes every text another one
            say_once(f"compiled kernels cannot be kept in {self.folder} ({why}): the next start compiles again")

    def obtain(self, key: str, make: Callable[[], Code], wait: bool = True) -> Obtained | None:
        """The entry; made and stored where there is none.

        While another process makes it: waits for it (at most `lock_wait_s`, then makes it all the same), or returns
        None when told not to wait.
        """
        code = self.load(key)
        if code is not None:
            return Obtained(code, True)
        with contextlib.ExitStack() as held:
            deadline, pause_s = time.monotonic() + self._lock_wait_s, 0.002
            while not self._lock(key, held):
                if not wait:
                    return None
                if time.monotonic() > deadline:
                    say_once(
                        f"another process has held {self.path(key).with_suffix('.lock')} for {self._lock_wait_s} s"
                    )
                    break
                time.sleep(pause_s)  # flock has no timeout
                pause_s = min(2 * pause_s, 0.05)
                code = self.load(key)
                if code is not None:
                    return Obtained(code, True)
            code = self.load(key)  # whoever had the lock before has written it
            if code is not None:
                return Obtained(code, True)
            code = make()
            self.store(key, code)
            return Obtained(code, False)

    def _lock(self, key: str, held: contextlib.ExitStack) -> bool:
        """Whether to go on: the lock is ours until `held` closes, or this folder has no locks. The kernel takes it from
        a holder that dies."""
        if not self._used:
            return True
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self.path(key).with_suffix(".lock"), flags, 0o600)
        except OSError:
            return True  # read-only
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:
            os.close(file)
            return True  # a file system without locks
        held.callback(os.close, file)
        held.callback(fcntl.flock, file, fcntl.LOCK_UN)  # runs first: a forked child may share the descriptor
        return True

    def prune(self, keep: Collection[str] = ()) -> list[str]:
        """Removes the least recently used entries above the bound, never those of `keep`, and what crashes left.

        Returns:
            The keys of removed entries.
        """
        now, entries, removed = time.time(), [], []
        try:
            files = [(path, path.lstat()) for path in self.folder.iterdir()] if self._used else []
        except OSError:
            return []  # another process prunes too, or the folder is gone
        for path, status in files:
            if not stat.S_ISREG(status.st_mode):
                continue
            if path.suffix == SUFFIX:
                entries.append((status.st_mtime, status.st_size, path))
            elif path.name.startswith(".new-") or path.suffix == ".lock":
                if now - status.st_mtime > STALE_S:
                    with contextlib.suppress(OSError):
                        path.unlink()
        total = sum(num_bytes for _, num_bytes, _ in entries)
        for _, num_bytes, path in sorted(entries):
            if total <= self._most_bytes:
                break
            if path.stem not in keep:
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed.append(path.stem)
                    total -= num_bytes
        return removed
