"""The flight record of one rank: what its file holds, writing it, and reading it back with nothing in it believed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgpack

from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder.calls import Call
from uccl_ep.recorder.events import Events, decode

FORMAT, VERSION = "uccl-ep flight record", 1
SUFFIX = ".uccl-ep"
_MOST_BYTES = 1 << 30
_TYPES = {"int": int, "str": str, "float": float, "dict": dict, "list": list}


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
        values = msgpack.unpackb(data, raw=False)
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
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{name} is a damaged flight record: {error}") from error
    return record


def _call(values: dict[str, Any]) -> Call:
    call = Call(**values)
    if not isinstance(call.name, str) or not all(isinstance(v, int) for v in (call.begin_ns, call.end_ns, call.number)):
        raise ValueError("a call without name or times")
    call.kernels = [(int(ns), str(kernel)) for ns, kernel in call.kernels]
    return call


def _check(record: Record) -> None:
    for one in fields(Record):
        value = getattr(record, one.name)
        wanted = _TYPES[one.type.partition("[")[0]]
        if not isinstance(value, wanted):
            raise ValueError(f"{one.name} is a {type(value).__name__}, not a {wanted.__name__}")
    if not 0 <= record.rank < record.num_ranks:
        raise ValueError(f"rank {record.rank} of {record.num_ranks}")
    for name in ("node_of", "hostnames", "peers"):
        if len(getattr(record, name)) != record.num_ranks:
            raise ValueError(f"{name} is not of {record.num_ranks} ranks")


def write(record: Record, folder: Path) -> Path:
    """Writes a record's file, whole or not at all, for this user only; returns its path. Replaces an older one.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=folder, prefix=".record-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(pack(record))
        path = folder / record.file_name
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read(path: Path) -> Record:
    """A file's record.

    Raises:
        InvalidArgument: it cannot be read, or see unpack.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(f"{path} is no flight record: it is larger than {_MOST_BYTES} bytes")
        return unpack(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error


def read_all(places: Iterable[Path]) -> list[Record]:
    """The records in files and folders, of the session that was written last, ascending by rank.

    Raises:
        InvalidArgument: there is none, or a file that was named is none.
    """
    found: list[Record] = []
    places = list(places)
    for place in places:
        files = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
        found += [read(file) for file in files]
    if not found:
        shown = ", ".join(map(str, places))
        raise InvalidArgument(f"no flight record (*{SUFFIX}) in {shown}. UCCL_EP_FLIGHT_RECORDER says where they go.")
    newest = max(found, key=lambda record: record.wall_s).session
    of_rank: dict[int, Record] = {}
    for record in sorted((r for r in found if r.session == newest), key=lambda r: r.wall_s):
        of_rank[record.rank] = record
    return [of_rank[rank] for rank in sorted(of_rank)]
