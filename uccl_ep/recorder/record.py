"""The flight record of one rank: what its file holds, writing it, and reading it back with nothing in it believed."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgpack

from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder.events import Events, decode
from uccl_ep.system.private import make_folder, read_file, write_file

FORMAT, VERSION = "uccl-ep flight record", 1
SUFFIX = ".uccl-ep"
_MOST_BYTES = 256 << 20  # 64 proxy threads' rings with UCCL_EP_TRACE are half of it
_MOST_ITEMS = 1 << 16  # of a list or map: an item of one byte takes 56 as an object
_MOST_WALL_S = 1e11  # the year 5138
_FAULT = ("kind", "phase", "peer", "waited_ns")


@dataclass
class Call:
    """One call.

    Attributes:
        name, number: what was called, and how many of that name there were with it: of a low-latency call the epoch.
        begin_ns, end_ns: CLOCK_MONOTONIC; end 0: it has not returned.
        shapes: of its tensor arguments.
        error: type of what it raised.
        kernels: (when it was queued, name) of each kernel.
    """

    name: str
    number: int
    begin_ns: int
    end_ns: int = 0
    shapes: list[list[int]] = field(default_factory=list)
    error: str = ""
    kernels: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class WorkerEvents:
    """What one proxy worker recorded.

    Attributes:
        first, written: number of the first event here, and how many there ever were. traced: every command.
        data: the events' bytes.
    """

    first: int
    written: int
    traced: bool
    data: bytes

    @property
    def events(self) -> Events:
        """As an array; see uccl_ep.recorder.events."""
        return decode(self.data)


@dataclass
class Record:
    """What a rank knew when it wrote its record. Times are its host's CLOCK_MONOTONIC in ns.

    Attributes:
        rank, num_ranks, session: who, of how many; the session is the same for all ranks of one Buffer in one life.
        host, host_id, pid: where. host_id: one clock is read where it is equal.
        reason: why it was written. error: what the call raised. blamed: whom that names, -1 nobody.
        written_ns, wall_s: when, by both clocks.
        node_of, absent, hostnames, family, device: the group, by rank, and what it runs on.
        masked: ranks that this one leaves out. fault: its fault record; empty: none. last_kernel: that was queued.
        progress: [phase][source] = [due, arrived] of the call under way; due 0: not announced.
        flags: [phase][source] = the last call of which everything is here.
        counters: of each worker. peers: of each rank. kernels: [rank] = what kernels counted (kernels/layout).
        calls, workers: see Call and WorkerEvents.
        settings, versions: by name.
    """

    rank: int
    num_ranks: int
    session: int
    host: str
    host_id: str
    pid: int
    reason: str
    error: str
    blamed: int
    written_ns: int
    wall_s: float
    node_of: list[int]
    absent: list[int]
    hostnames: list[str]
    family: str
    device: str
    masked: list[int]
    fault: dict[str, int]
    last_kernel: str
    progress: list[list[list[int]]]
    flags: list[list[int]]
    counters: list[dict[str, int]]
    peers: list[dict[str, int]]
    kernels: list[list[int]]
    settings: dict[str, Any]
    versions: dict[str, str]
    calls: list[Call] = field(default_factory=list)
    workers: list[WorkerEvents] = field(default_factory=list)

    @property
    def job(self) -> str:
        """A short name for the session: eight hexadecimal digits."""
        return f"{self.session & 0xFFFFFFFF:08x}"

    @property
    def file_name(self) -> str:
        """What its file is called."""
        return f"{self.job}-rank{self.rank}{SUFFIX}"

    def wall(self, ns: int) -> float:
        """Seconds since 1970 of a moment of this host's clock."""
        return self.wall_s + (ns - self.written_ns) / 1e9


def pack(record: Record) -> bytes:
    """The bytes of a record's file."""
    packed: bytes = msgpack.packb({"format": FORMAT, "version": VERSION, **asdict(record)}, use_bin_type=True)
    return packed


