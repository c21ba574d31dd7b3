"""Start-up blobs: nothing that another process sends is believed before it is checked; settings must agree."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import threading
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import PeerLost, SettingsMismatch, ThreadGroup, UcclEpError, run_ranks
from uccl_ep.group import handshake
from uccl_ep.group.handshake import (
    Deal,
    Endpoints,
    Hello,
    Ready,
    compare_settings,
    exchange,
    pack,
    process_name,
    unpack,
)

INTRODUCTION = Hello(2, "alpha", "boot/1", "token", 41, "127.0.0.1", {"num_nvl_bytes": 128}, 2**62, b"s" * 32)
MEETING = Endpoints(2, 41, 7, 4096, 8, 4096, 1 << 40, b"\x00\xff\x80")
READY = Ready(2, "", ["tcp: no RDMA device"])
DEAL = Deal(2, b"\x00box")
BLOBS = [INTRODUCTION, DEAL, MEETING, READY]
WRONG: dict[str, list[Any]] = {  # values of another type, by the field's type
    "int": ["1", 1.0, True, None, b"1"],
    "str": [1, b"x", None, ["x"]],
    "bytes": ["text", 1, None],
    "dict[str, Any]": [[], "x", None],
    "list[str]": [{}, "x", None],
    "list[int]": [{}, 7, None],
}
FIELDS = [(blob, f) for blob in BLOBS for f in dataclasses.fields(blob)]
NAMES = [f"{type(blob).__name__}.{f.name}" for blob, f in FIELDS]


def altered(blob: Any, **changes: Any) -> bytes:
    """The packed blob with some of its map's entries changed; None of `changes` is checked by pack."""
    values = msgpack.unpackb(pack(blob), raw=False)
    values.update(changes)
    return bytes(msgpack.packb({k: v for k, v in values.items() if v is not ...}, use_bin_type=True))


@pytest.mark.parametrize("blob", BLOBS, ids=lambda b: type(b).__name__)
def test_handshake_what_is_packed_comes_back(blob: Any) -> None:
    assert unpack(type(blob), pack(blob), 2) == blob


@pytest.mark.parametrize("blob, field", FIELDS, ids=NAMES)
def test_handshake_missing_field(blob: Any, field: Any) -> None:
    with pytest.raises(UcclEpError, match=f"rank 2's {type(blob).__name__} has fields .*expected .*'{field.name}'"):
        unpack(type(blob), altered(blob, **{field.name: ...}), 2)


@pytest.mark.parametrize("blob, field", FIELDS, ids=NAMES)
def test_handshake_field_of_another_type(blob: Any, field: Any) -> None:
    for value in WRONG[field.type]:
        with pytest.raises(UcclEpError) as caught:
            unpack(type(blob), altered(blob, **{field.name: value}), 2)
        text = str(caught.value)
        assert f"rank 2's {type(blob).__name__}.{field.name} is {value!r}" in text and field.type in text


def test_handshake_unknown_field() -> None:
    with pytest.raises(UcclEpError, match="rank 2's Ready has fields .*'surprise'"):
        unpack(Ready, altered(READY, surprise=1), 2)


@pytest.mark.parametrize("version", [..., 0, 1, 2, 3, 4, 5, 6, "7", None])
def test_handshake_other_version(version: Any) -> None:
    seen = None if version is ... else version
    with pytest.raises(UcclEpError, match=f"rank 2 speaks handshake version {seen}, this rank 7: install one version"):
        unpack(Endpoints, altered(MEETING, v=version), 2)


def test_handshake_other_kind() -> None:
    with pytest.raises(UcclEpError, match="rank 2 is at Ready of the handshake, this rank at Endpoints"):
        unpack(Endpoints, pack(READY), 2)


@pytest.mark.parametrize("data", [None, "text", 7, bytearray(pack(READY)), b"x" * (handshake.MAX_BLOB_BYTES + 1)])
def test_handshake_no_blob_at_all(data: object) -> None:
    with pytest.raises(UcclEpError, match="rank 2 sent no handshake blob"):
        unpack(Ready, data, 2)


def test_handshake_oversized_blob_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "MAX_BLOB_BYTES", len(pack(READY)))
    assert unpack(Ready, pack(READY), 2) == READY
    with pytest.raises(UcclEpError, match="no handshake blob"):
        unpack(Ready, pack(READY) + b"\x00", 2)


@pytest.mark.parametrize("data", [b"", b"\xc1", pack(MEETING)[:-1], pack(MEETING) + b"\x00", msgpack.packb({1: 2})])
def test_handshake_not_msgpack(data: bytes) -> None:
    with pytest.raises(UcclEpError, match="rank 2 sent a handshake blob that is not msgpack"):
        unpack(Endpoints, data, 2)


@pytest.mark.parametrize("value", [[1, 2], 5, "x", None])
def test_handshake_msgpack_but_no_map(value: object) -> None:
    with pytest.raises(UcclEpError, match="handshake version None"):
        unpack(Ready, msgpack.packb(value), 2)


@given(st.binary(max_size=200))
def test_handshake_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(UcclEpError):
        unpack(Hello, data, 0)


