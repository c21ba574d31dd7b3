"""What a rank has recorded so far, in a file that outlives it, for one that is killed before it writes its record.

The file lies in memory (a folder of this user's in /dev/shm), so writing to it is a store and never waits for a disk.
It holds, one after the other, the proxy's event rings (proxy/diag/event_ring.h), the names and the last calls of the
Buffer, and the record that the rank would have written when it was ready, with its length and a magic word at the very
end. A file without that end is of a rank that never was ready, and tells nothing. An orderly end removes the file.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from uccl_ep import _native
from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder.record import Call, Record, WorkerEvents, pack, unpack
from uccl_ep.system.private import private_folder, read_file

SUFFIX = ".uccl-ep-journal"
MEMORY = Path("/dev/shm")
KEPT, KEPT_BYTES = 256, 64 << 20
"""Journals of ranks that have ended; older ones are removed when a new one is made."""
FOLDER = "folder of records"
"""Among a journal's settings: where its rank leaves the record that it writes."""
KILLED = "the rank ended without writing a record: it was killed, or its program failed"
RUNNING = "the rank is running"

_MAGIC = b"uccl-jn1"
_END = struct.Struct("<Q8s")  # length of the record, magic
# A call's words: sequence, begin, end, number, name | dimensions << 16, error; sizes of its first tensor, two a word.
_CALL = struct.Struct("<8Q")
_ERROR_WORD = 5
_MOST_SIZES = 4
_SIZE = (1 << 32) - 1
_CALLS, _NAMES, _NAME_BYTES = 512, 128, 64
_TAIL_BYTES = _NAMES * _NAME_BYTES + _CALLS * _CALL.size
_MOST_BYTES = 1 << 30
_UNSEEN_S = 86_400.0  # how long a journal of another container is left alone


