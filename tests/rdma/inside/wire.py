"""What a verbs peer of ours puts into its address and its greeting, written down a second time, from the description in
proxy/transport/verbs/address.h, greeting.h and transport/proof.h. Only the standard library."""

from __future__ import annotations

import hmac
import ipaddress
import struct
from dataclasses import dataclass
from typing import Any

MAGIC, VERSION, RELIABLE = 0x56455055, 2, 1
GREETING_BYTES = 64  # of a slot in the greeting area; a proof fills the first 32
_PSN_LANE = 1 << 31  # what sets the numbers of first packets apart from proofs
_HEAD = struct.Struct("<IIIQ16sIIIIIIQI")
_SPAN = struct.Struct("<QQQ")
_NIC = struct.Struct("<IIIII16sQI")


@dataclass(frozen=True)
class Nic:
    """One NIC of a rank. `queue_pairs`: [peer rank][lane][queue]; `keys`: of every span's chunks."""

    device: str
    gid: str
    mtu: int
    greeting_base: int
    greeting_key: int
    keys: tuple[int, ...]
    queue_pairs: tuple[int, ...]
    port: int = 1
    link_layer: int = 2  # Ethernet
    gid_type: int = 2  # RoCE v2
    lid: int = 0


@dataclass(frozen=True)
class Address:
    """What a rank tells its peers; `spans` are (offset in the rank's flat space, bytes, base of remote addresses)."""

    fingerprint: int
    nonce: bytes
    rank: int
    num_ranks: int
    num_lanes: int
    queues: int
    max_in_flight: int
    spans: tuple[tuple[int, int, int], ...]
    nics: tuple[Nic, ...]
    chunk_bytes: int = 1 << 30

    def pack(self) -> bytes:
        """The bytes that travel in the handshake."""
        head = (MAGIC, VERSION, RELIABLE, self.fingerprint, self.nonce, self.rank, self.num_ranks, self.num_lanes)
        parts = [_HEAD.pack(*head, self.queues, self.max_in_flight, 0, self.chunk_bytes, len(self.spans))]
        parts += [_SPAN.pack(*span) for span in self.spans]
        parts.append(struct.pack("<I", len(self.nics)))
        for nic in self.nics:
            gid = ipaddress.IPv6Address(nic.gid).packed
            parts.append(struct.pack("<I", len(nic.device)) + nic.device.encode())
            numbers = (nic.port, nic.link_layer, nic.gid_type, nic.mtu, nic.lid, gid)
            parts.append(_NIC.pack(*numbers, nic.greeting_base, nic.greeting_key))
            parts += [struct.pack(f"<I{len(v)}I", len(v), *v) for v in (nic.keys, nic.queue_pairs)]
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Address:
        """Raises ValueError or struct.error for bytes that are no address."""
        reader = _Reader(data)
        head = reader.take(_HEAD)
        if head[:3] != (MAGIC, VERSION, RELIABLE):
            raise ValueError(f"no verbs address of version {VERSION}: {head[:3]}")
        spans = tuple(reader.take(_SPAN) for _ in range(head[12]))
        nics = []
        for _ in range(reader.number()):
            device = reader.some(reader.number()).decode()
            port, layer, kind, mtu, lid, gid, base, key = reader.take(_NIC)
            keys, pairs = (tuple(reader.number() for _ in range(reader.number())) for _ in range(2))
            text = gid.hex(":", 2)  # pyverbs wants every digit
            nics.append(Nic(device, text, mtu, base, key, keys, pairs, port, layer, kind, lid))
        if reader.data:
            raise ValueError(f"{len(reader.data)} bytes behind the address")
        return cls(*head[3:10], spans, tuple(nics), head[11])  # type: ignore[call-arg]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def some(self, count: int) -> bytes:
        if len(self.data) < count:
            raise ValueError("the address ends too early")
        head, self.data = self.data[:count], self.data[count:]
        return head

    def take(self, shape: struct.Struct) -> tuple[Any, ...]:
        return shape.unpack(self.some(shape.size))

    def number(self) -> int:
        return int.from_bytes(self.some(4), "little")


@dataclass(frozen=True)
class Group:
    """What all ranks of a group know and strangers do not."""

    session: int
    secret: bytes

    def proof(self, path: tuple[int, int, int, int], sender: bytes, receiver: bytes) -> bytes:
        """What a sender writes first on the queue pair of this (sender, receiver, lane, queue): 32 bytes that only the
        group can know, and only with the nonces of both ranks' addresses."""
        return self._prove(b"path", struct.pack("<QIIII", self.session, *path) + sender + receiver)

    def first_packet(self, path: tuple[int, int, int, int], sender: bytes, receiver: bytes) -> int:
        """The number of the first packet that the sender sends on that queue pair."""
        rank, peer, lane, queue = path
        return int.from_bytes(self.proof((rank, peer, lane | _PSN_LANE, queue), sender, receiver)[:3], "little")

    @property
    def fingerprint(self) -> int:
        """Tells groups apart before anything is tried."""
        return int.from_bytes(self._prove(b"fingerprint", struct.pack("<Q", self.session))[:8], "little")

    def _prove(self, label: bytes, text: bytes) -> bytes:
        key = hmac.digest(self.secret, b"uccl-ep proof " + label, "sha256")
        return hmac.digest(key, text, "sha256")