@given(st.data())
def test_handshake_flipped_bytes_never_crash(data: st.DataObject) -> None:
    blob = bytearray(pack(INTRODUCTION))
    position = data.draw(st.integers(0, len(blob) - 1))
    blob[position] ^= data.draw(st.integers(1, 255))
    try:
        seen = unpack(Hello, bytes(blob), 2)
    except UcclEpError:
        return
    assert seen.rank == 2 and all(type(getattr(seen, f.name)) is type(getattr(INTRODUCTION, f.name))
                                  for f in dataclasses.fields(seen))  # fmt: skip


def test_handshake_sender_may_not_pose_as_another_rank() -> None:
    with pytest.raises(UcclEpError, match="the group's rank 1 says it is rank 2"):
        unpack(Endpoints, pack(MEETING), 1)


def test_handshake_exchange_gives_everybody_everything_by_rank() -> None:
    def body(group: ThreadGroup) -> list[Ready]:
        return exchange(group, Ready(group.rank(), notes=[f"note {group.rank()}"]))

    for blobs in run_ranks(3, body):
        assert [(b.rank, b.notes) for b in blobs] == [(r, [f"note {r}"]) for r in range(3)]


@pytest.mark.parametrize(
    "error, said",
    [(threading.BrokenBarrierError(), "BrokenBarrierError"), (RuntimeError("closed"), "RuntimeError: closed")],
)
def test_handshake_a_broken_group_points_at_the_rank_that_broke_it(error: Exception, said: str) -> None:
    class Broken:
        def all_gather_object(self, _: object) -> list[object]:
            raise error

    with pytest.raises(PeerLost) as caught:
        exchange(cast(Any, Broken()), Ready(1))
    reason = f"a rank ended or failed before this Buffer was made, and its own error says why (the group says: {said})"
    assert str(caught.value) == f"an unknown rank lost in start-up, exchange of Ready: {reason}, reported by rank 1"
    with pytest.raises(PeerLost, match=r"after this rank's own failure \(OSError: full\): a rank ended"):
        exchange(cast(Any, Broken()), Ready(1, "OSError: full"))


def test_handshake_every_rank_raises_what_any_rank_reports() -> None:
    def body(group: ThreadGroup) -> str:
        error = {1: "OSError: no space", 3: "TransportError: no route"}.get(group.rank(), "")
        with pytest.raises(UcclEpError) as caught:
            exchange(group, Ready(group.rank(), error))
        return str(caught.value)

    assert set(run_ranks(4, body)) == {"rank 1: OSError: no space; rank 3: TransportError: no route"}


def test_handshake_equal_settings_pass() -> None:
    compare_settings([dataclasses.replace(INTRODUCTION, rank=r) for r in range(4)])


def test_handshake_mismatch_names_the_setting_and_every_ranks_value() -> None:
    hosts = ["alpha", "beta", "gamma"]
    settings = [
        {"rings": 2, "UCCL_EP_TRANSPORT": "tcp", "same": 1},
        {"rings": 4, "UCCL_EP_TRANSPORT": "tcp", "same": 1},
    ]
    settings.append({"rings": 2, "same": 1})  # of a version that does not know a setting
    ranks = [
        dataclasses.replace(INTRODUCTION, rank=r, hostname=hosts[r], settings=settings[r]) for r in range(len(hosts))
    ]
    with pytest.raises(SettingsMismatch) as caught:
        compare_settings(ranks)
    text = str(caught.value)
    assert "rings differs: rank 0 (alpha): 2, rank 1 (beta): 4, rank 2 (gamma): 2" in text
    assert "UCCL_EP_TRANSPORT differs: rank 0 (alpha): 'tcp', rank 1 (beta): 'tcp', rank 2 (gamma): None" in text
    assert "same" not in text.replace("started alike", "")


def test_handshake_host_identity_is_stable_and_survives_hidden_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handshake.host_identity() == handshake.host_identity() != ""

    def hidden(*args: object, **kwargs: object) -> None:
        raise PermissionError("hidden")

    monkeypatch.setattr("builtins.open", hidden)
    assert "/" in handshake.host_identity()

    def closed(*args: object, **kwargs: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("builtins.open", closed)
    with pytest.raises(OSError, match="Too many"):  # no name rather than another one than the other ranks'
        handshake.host_identity()


def test_handshake_host_identity_is_of_a_user_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ranks of the same user and group can map each other's memory."""
    names = [handshake.host_identity()]
    for changed in ("geteuid", "getegid"):
        with monkeypatch.context() as patch:
            patch.setattr(os, changed, lambda: 65534)
            names.append(handshake.host_identity())
    assert len(set(names)) == 3


def test_handshake_route_address_is_one_interfaces_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ipaddress.ip_address(handshake.route_address()).is_unspecified

    class NoNetwork:
        def __init__(self, *args: object) -> None: ...

        def __enter__(self) -> NoNetwork:
            return self

        def __exit__(self, *args: object) -> None: ...

        def connect(self, address: object) -> None:
            raise OSError("no route")

    def unknown_name(name: str) -> str:
        raise OSError("no such name")

    monkeypatch.setattr(handshake.socket, "socket", NoNetwork)
    monkeypatch.setattr(handshake.socket, "gethostbyname", unknown_name)
    assert handshake.route_address() == "127.0.0.1"


def test_handshake_a_forked_child_is_another_process() -> None:
    """Launchers fork ranks from a process that has imported the package already."""
    mine = process_name()
    assert process_name() == mine
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, process_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 1000).decode()
    os.close(reader)
    os.close(writer)
    assert theirs and theirs != mine
