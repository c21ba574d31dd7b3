"""What ranks say of themselves: complete, plain, and believed only field by field."""

from __future__ import annotations

import resource
from importlib import metadata
from typing import Any

import msgpack
import pytest

from uccl_ep.group.self_description import UNLIMITED, SelfDescription, describe_self, installed_version, read_portrait
from uccl_ep.settings import VARIABLES, Settings


def test_portrait_of_this_process() -> None:
    made = describe_self(Settings(pin_cpus=(3, 1), proxy_threads=2, timeout_s=7.0))
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert made.locked_bytes == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    assert made.num_cpus >= 1 and made.pin_cpus == (3, 1) and made.proxy_threads == 2
    assert made.kernel and made.python and made.torch
    names = dict(made.settings)
    assert names["UCCL_EP_TIMEOUT_S"] == "7.0" and "UCCL_EP_PIN_CPUS" not in names
    assert set(names) < {variable.name for variable in VARIABLES}


def test_portrait_reads_a_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_version.cache_clear()
    assert installed_version("torch") == metadata.version("torch") and installed_version("no-such-thing") == ""
    monkeypatch.setattr(metadata, "version", lambda name: "another")
    assert installed_version("torch") != "another"


def test_portrait_survives_the_wire() -> None:
    made = describe_self(Settings(pin_cpus=(0,)))
    assert read_portrait(msgpack.unpackb(msgpack.packb(made.plain()))) == made


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "num_cpus": "4",
            "proxy_threads": None,
            "locked_bytes": 1.5,
            "kernel": 6,
            "pin_cpus": "0,1",
            "settings": {"a": 1},
        },
        {"num_cpus": True, "pin_cpus": [True, "x", None], "settings": [["a"], ["a", 1], "ab", None], "more": object()},
    ],
)
def test_portrait_believes_nothing_else(values: dict[str, Any]) -> None:
    assert read_portrait(values) == SelfDescription()
