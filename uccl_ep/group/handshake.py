"""The blobs that ranks exchange at start: msgpack maps with a version, checked field by field.

A blob comes from another process, maybe of another version, so nothing in it is believed before it is checked. Every
exchange also carries an error text: a rank that fails tells the others in the next exchange, and all of them raise the
same message instead of waiting for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import msgpack

from uccl_ep.errors import PeerLost, PeerTimeout, SettingsMismatch, UcclEpError
from uccl_ep.group.group import Group
from uccl_ep.system.os_limits import naming

VERSION = 7
MAX_BLOB_BYTES = 1 << 20
_MOST_QUOTED = 500  # characters
_TYPES: Mapping[str, type] = {
    "int": int,
    "str": str,
    "bytes": bytes,
    "dict[str, Any]": dict,
    "list[str]": list,
    "list[int]": list,
}

_PR_GET_DUMPABLE = 3  # linux/prctl.h
_PROGRAM = uuid.uuid4().hex


def process_name() -> str:
    """The same for threads of one process, which can pass pointers, and for nobody else: a forked child is another."""
    return f"{_PROGRAM}/{os.getpid()}"


@dataclass(frozen=True)
class Hello:
    """First exchange: who a rank is, where it runs, and the settings that all ranks must share."""

    rank: int
    hostname: str
    host_id: str  # same boot and pid namespace: segments can be mapped and processes watched
    process: str
    pid: int
    interface: str
    settings: dict[str, Any]
    session: int
    public: bytes  # of its key pair (uccl_ep.membership.secret); empty where the secret is known already
    error: str = ""
    device: str = "cpu"  # kind of processor that its kernels run on: cpu, cuda, hip
    gpu: str = ""  # which one: the same for the same GPU in any process of the host
    num_sms: int = 0
    exportable: int = 0  # 1: other processes of the host can open that GPU's memory
    domain: str = ""  # the NVLink domain whose GPUs, also of other hosts, can open it; empty: none
    domain_reason: str = ""  # why none
    limited: int = 0  # 1: its address space is, so nobody reserves more of it than will be used
    fabric: dict[str, Any] = field(default_factory=dict)  # its network (uccl_ep.fabric.facts); empty: it did not look
    self_description: dict[str, Any] = field(
        default_factory=dict
    )  # what may differ between ranks (uccl_ep.group.self_description)


@dataclass(frozen=True)
class Deal:
    """Second exchange: the session's secret, which each rank but the first gets hidden from all others (secret.py)."""

    rank: int
    boxes: bytes  # of the first rank
    error: str = ""


@dataclass(frozen=True)
class Endpoints:
    """Third exchange: where a rank's memory is and how its proxy is reached."""

    rank: int
    segment_pid: int
    data_fd: int
    data_bytes: int
    control_fd: int
    control_bytes: int
    flat_bytes: int
    address: bytes
    error: str = ""
    watch_pid: int = 0  # the process whose end is the rank's: its proxy's, which ends with it
    data_handle: bytes = b""  # for rows in a GPU's memory, which have no descriptor: what opens them
    agreement_service: str = ""  # where its survivors' agreement listens
    arena_fd: int = -1  # of its results, which ranks of its node may read where they are; -1: it has none
    arena_bytes: int = 0
    zero_copy_fd: int = -1  # of its zero-copy rows, likewise
    zero_copy_bytes: int = 0


@dataclass(frozen=True)
class Ready:
    """Last exchange: the rank has connected and started."""

    rank: int
    error: str = ""
    notes: list[str] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)  # sizes of its graphs' calls, which go on; [0]: they cannot


Blob = TypeVar("Blob", Hello, Deal, Endpoints, Ready)


def pack(blob: Hello | Deal | Endpoints | Ready) -> bytes:
    """The blob's wire form."""
    packed: bytes = msgpack.packb({"v": VERSION, "kind": type(blob).__name__, **asdict(blob)}, use_bin_type=True)
    return packed


def unpack(kind: type[Blob], data: object, sender: int) -> Blob:
    """Checks and reads what rank `sender` sent.

    Raises:
        UcclEpError: not a blob, another version or kind, a field missing, unknown, or of the wrong type.
    """
    if not isinstance(data, bytes) or len(data) > MAX_BLOB_BYTES:
        raise UcclEpError(
            f"rank {sender} sent no handshake blob: is it another library, or another version of uccl_ep?"
        )
    try:
        values = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except Exception as error:
        raise UcclEpError(f"rank {sender} sent a handshake blob that is not msgpack: {error}") from error
    if isinstance(values, dict) and not all(isinstance(name, str) for name in values):
        raise UcclEpError(f"rank {sender} sent a handshake blob whose fields are no names")
    if not isinstance(values, dict) or values.get("v") != VERSION:
        seen = values.get("v") if isinstance(values, dict) else None
        raise UcclEpError(
            f"rank {sender} speaks handshake version {_brief(seen, str)}, this rank {VERSION}: install one version"
        )
    if values.get("kind") != kind.__name__:
        raise UcclEpError(
            f"rank {sender} is at {_brief(values.get('kind'), str)} of the handshake, this rank at {kind.__name__}"
        )
    values = {name: value for name, value in values.items() if name not in ("v", "kind")}
    wanted = {f.name: f for f in fields(kind)}
    if set(values) != set(wanted):
        raise UcclEpError(
            f"rank {sender}'s {kind.__name__} has fields {_brief(sorted(values))}, expected {sorted(wanted)}"
        )
    for name, f in wanted.items():
        if type(values[name]) is not _TYPES[str(f.type)]:
            raise UcclEpError(f"rank {sender}'s {kind.__name__}.{name} is {_brief(values[name])}, expected {f.type}")
    if values["rank"] != sender:
        raise UcclEpError(f"the group's rank {sender} says it is rank {values['rank']}")
    return kind(**values)


