"""Files of records: what is written comes back, what is none is refused by name, only the last job is told."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest

from tests.uccl_ep.recorder.records import WALL, event, record, timed_out, worker
from uccl_ep import InvalidArgument
from uccl_ep._native import EventKind
from uccl_ep.recorder.record import Call, pack, read, unpack, write


def test_recorder_record_comes_back(tmp_path: Path) -> None:
    call = Call("combine", 3, 5, 9, [[2, 3], []], "PeerLost", [(6, "throughput_combine")])
    original = timed_out(2, 1, calls=[call], workers=[worker(event(1, EventKind.FAULT, 1)), worker(traced=True)])
    path = write(original, tmp_path / "new" / "folder")
    assert path.name == "1234abcd-rank2.uccl-ep" and path.stat().st_mode & 0o077 == 0
    assert read(path) == original
    again = write(record(2), path.parent)  # of the same job and rank: replaced
    assert again == path and read(path) == record(2)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written stays


def test_recorder_record_refuses_what_is_none(tmp_path: Path) -> None:
    good = msgpack.unpackb(pack(record(0)), raw=False)
    cases = {
        "no flight record": [b"", b"\xc1", b"text", msgpack.packb([1]), msgpack.packb({**good, "format": "x"})],
        "version 9": [msgpack.packb({**good, "version": 9})],
        "damaged": [
            msgpack.packb({**good, "rank": 4}),
            msgpack.packb({**good, "rank": "0"}),
            msgpack.packb({**good, "peers": []}),
            msgpack.packb({**good, "calls": [{"name": "x"}]}),
            msgpack.packb({**good, "calls": [{"name": "x", "number": 1, "begin_ns": "2"}]}),
            msgpack.packb({**good, "workers": [{"first": 0, "written": 0, "traced": False, "data": "text"}]}),
            msgpack.packb({k: v for k, v in good.items() if k != "fault"}),
            msgpack.packb({**good, "more": 1}),
            msgpack.packb({**good, "node_of": ["0"] * 4}),
            msgpack.packb({**good, "masked": [4]}),
            msgpack.packb({**good, "fault": {"kind": 1}}),
            msgpack.packb({**good, "progress": [[[0]] * 4]}),
            msgpack.packb({**good, "wall_s": float("nan")}),
        ],
    }
    for words, files in cases.items():
        for data in files:
            with pytest.raises(InvalidArgument, match=words) as caught:
                unpack(data, "the/file")
            assert "the/file" in str(caught.value)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(tmp_path / "absent")


def test_recorder_record_damaged_bytes_never_raise_anything_else() -> None:
    generator = random.Random(5)
    whole = pack(timed_out(1, 2))
    for _ in range(200):
        data = bytearray(whole[: generator.randrange(len(whole))] if generator.random() < 0.3 else whole)
        for _ in range(generator.randrange(1, 8)):
            if data:
                data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            unpack(bytes(data), "x")
        except InvalidArgument:
            pass


def test_recorder_record_wall_clock() -> None:
    assert record(0).wall(99 * 10**9) == WALL - 1.0
