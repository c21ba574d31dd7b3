"""Compiled kernels on disk: content-addressed entries that any number of ranks, also on a shared home, may use at once.

An entry appears whole (os.replace) and proves itself (length and digest), so that neither a crash nor a race can give a
wrong kernel. Locks only save work: one compiles, the others read.
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
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "uccl-ep"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        why = "not writable"
    except (OSError, RuntimeError) as error:  # RuntimeError: no home at all
        folder, why = Path("~/.cache/uccl-ep"), str(error)
    private = _temporary_folder()
    say_once(f"{folder} cannot hold compiled kernels ({why}); using {private}. UCCL_EP_CACHE_DIR names another folder.")
    return private


def _temporary_folder() -> Path:
    """Named by user, and used only when it is really ours: what lies there is loaded as code."""
    folder = Path(tempfile.gettempdir()) / f"uccl-ep-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder
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
    (meta_bytes,) = _META.unpack_from(body)  # what the digest covers is as it was written
    meta = json.loads(body[_META.size : _META.size + meta_bytes])
    usage = tuple(Usage(**u) for u in meta["usage"])
    return Code(body[_META.size + meta_bytes :], usage, float(meta["seconds"]))


class KernelCache:
    """Entries of one folder. Never raises for what the folder does: a cache that fails is an empty cache.

    Args:
        folder: made when missing; default: `default_folder()`.
        most_bytes: the bound that `prune` keeps.
        lock_wait_s: how long to wait for another process that makes the same entry.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = MOST_BYTES, lock_wait_s: float = LOCK_WAIT_S
    ) -> None:
        self.folder = (folder if folder is not None else default_folder()).expanduser()
        self._most_bytes = most_bytes
        self._lock_wait_s = lock_wait_s
        with contextlib.suppress(OSError):  # said when something cannot be stored
            self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        return self.folder / (key + SUFFIX)

    def load(self, key: str) -> Code | None:
        """The entry, or None when there is none, or (said) a damaged one."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            say_once(f"compiled kernels in {self.folder} cannot be read ({error.strerror}): compiling again")
            return None
        try:
            code = decode(data)
        except ValueError as error:
            say_once(f"{path} is damaged ({error}): compiling again")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # prune() takes the least recently used
        return code

    def store(self, key: str, code: Code) -> None:
        """Writes the entry; a reader sees all of it or nothing."""
        try:
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(encode(code))
                os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep a shared folder's other users out
                os.replace(temporary, self.path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
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
        try:
            file = os.open(self.path(key).with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
            files = [(path, path.stat()) for path in self.folder.iterdir() if path.is_file()]
        except OSError:
            return []  # another process prunes too, or the folder is gone
        for path, status in files:
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
