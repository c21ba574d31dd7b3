"""deep_ep's names: what integrators import, and every signature against the recorded contract (contract.json)."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import uccl_ep
from uccl_ep.drop_in import install_as_deep_ep, names, uninstall_as_deep_ep

CONTRACT = json.loads((Path(__file__).parent / "contract.json").read_text(encoding="utf-8"))
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    install_as_deep_ep()
    yield
    uninstall_as_deep_ep()


def differences(signature: inspect.Signature, recorded: dict[str, Any]) -> list[str]:
    """Where a call that the contract allows would fail or mean something else."""
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    by_name = {p.name: p for p in own}
    found = []
    for place, (name, default) in enumerate(recorded["parameters"]):
        if place >= len(own) or own[place].name != name or own[place].kind not in POSITIONAL:
            found.append(f"{name}: not parameter {place}")
        elif default != "-" and own[place].default != default:
            found.append(f"{name}: default {own[place].default}, recorded {default}")
        elif default == "-" and own[place].default is not inspect.Parameter.empty and own[place].default is not None:
            found.append(f"{name}: has a default that is not None")
    known = {name for name, _ in recorded["parameters"]}
    found += [f"{name}: not accepted by name" for name in recorded["keywords"] if name not in by_name]
    for p in own:
        if p.name not in known and p.default is inspect.Parameter.empty and p.name != "hidden":
            found.append(f"{p.name}: required, which the contract does not know")
    return found


def resolve(dotted: str) -> Any:
    value = importlib.import_module("deep_ep")
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", sorted(CONTRACT["signatures"]))
def test_names_signature_is_the_contracts(name: str) -> None:
    assert differences(inspect.signature(resolve(name)), CONTRACT["signatures"][name]) == []


def test_names_class_attributes_are_the_contracts() -> None:
    for owner, attributes in CONTRACT["attributes"].items():
        assert {name: getattr(resolve(owner), name) for name in attributes} == attributes


def test_names_snapshot_check_can_fail() -> None:
    def recorded(*parameters: Any, keywords: tuple[str, ...] = ()) -> dict[str, Any]:
        return {"parameters": list(parameters), "keywords": list(keywords)}

    def good(self: object, x: int, y: int = 2, *, z: int = 0) -> None: ...

    signature = inspect.signature(good)
    assert differences(signature, recorded(["x", "-"], ["y", 2], keywords=("z",))) == []
    assert differences(signature, recorded(["x", "-"], ["y", 3])) == ["y: default 2, recorded 3"]
    assert differences(signature, recorded(["y", 2], ["x", "-"])) != []  # another order
    assert differences(signature, recorded(["y", 2])) != []
    assert differences(signature, recorded(["x", "-"], ["y", 2], ["z", 0])) == ["z: not parameter 2"]  # by name only
    assert differences(signature, recorded(["x", "-"], ["y", 2], keywords=("w",))) == ["w: not accepted by name"]
    assert differences(signature, recorded(["x", 0], ["y", 2])) != []  # a call without x would fail
    assert differences(signature, recorded(["y", 2])) != []


def test_names_resolve_to_one_object_everywhere() -> None:
    for module, exported in names.MODULES.items():
        loaded = importlib.import_module(module)
        assert set(exported) <= set(dir(loaded)) and sorted(exported) == loaded.__all__
        for name, home in exported.items():
            assert getattr(loaded, name) is getattr(importlib.import_module(home), name)
            assert loaded.__dict__[name] is getattr(loaded, name)  # found without __getattr__ from now on
    deep_ep = importlib.import_module("deep_ep")
    assert deep_ep.Buffer is uccl_ep.Buffer and deep_ep.topk_idx_t is torch.int64
    assert isinstance(deep_ep.Config, type)  # `deep_ep.Config | None` in annotations


def test_names_what_integrators_write() -> None:
    scope: dict[str, Any] = {}
    exec("from deep_ep import Buffer, Config\nfrom deep_ep.utils import EventHandle, EventOverlap", scope)  # Megatron
    exec("from deep_ep.buffer import Buffer as B\nimport deep_ep_cpp\nfrom deep_ep import *", scope)
    assert scope["B"] is scope["Buffer"] and scope["deep_ep_cpp"].EventHandle is scope["EventHandle"]
    mod = importlib.import_module("deep_ep")  # Primus-Turbo
    assert hasattr(mod, "utils") and mod.utils.EventOverlap is mod.EventOverlap
    annotation = mod.Config | None  # vLLM, at import
    assert annotation is not None
    assert mod.Buffer.num_sms == 20  # SGLang, before any instance
    with pytest.raises(ImportError):
        exec("from deep_ep import Nothing", scope)
    with pytest.raises(AttributeError, match="'deep_ep' has no attribute 'Nothing'.*stands in"):
        _ = mod.Nothing


def test_names_version_compares_as_upstreams_and_says_whose_it_is() -> None:
    from packaging.version import Version

    version = Version(importlib.import_module("deep_ep").__version__)
    assert version.release == (2, 1, 0) and str(version.local) == f"uccl.ep.{uccl_ep.__version__}"
    assert version >= Version("2.1.0")
    assert Version(importlib.import_module("deep_ep_v25").__version__).release == (2, 5, 0)
    assert {name.partition(".")[0] for name in names.MODULES} == {*names.VERSIONS, "nixl_ep"}


def test_names_of_utils_are_found_flat_and_by_module() -> None:
    """CollectiveX and DeepEP's own tests import the one or the other; V2.5 has a package of its own."""
    scope: dict[str, Any] = {}
    exec("from deep_ep.utils import calc_diff, init_dist, bench, per_token_cast_to_fp8", scope)
    exec("from deep_ep.utils.math import calc_diff as c, align\nfrom deep_ep.utils.envs import init_dist as i", scope)
    exec("from deep_ep_v25.utils.math import calc_diff as d\nfrom deep_ep.buffers.legacy import Buffer", scope)
    assert scope["calc_diff"] is scope["c"] is scope["d"] and scope["init_dist"] is scope["i"]
    assert scope["Buffer"] is uccl_ep.Buffer
    v25 = importlib.import_module("deep_ep_v25")
    assert v25.EPBuffer is uccl_ep.EPBuffer and issubclass(v25.EPBuffer, v25.BufferBase) and not hasattr(v25, "Buffer")
    assert issubclass(v25.BucketBuffer, v25.BufferBase) and v25.BufferAllocator().alignment == 2 << 20
    assert (v25.get_num_allocation_alignment(), v25.get_num_rdma_alignment(), v25.get_num_tma_alignment()) == (
        2 << 20,
        64,
        32,
    )
    assert v25.utils.EventOverlap is uccl_ep.EventOverlap and v25.comm.barrier.__name__ == "barrier"


def test_names_that_are_refused_can_be_imported_and_say_why() -> None:
    scope: dict[str, Any] = {}
    exec("from deep_ep import PPBuffer, init_jit\nfrom deep_ep.utils.refs import combine", scope)
    for name, words in (
        ("PPBuffer", "PPBuffer is not in uccl_ep: pipeline send and receive is experimental in DeepEP"),
        ("init_jit", "it is part of DeepEP's start-up"),
        ("combine", "combine is not in uccl_ep: it is of DeepEP's own tests"),
    ):
        with pytest.raises(uccl_ep.NotSupported, match=words):
            scope[name](1, two=2)
    assert scope["PPBuffer"] | None  # in annotations


def test_names_a_broken_installation_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("deep_ep")
    monkeypatch.delitem(module.__dict__, "Config", raising=False)

    def broken(name: str) -> Any:
        raise RuntimeError("no such device")

    with monkeypatch.context() as patched:
        patched.setattr(names.importlib, "import_module", broken)
        with pytest.raises(ImportError, match="deep_ep.Config: uccl_ep.config cannot be loaded: no such device"):
            _ = module.Config
