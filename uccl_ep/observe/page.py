"""A rank's page: who it is and where its counters lie, for whoever looks at a running job from outside.

The page is a memfd beside the rank's other segments, so it ends with the rank whatever ends that. Its bytes are a magic
word, a length (u64, native order: readers are on the same host) and a msgpack map. The magic word is written last, so a
page that is still being written is none yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgpack

from uccl_ep.errors import InvalidArgument
from uccl_ep.group.topology import Topology

VERSION = 3
"""Of the page. What the segments hold is told by `library`, and checked by their sizes."""

MAGIC = b"uccl-ep1"
PAGE_SUFFIX = "-page"
"""Of the memfd's name, `uccl-ep-<rank>-page`, by which readers find it."""

_HEAD_BYTES = 16
MOST_BYTES = 4 << 20
"""Of a page; one for 4,096 ranks on as many hosts has a twentieth of it."""


@dataclass(frozen=True)
class Location:
    """A segment of the rank.

    Attributes:
        fd: its descriptor in the rank's process.
        inode: what that descriptor must still refer to; numbers are used again after a close.
        num_bytes: how much of it is used.
    """

    fd: int
    inode: int
    num_bytes: int


@dataclass(frozen=True)
class Page:
    """What a rank says of itself.

    Attributes:
        version: of this format. library: version of uccl_ep that wrote it.
        session: the same for all ranks of one Buffer in one life, and for no others.
        rank, num_ranks, absent: this one, all of them, and those that take no part.
        pid, proxy_pid: of the rank and of what runs its proxy, as the rank knows them.
        host_names, machine_of: distinct host names, and the index of each rank's.
        pids: of each rank, as it knows it. node_of, apart, host_of: the topology (uccl_ep.group.topology).
        device: cpu, cuda or hip. family, placement: the network, and where rows lie ("host" or "device").
        proxy_threads, num_rings, ring_capacity, max_in_flight, max_in_flight_bytes: settings.
        num_channels: what the control segment is laid out for.
        started_ns: CLOCK_MONOTONIC, when the rank was ready.
        segments: those that may be looked at: control, rings, counters always; stats (what kernels add up) and data
            (rows, whose first words tell of calls) where they lie in host memory; durations (of calls).
        job_id: of which job the Buffer is; several Buffers of a job say the same.
    """

    rank: int
    num_ranks: int
    session: int
    pid: int
    proxy_pid: int
    library: str
    host_names: list[str]
    machine_of: list[int]
    pids: list[int]
    node_of: list[int]
    device: str
    family: str
    placement: str
    proxy_threads: int
    num_rings: int
    ring_capacity: int
    max_in_flight: int
    max_in_flight_bytes: int
    num_channels: int
    started_ns: int
    segments: dict[str, Location]
    apart: bool = False
    host_of: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    job_id: str = ""
    version: int = VERSION

    @property
    def topology(self) -> Topology:
        """The nodes of the group."""
        return Topology(tuple(self.node_of), self.apart, tuple(self.host_of))

    @property
    def hostname(self) -> str:
        """Of this rank."""
        return self.host_name(self.rank)

    def host_name(self, rank: int) -> str:
        """Host name of a rank."""
        return self.host_names[self.machine_of[rank]]

    @property
    def present(self) -> list[int]:
        """Ranks that take part, ascending."""
        return [rank for rank in range(self.num_ranks) if rank not in self.absent]

    @property
    def job(self) -> str:
        """A short name for the session: eight hexadecimal digits."""
        return f"{self.session & 0xFFFFFFFF:08x}"


def pack(page: Page) -> tuple[bytes, bytes]:
    """(magic, the rest) of a page's bytes; see the top of this file for why apart."""
    body: bytes = msgpack.packb(asdict(page))
    return MAGIC, len(body).to_bytes(8, "little") + body


def unpack(data: bytes) -> Page:
    """The page in the bytes of a segment or a file, which may go on behind it.

    Raises:
        InvalidArgument: there is no whole page, it is of another version, or what it says does not fit together.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise InvalidArgument("no page of a rank: its first 8 bytes are not uccl-ep's (or it is being written)")
    length = int.from_bytes(data[len(MAGIC) : _HEAD_BYTES], "little")
    if not 0 < length <= min(MOST_BYTES, len(data) - _HEAD_BYTES):
        raise InvalidArgument(f"a rank's page says {length} bytes where {len(data) - _HEAD_BYTES} are")
    try:
        said = msgpack.unpackb(data[_HEAD_BYTES : _HEAD_BYTES + length])
    except Exception as error:  # msgpack raises ValueErrors, UnicodeErrors and its own
        raise InvalidArgument(f"a rank's page is not msgpack: {error}") from error
    if not isinstance(said, dict) or said.get("version") != VERSION:
        version = said.get("version") if isinstance(said, dict) else None
        raise InvalidArgument(f"a rank's page has version {version!r}, this uccl-ep reads {VERSION}: use the job's own")
    return _page_of(said)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= -1,
    "str": lambda v: isinstance(v, str),
    "bool": lambda v: isinstance(v, bool),
    "list[int]": lambda v: isinstance(v, list) and all(isinstance(i, int) and i >= 0 for i in v),
    "list[str]": lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v),
    "dict[str, Location]": lambda v: isinstance(v, dict) and all(isinstance(i, dict) for i in v.values()),
}


def _page_of(said: Mapping[str, Any]) -> Page:
    for f in fields(Page):
        if f.name not in said or not _KINDS[str(f.type)](said[f.name]):
            raise InvalidArgument(f"a rank's page has {f.name} {said.get(f.name)!r:.80}, which is no {f.type}")
    try:
        segments = {str(name): Location(**where) for name, where in said["segments"].items()}
    except TypeError as error:
        raise InvalidArgument(f"a rank's page names segments wrongly: {error}") from error
    page = Page(**{f.name: said[f.name] for f in fields(Page)} | {"segments": segments})
    ranks = page.num_ranks
    fits = (
        0 <= page.rank < ranks
        and len(page.machine_of) == len(page.pids) == len(page.node_of) == ranks
        and len(page.host_of) in (0, ranks)
        and all(i < len(page.host_names) for i in page.machine_of)
        and min(page.proxy_threads, page.num_rings, page.ring_capacity, page.num_channels) >= 1
        and {"control", "rings", "counters"} <= set(segments)
        and all(isinstance(n, int) and n >= 0 for s in segments.values() for n in (s.fd, s.inode, s.num_bytes))
    )
    if not fits:
        raise InvalidArgument(f"a rank's page contradicts itself (rank {page.rank} of {ranks})")
    return page
