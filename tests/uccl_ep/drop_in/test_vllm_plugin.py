"""The plugin acts only when it is named, and says in a sentence what it cannot serve. With vLLM: tests/integrations."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from tests.integrations.serving import plain
from tests.uccl_ep.drop_in.test_row_exchange import EXPERTS, HIDDEN, TOKENS, drawn, experts, scales, wanted
from tests.uccl_ep.ranks import same
from uccl_ep import NotSupported, ThreadGroup, run_ranks
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


class Base:
    """All2AllManagerBase, as far as a manager asks it."""

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        self.dp_world_size = cpu_group.size()


def with_vllm(monkeypatch: pytest.MonkeyPatch, given: Any, ranks: int) -> SimpleNamespace:
    """Modules of vLLM's whose experts are spread over so many ranks; returns the one that holds the CPUs' manager."""
    model = given.model_config
    model.get_hidden_size, model.get_num_experts = (lambda: HIDDEN), (lambda: EXPERTS)
    all2all = SimpleNamespace(AgRsAll2AllManager=None)
    base = SimpleNamespace(All2AllManagerBase=Base)
    for name, module in {
        "vllm": SimpleNamespace(),
        "vllm.config": SimpleNamespace(get_current_vllm_config=lambda: given),
        "vllm.distributed": SimpleNamespace(get_ep_group=lambda: SimpleNamespace(world_size=ranks)),
        "vllm.distributed.device_communicators": SimpleNamespace(all2all=all2all, base_device_communicator=base),
        "vllm.distributed.device_communicators.base_device_communicator": base,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return all2all


def test_vllm_plugin_manager_moves_rows(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM calls, on ranks that are threads."""
    variables(RANKS_PER_NODE=2)
    ranks, local = len(TOKENS), EXPERTS // len(TOKENS)
    with_vllm(monkeypatch, config(), ranks)
    manager_class = vllm_plugin.manager_class()

    def body(group: ThreadGroup) -> None:
        manager = manager_class(group)
        rows, weights, ids = drawn(group.rank(), TOKENS[group.rank()], torch.int64)
        received = manager.dispatch(rows, weights, ids)
        result = manager.combine(experts(*received, mine=scales()[group.rank() * local :][:local]))
        assert same(result, wanted(rows, weights, ids, 2))
        for call in (
            lambda: manager.dispatch(rows, weights, ids, extra_tensors=[rows]),
            lambda: manager.dispatch_router_logits(rows, weights),
        ):
            with pytest.raises(NotSupported, match="uccl_ep does not serve"):
                call()
        group.barrier()
        manager.destroy()

    run_ranks(ranks, body)


def test_vllm_plugin_manager_refuses_what_it_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ThreadGroup.create(1)[0]
    with_vllm(monkeypatch, config({"enforce_eager": False}), 1)
    with pytest.raises(NotSupported, match="add --enforce-eager"):
        vllm_plugin.manager_class()(group)
    with_vllm(monkeypatch, config(), 2)  # two tensor-parallel ranks a data-parallel one
    manager = vllm_plugin.manager_class()(group)
    rows, weights, ids = drawn(0, 2, torch.int64)
    with pytest.raises(NotSupported, match="--tensor-parallel-size above 1"):
        manager.dispatch(rows, weights, ids)
    manager.destroy()


def test_vllm_plugin_plain_manager_of_the_demo_adds_up_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What the serving demo is compared with, on one rank."""
    all2all = with_vllm(monkeypatch, config(), 1)
    monkeypatch.setenv("PLAIN_COUNTS", str(tmp_path / "counts"))
    plain.register()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        manager: Any = all2all.AgRsAll2AllManager(distributed.group.WORLD)
        rows, weights, ids = drawn(0, 5, torch.int64)
        factors = (weights * scales()[ids]).sum(1, keepdim=True)
        result = manager.combine(experts(*manager.dispatch(rows, weights, ids, False, None), mine=scales()))
        assert same(result, (rows.float() * factors).bfloat16())
        assert (tmp_path / "counts.0").read_text() == "0"  # nothing to another node
    finally:
        distributed.destroy_process_group()


def test_vllm_plugin_is_cheap_where_it_is_not_named() -> None:
    """Every process of a server loads it."""
    code = "import sys, uccl_ep.drop_in.vllm_plugin as plugin; plugin.register(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