def _brief(value: object, show: Callable[[object], str] = repr) -> str:
    """What a message quotes of another process's value: its beginning, however much it sent."""
    text = show(value)
    return text if len(text) <= _MOST_QUOTED else text[:_MOST_QUOTED] + "..."


def empty(kind: type[Blob], rank: int) -> Blob:
    """What stands for a rank that is absent."""
    values = {f.name: _TYPES[str(f.type)]() for f in fields(kind)}
    return kind(**{**values, "rank": rank})


def exchange(group: Group, blob: Blob) -> list[Blob]:
    """Everybody's blob, by rank; an empty one for a rank that the group says is absent. Collective.

    Raises:
        UcclEpError: some rank reported an error; the message names it and every rank raises the same.
        PeerLost: the group itself failed, since a rank has ended or cannot be reached; says what the group said.
    """
    absent: frozenset[int] = getattr(group, "absent", frozenset())
    try:
        gathered = group.all_gather_object(pack(blob))
    except (PeerLost, PeerTimeout):
        raise  # a group of survivors says itself who is missing
    except Exception as error:
        raise _lost(blob, error) from error
    blobs = [empty(type(blob), r) if r in absent else unpack(type(blob), data, r) for r, data in enumerate(gathered)]
    failed = [b for b in blobs if b.error]
    if failed:
        raise UcclEpError("; ".join(f"rank {b.rank}: {b.error}" for b in failed))
    return blobs


def _lost(blob: Hello | Deal | Endpoints | Ready, error: Exception) -> PeerLost:
    """The group's failure in an exchange. What this rank itself could not do is the better reason, if there is one."""
    said = _brief(f"{type(error).__name__}: {error}".removesuffix(": "), str)
    phase = f"start-up, exchange of {type(blob).__name__}"
    if blob.error:
        phase += f", after this rank's own failure ({blob.error})"
    reason = f"a rank ended or failed before this Buffer was made, and its own error says why (the group says: {said})"
    return PeerLost(rank=blob.rank, phase=phase, reason=reason)


def agreed_graphs(readies: Sequence[Ready]) -> tuple[int, int, int] | None:
    """The sizes of captured calls that go on, where every rank that has some can go on with them; None: no call goes
    on."""
    said = {tuple(ready.graphs) for ready in readies if ready.graphs}
    sizes = said.pop() if len(said) == 1 else ()
    return sizes if len(sizes) == 3 and all(type(size) is int for size in sizes) else None


def compare_settings(hellos: Sequence[Hello]) -> None:
    """Every setting is the same on every rank.

    Raises:
        SettingsMismatch: names each differing setting and every rank's value.
    """
    names = sorted({name for i in hellos for name in i.settings})
    different = {}
    for name in names:
        values = [i.settings.get(name) for i in hellos]
        if any(value != values[0] for value in values):
            shown = ", ".join(f"rank {i.rank} ({i.hostname}): {v!r}" for i, v in zip(hellos, values, strict=True))
            different[name] = f"{name} differs: {shown}"
    if "hidden" in different:
        different.pop("num_nvl_bytes", None)  # which ElasticBuffer computes from it
    if different:
        raise SettingsMismatch("ranks of one Buffer must be started alike. " + "; ".join(different.values()))


def host_identity() -> str:
    """A name for "same kernel, pid namespace, user and group", within which memfds can be opened and pids watched.

    A process that may not be looked into (PR_SET_DUMPABLE) is alone: it has changed its user since it began, or its
    program has capabilities.
    """
    owner = f"{os.geteuid()}:{os.getegid()}"
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        if ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
            owner += f"/{os.getpid()}"
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{owner}"
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # another name than other ranks' would not be noticed
            raise
        return f"{socket.gethostname()}/{uuid.getnode()}/{owner}"


def route_address() -> str:
    """The address other hosts would reach this one by: the source of its default route. Sends nothing."""
    with naming("socket for the address of the default route"):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with opened as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: a UDP connect only picks a route
            return str(probe.getsockname()[0])
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