class Journal:
    """The writing side.

    Args:
        rank: for the file's name.
        events_bytes: size of the event rings, which are the file's beginning.

    Attributes:
        path: the file. segment: what is mapped of it.
        words: the mapped words; when a call returns, calls.END_WORD from `begin` on is written.

    Raises:
        OSError: there is no such folder, or no room in it.
    """

    def __init__(self, rank: int, events_bytes: int) -> None:
        folder = journal_folder()
        prune(folder)
        fd, name = tempfile.mkstemp(prefix=f"{os.getpid()}.{_namespace()}-rank{rank}-", suffix=SUFFIX, dir=folder)
        self.path = Path(name)
        self._finalizer = weakref.finalize(self, _remove_unless_failed, self.path, os.getpid())
        try:
            os.posix_fallocate(fd, 0, events_bytes + _TAIL_BYTES)  # a store into a hole without room is a bus error
        except OSError:
            os.close(fd)
            self.remove()
            raise
        self.segment = _native.Segment.adopt(fd, events_bytes + _TAIL_BYTES)
        self._names_at, self._calls_at = events_bytes, events_bytes + _NAMES * _NAME_BYTES
        self._memory = self.segment.numpy().data
        self.words = self._memory[: (events_bytes + _TAIL_BYTES) // 8 * 8].cast("Q")
        self._ids: dict[str, int] = {}
        self._sequence = 0

    def complete(self, record: Record, folder: Path) -> None:
        """The rank is ready: from here on the file tells who it is.

        Args:
            record: of this moment. folder: where the rank will leave the one that it writes.
        """
        packed = pack(replace(record, settings={**record.settings, FOLDER: str(folder.absolute())}))
        with open(self.path, "r+b") as file:
            file.seek(self._calls_at + _CALLS * _CALL.size)
            file.write(packed + _END.pack(len(packed), _MAGIC))

    def begin(self, call: Call) -> int:
        """A call begins; the number of its first word."""
        self._sequence = sequence = self._sequence + 1
        at = self._calls_at + sequence % _CALLS * _CALL.size
        name = self._ids[call.name] if call.name in self._ids else self._id(call.name)
        low = high = 0
        if call.shapes:
            sizes = call.shapes[0]
            if len(sizes) == 2:  # rows, as nearly always
                name |= 2 << 16
                low = sizes[0] & _SIZE | (sizes[1] & _SIZE) << 32
            else:
                name |= min(len(sizes), _MOST_SIZES) << 16
                one, two, three, four = (*sizes, 0, 0, 0, 0)[:_MOST_SIZES]
                low = one & _SIZE | (two & _SIZE) << 32
                high = three & _SIZE | (four & _SIZE) << 32
        _CALL.pack_into(self._memory, at, sequence, call.begin_ns, 0, call.number, name, 0, low, high)
        return at // 8

    def failed(self, at: int, error: str) -> None:
        """That call raises an error of this type."""
        self.words[at + _ERROR_WORD] = self._id(error)

    def remove(self) -> None:
        """Removes the file; what is mapped stays."""
        self._finalizer.detach()
        self.path.unlink(missing_ok=True)

    def _id(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            known = self._ids[name] = min(len(self._ids), _NAMES - 1) + 1
            text = name.encode()[: _NAME_BYTES - 1]
            at = self._names_at + (known - 1) * _NAME_BYTES
            self._memory[at : at + _NAME_BYTES] = text.ljust(_NAME_BYTES, b"\0")
        return known


def _remove_unless_failed(path: Path, pid: int) -> None:
    """As the interpreter ends: a program that ends by an exception may be what others waited for."""
    if os.getpid() == pid and getattr(sys, "last_value", None) is None:
        path.unlink(missing_ok=True)


def journal_folder() -> Path:
    """This user's folder for journals.

    Raises:
        OSError: there is no memory file system, or something else is in the folder's place.
    """
    folder = _folder()
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    return private_folder(folder)


def _folder() -> Path:
    return MEMORY / f"uccl-ep-{os.geteuid()}"


def prune(folder: Path) -> None:
    """Removes all but those journals whose ranks were found to have ended last. Other ranks may do so at the same time.

    Stores into mapped memory date no file, so the journal of a job that ran for days would be the first to go: one that
    is found to have ended becomes read-only and has the date of that moment.
    """
    ended: list[tuple[int, int, int, str]] = []
    births: dict[int, float | None] = {}  # of processes, each of which may have a journal for each of its Buffers
    now = time.time_ns()
    with os.scandir(folder) as files:  # at every start, and there may be hundreds of them: no Path for each
        for file in files:
            if not file.name.endswith(SUFFIX):
                continue
            with suppress(OSError):
                found = file.stat()
                since = found.st_mtime_ns
                if found.st_mode & stat.S_IWUSR:
                    if _lives(Path(file.path), births):
                        continue
                    since = now
                    os.utime(file.path, ns=(now, now))
                    os.chmod(file.path, stat.S_IRUSR)
                ended.append((since, found.st_mtime_ns, found.st_size, file.path))
    total = 0
    for number, (*_, size, path) in enumerate(sorted(ended, reverse=True)):
        total += size
        if number >= KEPT or total > KEPT_BYTES:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _namespace() -> int:
    """Of process numbers: a container beside this one may have /dev/shm in common."""
    return os.stat("/proc/self/ns/pid").st_ino


def _lives(path: Path, births: dict[int, float | None] | None = None) -> bool:
    """Whether the process that made a journal, which its name begins with, is there, or cannot be seen from here.

    `births`: when each process began, None for one that is not there; filled in as they are looked up.
    """
    pid, _, namespace = path.name.partition("-")[0].partition(".")
    try:
        found = path.stat()
        if not found.st_mode & stat.S_IWUSR:  # see prune
            return False
        if namespace != str(_namespace()):
            return time.time() - found.st_mtime < _UNSEEN_S
        known = {} if births is None else births
        if int(pid) not in known:
            known[int(pid)] = _birth(int(pid))
        born = known[int(pid)]
        return born is not None and born <= found.st_ctime + 1.0
    except (ValueError, OSError):
        return False


def _birth(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def journals() -> list[Path]:
    """The journals that lie on this host, this user's; none where there is no memory file system."""
    folder = _folder()
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() and not folder.is_symlink() else []


def read_journal(path: Path) -> Record:
    """What a rank would have written down: of a running one now, else of its last moment. One that lies elsewhere than
    in this host's folder is a copy, of a rank that has ended.

    Raises:
        InvalidArgument: the file cannot be read, or tells nothing: its rank never was ready.
    """
    try:
        data = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    length, magic = _END.unpack(data[-_END.size :]) if len(data) > _END.size else (0, b"")
    rest = len(data) - _END.size - length - _TAIL_BYTES
    if magic != _MAGIC or rest < 0:
        raise InvalidArgument(f"{path} is of a rank that was not ready yet")
    made = unpack(data[rest + _TAIL_BYTES : -_END.size], str(path))
    workers = _workers(data[:rest], int(made.settings.get("proxy_threads", 1)))
    calls = _calls(data[rest : rest + _TAIL_BYTES])
    lives = path.parent == _folder() and _lives(path)
    of_calls = [ns for call in calls for ns in (call.begin_ns, call.end_ns)]
    until = time.monotonic_ns() if lives else max([made.written_ns, *of_calls, *map(_last_ns, workers)])
    wall_s = made.wall_s + (until - made.written_ns) / 1e9
    reason = RUNNING if lives else KILLED
    return replace(made, calls=calls, workers=workers, reason=reason, written_ns=until, wall_s=wall_s)


def _workers(rings: bytes, count: int) -> list[WorkerEvents]:
    """The proxy's workers' events in the bytes of their rings."""
    if not rings:
        return []
    aligned = np.frombuffer(rings, np.uint64).copy()
    capacity = int(aligned[1])
    if _native.events_bytes(count, capacity) > len(rings):
        raise InvalidArgument(f"a journal has no room for {count} rings of {capacity} events")
    return [WorkerEvents(*_native.read_events(aligned.ctypes.data, capacity, worker)) for worker in range(count)]


def _last_ns(worker: WorkerEvents) -> int:
    events = worker.events
    return int(events["ns"].max()) if len(events) else 0


def _calls(tail: bytes) -> list[Call]:
    """The calls in their order; one that was being written at the end may be missing."""
    names = [""] + [tail[i * _NAME_BYTES :][:_NAME_BYTES].rstrip(b"\0").decode(errors="replace") for i in range(_NAMES)]
    found = []
    for sequence, begin, end, number, about, error, *pairs in _CALL.iter_unpack(tail[_NAMES * _NAME_BYTES :]):
        name, dimensions = about & 0xFFFF, about >> 16
        if sequence and name < len(names) and error < len(names):
            sizes = [size for pair in pairs for size in (pair & _SIZE, pair >> 32)]
            shapes = [sizes[:dimensions]] if dimensions else []
            found.append((sequence, Call(names[name], number, begin, end, shapes, names[error])))
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]
