"""The address and greeting in Python: round trips, refusals, and values worked out by hand."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from tests.rdma.inside.wire import Address, Group, Nic


def random_address(seed: int) -> Address:
    r = random.Random(seed)
    spans = tuple((r.getrandbits(40), r.getrandbits(30), r.getrandbits(46)) for _ in range(r.randrange(4)))
    ranks, lanes, queues = r.randrange(2, 9), r.randrange(1, 4), r.randrange(1, 5)
    nics = tuple(
        Nic(
            device=f"rxe{i}",
            gid=f"::ffff:a09:{i + 1:x}",
            mtu=r.choice((256, 1024, 4096)),
            greeting_base=r.getrandbits(46),
            greeting_key=r.getrandbits(32),
            keys=tuple(r.getrandbits(32) for _ in spans),
            queue_pairs=tuple(r.getrandbits(24) for _ in range(ranks * lanes * queues)),
            lid=r.getrandbits(16),
        )
        for i in range(r.randrange(1, 4))
    )
    return Address(r.getrandbits(64), r.randrange(ranks), ranks, lanes, queues, r.randrange(1, 513), spans, nics)


@pytest.mark.parametrize("seed", range(20))
def test_rdma_wire_address_round_trip(seed: int) -> None:
    address = random_address(seed)
    again = Address.unpack(address.pack())
    assert again.pack() == address.pack()
    assert (again.rank, again.num_ranks, again.spans) == (address.rank, address.num_ranks, address.spans)
    assert [n.queue_pairs for n in again.nics] == [n.queue_pairs for n in address.nics]


# Of rank 0 of 2 in the guest: rdma_side family=verbs, one queue pair, session 7, a secret of 32 times "s".
RECORDED = (
    "5550455601000000010000003bcaee36075236680000000002000000010000000100000040000000000000000000004000000000"
    "010000000010000000000000000040000000000000f0bf5d477f0000010000000400000072786530010000000200000002000000"
    "001000000000000000000000000000000000ffff0a09000180d5c9763b5600005b0700000100000044060000020000000000000014000000"
)


def test_rdma_wire_reads_what_our_transport_wrote() -> None:
    address = Address.unpack(bytes.fromhex(RECORDED))
    assert address.pack().hex() == RECORDED and address.fingerprint == Group(7, b"s" * 32).fingerprint
    assert (address.rank, address.num_ranks, address.queues, address.max_in_flight) == (0, 2, 1, 64)
    ((offset, length, _),), (nic,) = address.spans, address.nics
    assert (offset, length) == (4096, 4 << 20) and (nic.device, nic.mtu, nic.queue_pairs) == ("rxe0", 4096, (0, 20))
    assert nic.gid == "0000:0000:0000:0000:0000:ffff:0a09:0001" and len(nic.keys) == 1


def test_rdma_wire_damaged_addresses_are_refused() -> None:
    whole = random_address(3).pack()
    for length in range(0, len(whole), 7):
        with pytest.raises((ValueError, struct.error)):
            Address.unpack(whole[:length])
    for bad in (whole + b"\0", b"\0" + whole[1:], whole[:4] + b"\2" + whole[5:]):
        with pytest.raises(ValueError):
            Address.unpack(bad)


def test_rdma_wire_tokens() -> None:
    group = Group(7, b"s" * 32)
    path = (7).to_bytes(8, "little") + (1).to_bytes(4, "little") + (0).to_bytes(4, "little")  # to rank 1, from rank 0
    path += (3).to_bytes(4, "little") + (2).to_bytes(4, "little")  # queue 3, lane 2
    inner = hashlib.sha256(b"s" * 32 + path).digest()
    assert group.token(0, 1, 2, 3) == hashlib.sha256(b"s" * 32 + inner).digest()


def test_rdma_wire_tokens_differ_by_everything() -> None:
    group = Group(7, b"s" * 32)
    paths = [(0, 1, 0, 0), (1, 0, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    tokens = [group.token(*path) for path in paths]
    tokens += [Group(8, b"s" * 32).token(*paths[0]), Group(7, b"t" * 32).token(*paths[0])]
    assert len(set(tokens)) == len(tokens) and all(len(token) == 32 for token in tokens)
    packets = [group.first_packet(*path) for path in paths]
    assert len(set(packets)) == len(packets) and all(0 <= p < 1 << 24 for p in packets)
    assert Group(8, b"s" * 32).fingerprint != group.fingerprint < 1 << 64