def unpack(data: bytes, name: str) -> Record:
    """The record in a file's bytes.

    Raises:
        InvalidArgument: it is none, of another version, or damaged; names the file and what is wrong.
    """
    try:
        values = msgpack.unpackb(data, raw=False, max_array_len=_MOST_ITEMS, max_map_len=_MOST_ITEMS)
    except Exception as error:  # msgpack has a dozen kinds for bytes that are none of its own
        raise InvalidArgument(f"{name} is no flight record: {type(error).__name__}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise InvalidArgument(f"{name} is no flight record of uccl-ep")
    if (version := values.pop("version", None)) != VERSION:
        raise InvalidArgument(f"{name} is a flight record of version {version}; this uccl-ep reads version {VERSION}")
    try:
        values["calls"] = [_call(call) for call in values["calls"]]
        values["workers"] = [WorkerEvents(**worker) for worker in values["workers"]]
        for worker in values["workers"]:
            decode(worker.data)
        record = Record(**values)
        _check(record)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{name} is a damaged flight record: {error}") from error
    return record


def _call(values: dict[str, Any]) -> Call:
    call = Call(**values)
    if not isinstance(call.name, str) or not all(isinstance(v, int) for v in (call.begin_ns, call.end_ns, call.number)):
        raise ValueError("a call without name or times")
    call.kernels = [(int(ns), str(kernel)) for ns, kernel in call.kernels]
    return call


def _check(record: Record) -> None:
    """Refuses what a story or a trace would stumble over."""
    _demand("it", record, Record)
    if not 0 <= record.rank < record.num_ranks:
        raise ValueError(f"rank {record.rank} of {record.num_ranks}")
    for name in ("node_of", "hostnames", "peers"):
        if len(getattr(record, name)) != record.num_ranks:
            raise ValueError(f"{name} is not of {record.num_ranks} ranks")
    if any(len(row) != record.num_ranks or any(len(pair) != 2 for pair in row) for row in record.progress):
        raise ValueError(f"progress is not of {record.num_ranks} ranks")
    if not all(0 <= rank < record.num_ranks for rank in (*record.masked, *record.absent)):
        raise ValueError(f"masked or absent ranks that are none of {record.num_ranks}")
    if record.fault and not all(record.fault.get(name, -1) >= 0 for name in _FAULT):
        raise ValueError(f"a fault without one of {', '.join(_FAULT)}")
    if not 0 <= record.wall_s < _MOST_WALL_S:
        raise ValueError(f"written {record.wall_s} s after 1970")


def _demand(name: str, value: Any, kind: Any) -> None:
    """Raises ValueError when a value is not of an annotation, all the way down."""
    wanted, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return
    if not isinstance(value, wanted):
        raise ValueError(f"{name} is a {type(value).__name__}, not a {wanted.__name__}")
    if is_dataclass(wanted):
        kinds = _kinds(kind)
        for one in fields(wanted):
            _demand(one.name, getattr(value, one.name), kinds[one.name])
    elif wanted is list:
        for item in value:
            _demand(f"an item of {name}", item, inner[0])
    elif wanted is dict:
        for key, item in value.items():
            _demand(f"a name in {name}", key, inner[0])
            _demand(f"an item of {name}", item, inner[1])


_kinds = functools.cache(get_type_hints)  # it compiles each annotation anew


def write(record: Record, folder: Path) -> Path:
    """Writes a record's file, whole or not at all, for this user only; returns its path. Replaces an older one.

    Raises:
        OSError: the folder cannot be made or written to, or the way there leads over another user's link.
    """
    make_folder(folder)
    path = folder / record.file_name
    write_file(path, pack(record))
    return path


def read(path: Path) -> Record:
    """A file's record. Never waits: what is no regular file, or a link to one, is refused.

    Raises:
        InvalidArgument: it cannot be read, or see unpack.
    """
    try:
        return unpack(read_file(path, _MOST_BYTES, anybody=True), str(path))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError as error:
        raise InvalidArgument(f"{path} cannot be read: there is no memory for it") from error


def printable(text: str) -> str:
    """A text from a file that anybody may have written, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
