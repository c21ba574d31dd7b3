"""Pages survive the way through bytes, and nothing else passes for one."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgpack
import pytest

from tests.uccl_ep.observe.samples import page
from uccl_ep import InvalidArgument
from uccl_ep.observe.page import MAGIC, MOST_BYTES, Location, pack, unpack


def test_page_round_trip_with_anything_behind_it() -> None:
    for made in (
        page(),
        page(5, 9, absent=[2, 3], apart=True, node_of=[0] * 9, host_of=[7] * 9),
        page(0, 1, session=0),
    ):
        data = b"".join(pack(made))
        assert unpack(data) == unpack(data + bytes(5000)) == made


def test_page_says_who_is_where() -> None:
    made = page(3, 4, absent=[1])
    assert made.hostname == "b" and made.host_name(2) == "a" and made.present == [0, 2, 3]
    assert made.topology.members(1) == [1, 3] and made.topology.read_at(0, 3) == 1
    assert len(made.job) == 8 and int(made.job, 16) == made.session & 0xFFFFFFFF


def test_page_for_the_most_ranks_stays_small() -> None:
    ranks = 4096
    names = [f"node-{i:04d}.cluster.example" for i in range(ranks)]
    made = page(7, ranks, host_names=names, machine_of=list(range(ranks)))
    data = b"".join(pack(made))
    assert unpack(data) == made and len(data) < MOST_BYTES // 20


def test_page_that_is_being_written_is_none() -> None:
    _, rest = pack(page())
    with pytest.raises(InvalidArgument, match="being written"):
        unpack(bytes(len(MAGIC)) + rest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2.*reads 3"),
        ({"rank": 2}, "contradicts itself"),
        ({"rank": "0"}, "rank '0'"),
        ({"num_ranks": True}, "num_ranks True"),
        ({"node_of": [0]}, "contradicts itself"),
        ({"host_of": [0]}, "contradicts itself"),
        ({"machine_of": [0, 2]}, "contradicts itself"),
        ({"pids": [1, -5]}, "pids"),
        ({"num_rings": 0}, "contradicts itself"),
        ({"segments": {"control": {"fd": 3}}}, "names segments wrongly"),
        ({"segments": {}}, "contradicts itself"),
        ({"family": None}, "family None"),
    ],
)
def test_page_refuses_what_does_not_fit(change: dict[str, Any], words: str) -> None:
    body = msgpack.packb(dataclasses.asdict(page()) | change)
    with pytest.raises(InvalidArgument, match=words):
        unpack(MAGIC + len(body).to_bytes(8, "little") + body)


def test_page_any_bytes_are_refused_in_our_words() -> None:
    generator = random.Random(5)
    good = b"".join(pack(page()))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(generator.randint(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            assert isinstance(unpack(bytes(data[: generator.randint(0, len(data))])).segments["control"], Location)
        except InvalidArgument:
            continue
