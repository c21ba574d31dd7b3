"""Blobs of any content from another process: a refusal in words of bounded length, or exactly what the types say."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from uccl_ep import UcclEpError
from uccl_ep.group.handshake import MAX_BLOB_BYTES, VERSION, Deal, Endpoints, Hello, Ready, pack, unpack

KINDS: tuple[Any, ...] = (Hello, Deal, Endpoints, Ready)
BLOBS: tuple[Any, ...] = (
    Hello(2, "alpha", "boot/1", "token", 41, "127.0.0.1", {"num_nvl_bytes": 128}, 2**62, b"s" * 32),
    Deal(2, b"\x00box"),
    Endpoints(2, 41, 7, 4096, 8, 4096, 1 << 40, b"\x00\xff\x80"),
    Ready(2, "", ["tcp: no RDMA device"]),
)
_LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    _LEAVES | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["v", "kind", *sorted({f.name for kind in KINDS for f in dataclasses.fields(kind)})])
FUZZ = settings(suppress_health_check=list(HealthCheck), deadline=None)


def refused_or_right(kind: Any, data: bytes) -> None:
    """`unpack` refuses in few words, or gives what its types promise."""
    try:
        blob = unpack(kind, data, 2)
    except UcclEpError as error:
        assert "rank 2" in str(error) and len(str(error)) < 3000
        return
    known = BLOBS[KINDS.index(kind)]
    assert blob.rank == 2
    assert all(type(getattr(blob, f.name)) is type(getattr(known, f.name)) for f in dataclasses.fields(kind))


@FUZZ
@given(st.sampled_from(KINDS), st.dictionaries(NAMES | st.text(max_size=3) | st.binary(max_size=3), VALUES))
@example(Ready, {"v": VERSION, "kind": "Ready", "rank": 2, b"x": 1})
@example(Ready, {"v": VERSION, "kind": "Ready", "rank": 2, "error": "", "notes": "n" * 100_000})
@example(Ready, {"v": "9" * 100_000})
def test_handshake_fuzz_any_map(kind: Any, values: dict[Any, Any]) -> None:
    refused_or_right(kind, msgpack.packb(values, use_bin_type=True))
    refused_or_right(kind, msgpack.packb({"v": VERSION, "kind": kind.__name__, **values}, use_bin_type=True))


@FUZZ
@given(st.sampled_from(BLOBS), st.dictionaries(NAMES, VALUES, max_size=3))
def test_handshake_fuzz_right_fields_with_any_values(blob: Any, changed: dict[str, Any]) -> None:
    values = {**msgpack.unpackb(pack(blob), raw=False), **changed}
    refused_or_right(type(blob), msgpack.packb(values, use_bin_type=True))


@FUZZ
@given(st.sampled_from(BLOBS), st.data())
def test_handshake_fuzz_changed_cut_and_longer_bytes(blob: Any, data: st.DataObject) -> None:
    raw = bytearray(pack(blob))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for kind in KINDS:
        refused_or_right(kind, bytes(raw))
        refused_or_right(kind, bytes(raw[:cut]))
        refused_or_right(kind, bytes(raw) + bytes(raw[cut:]))


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
                                  b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\x91" * 100_000])  # fmt: skip
def test_handshake_fuzz_what_a_blob_promises_is_not_allocated(head: bytes) -> None:
    tracemalloc.start()
    try:
        refused_or_right(Endpoints, head)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (1 << 20) + 64 * len(head) and len(head) < MAX_BLOB_BYTES
