"""Plain data to native settings and back: nothing is lost on the way into a proxy process."""

from __future__ import annotations

import dataclasses

import msgpack

from uccl_ep import _native
from uccl_ep.fabric.config import FabricConfig

FULL = FabricConfig((("mlx5_0", 1, 3), ("mlx5_1", 2, -1)), "efa", 4, 3, 104, 9, 2048, 49152, False, True)


def test_config_every_field_crosses_a_process_border() -> None:
    plain = msgpack.unpackb(msgpack.packb(dataclasses.asdict(FULL)), raw=False)
    assert FabricConfig.from_plain(plain) == FULL
    assert FabricConfig.from_plain(msgpack.unpackb(msgpack.packb(dataclasses.asdict(FabricConfig())))) == FabricConfig()


def test_config_every_field_reaches_the_native_side() -> None:
    native = FULL.to_native()
    assert [(n.device, n.port, n.gid_index) for n in native.nics] == list(FULL.nics)
    names = {f.name for f in dataclasses.fields(FabricConfig)} - {"nics"}
    assert {name: getattr(native, name) for name in names} == {name: getattr(FULL, name) for name in names}


def test_config_defaults_are_the_native_ones() -> None:
    made, native = FabricConfig().to_native(), _native.FabricSettings()
    names = {name for name in dir(native) if not name.startswith("_")} - {"nics"}
    assert {name: getattr(made, name) for name in names} == {name: getattr(native, name) for name in names}
