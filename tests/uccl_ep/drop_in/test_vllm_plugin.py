"""The plugin acts only when it is named, and says in a sentence what it cannot serve. With vLLM: tests/integrations."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest

from uccl_ep.drop_in import is_installed, uninstall_as_deep_ep, vllm_plugin


def config(model: dict[str, Any] | None = None, **parallel: Any) -> SimpleNamespace:
    """A VllmConfig that can be served, but for what is given."""
    usual = {
        "enable_expert_parallel": True, "all2all_backend": "allgather_reducescatter", "enable_eplb": False,
        "expert_placement_strategy": "linear",
    }  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**usual | parallel),
        model_config=SimpleNamespace(**{"enforce_eager": True, "dtype": "torch.bfloat16"} | (model or {})),
    )


def test_vllm_plugin_is_an_entry_point_of_vllms() -> None:
    (found,) = [one for one in entry_points(group="vllm.general_plugins") if one.name == vllm_plugin.NAME]
    assert found.load() is vllm_plugin.register


@pytest.mark.parametrize("named", [None, "", "lora_filesystem_resolver", "uccl_ep_other"])
def test_vllm_plugin_does_nothing_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if named is not None:
        monkeypatch.setenv("VLLM_PLUGINS", named)
    vllm_plugin.register()  # would import vllm
    assert not is_installed()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_vllm_plugin_takes_the_managers_place_on_cpus_only(monkeypatch: pytest.MonkeyPatch, on_cpu: bool) -> None:
    module = SimpleNamespace(AgRsAll2AllManager="theirs")
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: on_cpu))
    communicators = SimpleNamespace(all2all=module)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators", communicators)
    monkeypatch.setattr(vllm_plugin, "manager_class", lambda: "ours")
    monkeypatch.setenv("VLLM_PLUGINS", "another, uccl_ep")
    try:
        vllm_plugin.register()
        assert is_installed() and module.AgRsAll2AllManager == ("ours" if on_cpu else "theirs")
    finally:
        uninstall_as_deep_ep()


@pytest.mark.parametrize(
    "given, words",
    [
        ({"enable_expert_parallel": False}, "add it"),
        ({"model": {"enforce_eager": False}}, "add --enforce-eager"),
        ({"model": {"dtype": "torch.float16"}}, "rows of torch.float16: add --dtype bfloat16"),
        ({"all2all_backend": "deepep_low_latency"}, "--all2all-backend deepep_low_latency on CPUs: leave it out"),
        ({"enable_eplb": True}, "leave out --enable-eplb"),
        ({"expert_placement_strategy": "round_robin"}, "--expert-placement-strategy"),
    ],
)
def test_vllm_plugin_says_what_it_does_not_serve(given: dict[str, Any], words: str) -> None:
    assert words in vllm_plugin.refusal(config(**given))


def test_vllm_plugin_serves_what_it_can() -> None:
    assert vllm_plugin.refusal(config()) == ""


def test_vllm_plugin_is_cheap_where_it_is_not_named() -> None:
    """Every process of a server loads it."""
    code = "import sys, uccl_ep.drop_in.vllm_plugin as plugin; plugin.register(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
