"""Checks of names, Config and events: green on ourselves, red on each module with one of them wrong."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

import uccl_ep
from tests.uccl_ep.tools.conformance.threads import assert_red, module_with, run
from uccl_ep import install_as_deep_ep, uninstall_as_deep_ep
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.runner import PASSED, SKIPPED

# Of V1; the one of V2 is in test_elastic_dispatch.py.
SURFACE = [check.name for check in chosen() if not check.collective and not check.name.startswith("elastic_")]


def changed(base: Any, **members: Any) -> Any:
    return type(base.__name__, (base,), members)


class PositionalOnly(uccl_ep.Buffer):
    def __init__(self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None: ...


class LooseOverlap(uccl_ep.EventOverlap):  # type: ignore[type-arg]
    def current_stream_wait(self, release_handle: bool = False) -> Any:
        return None if self.event is None else super().current_stream_wait(release_handle)


class KeepsEvent(uccl_ep.EventOverlap):  # type: ignore[type-arg]
    def current_stream_wait(self, release_handle: bool = False) -> Any:
        return super().current_stream_wait(False)


class ManyHooks(uccl_ep.EventOverlap):  # type: ignore[type-arg]
    def register_hook_after_wait(self, hook_after_wait: Any) -> None:
        self.hook_after_wait = hook_after_wait


class AnyConfig(uccl_ep.Config):
    def __post_init__(self) -> None: ...


class BigHints(uccl_ep.Config):
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return super().get_nvl_buffer_size_hint(hidden_bytes, num_ranks) + 128


def odd_sms(new_num_sms: int) -> None:
    pass


def small_hint(**sizes: int) -> int:
    return 100


WRONG = [
    ("names_at_the_top", {"Config": uccl_ep.config.dispatch_config}, "Config is not a class"),
    ("names_at_the_top", {"topk_idx_t": "int64"}, "topk_idx_t"),
    ("keywords_of_integrators", {"Buffer": PositionalOnly}, "does not take low_latency_mode"),
    ("num_sms_is_a_class_attribute", {"Buffer": changed(uccl_ep.Buffer, num_sms=None)}, "num_sms is None"),
    ("num_sms_is_a_class_attribute", {"Buffer": changed(uccl_ep.Buffer, set_num_sms=odd_sms)}, "set_num_sms(7)"),
    (
        "helpers_without_a_buffer",
        {"Buffer": changed(uccl_ep.Buffer, get_low_latency_rdma_size_hint=small_hint)},
        "multiples of 128",
    ),
    ("bias_is_unpacked", {"Buffer": changed(uccl_ep.Buffer, _unpack_bias=lambda bias: (bias, bias))}, "_unpack_bias"),
    ("config_arguments", {"Config": BigHints}, "four equal Configs"),
    ("config_refuses", {"Config": AnyConfig}, "accepted"),
    ("config_size_hints", {"Config": BigHints}, "hints for 2 ranks"),
    (
        "config_tables",
        {"Buffer": changed(uccl_ep.Buffer, get_combine_config=uccl_ep.Buffer.get_dispatch_config)},
        "combine table for 16 ranks",
    ),
    ("events_without_an_event", {"EventOverlap": LooseOverlap}, "empty EventOverlap: accepted"),
    ("events_wait_and_release", {"EventOverlap": KeepsEvent}, "release_handle"),
    ("events_hook_after_wait", {"EventOverlap": ManyHooks}, "a second hook: accepted"),
    ("constructor_wants_a_group", {"Buffer": PositionalOnly}, "accepted"),
]


@pytest.fixture(autouse=True)
def cpu(variables: Any) -> None:
    variables()


@pytest.mark.parametrize("red, names, words", WRONG)
def test_surface_says_what_is_wrong(red: str, names: dict[str, Any], words: str) -> None:
    assert_red(module_with(**names), red, words)


def test_surface_every_check_can_fail() -> None:
    assert {red for red, _, _ in WRONG} | {"names_in_utils"} == set(SURFACE)


def test_surface_is_green_on_ourselves() -> None:
    outcomes = run(uccl_ep, SURFACE, ranks=2)
    assert {o.status for o in outcomes.values() if o.name != "names_in_utils"} == {PASSED}
    assert outcomes["names_in_utils"].status == SKIPPED


def test_surface_of_the_drop_in() -> None:
    install_as_deep_ep()
    try:
        deep_ep = importlib.import_module("deep_ep")
        assert run(deep_ep, ["names_in_utils"], ranks=2)["names_in_utils"].status == PASSED
        utils = importlib.import_module("deep_ep.utils")
        utils.__dict__["EventOverlap"] = None
        assert_red(deep_ep, "names_in_utils", "deep_ep.utils.EventOverlap")
    finally:
        uninstall_as_deep_ep()


def test_surface_a_module_without_anything() -> None:
    empty = types.ModuleType("empty")
    outcomes = run(empty, ["names_at_the_top", "config_arguments"], ranks=2)
    assert "Buffer is not a class" in outcomes["names_at_the_top"].detail
    assert "AttributeError" in outcomes["config_arguments"].detail
    assert torch.int64 == uccl_ep.topk_idx_t
