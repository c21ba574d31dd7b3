"""What each call of Buffer may cost the host, as functions called and as what is asked of the GPU's driver.

Counted on the fake GPU, and on the CPU, whose calls must not pay for what a GPU's need. Whoever makes a call cheaper
lowers its budget here; whoever raises one says why.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.host_calls import HostCalls, count, kept_results
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import case, layout_arguments, low_latency, throughput
from uccl_ep import ThreadGroup, run_ranks

_OVER, _UNDER = 1.06, 0.85  # versions of Python and torch call a few functions more or less
_ROUNDS = 4  # the last one is counted: what is made once has been made by then

# Call: functions on a GPU, functions on the CPU, what is asked of the driver. A round of low latency with hooks was 636
# and 377 functions, 72 questions, before calls asked each thing once and remembered arguments that they had checked.
_HALF = {"here": 1, "launch": 1, "record": 1}
_WHOLE = {"here": 1, "record": 2, "wait": 2, "launch": 2}
BUDGETS: dict[str, tuple[int, int, dict[str, int]]] = {
    "low_latency_dispatch, hook": (69, 76, _HALF),
    "hook of the dispatch": (42, 35, _HALF),
    "low_latency_combine, hook": (70, 72, _HALF),
    "hook of the combine": (42, 35, _HALF),
    "low_latency_dispatch": (87, 85, _WHOLE),
    "low_latency_combine": (88, 81, _WHOLE),
    "low_latency_dispatch, async": (111, 98, {"here": 1, "record": 2, "wait": 1, "launch": 2, "use_on": 7}),
    "low_latency_combine, async": (111, 93, {"here": 1, "record": 2, "wait": 1, "launch": 2, "use_on": 7}),
    "get_next_low_latency_combine_buffer": (34, 31, {"capturing": 1, "current_stream": 1, "wait": 1}),
    "low_latency_combine, zero copy": (98, 93, _WHOLE),
    "get_dispatch_layout": (74, 70, {"here": 1, "record": 2, "wait": 2, "launch": 1}),
    "dispatch": (297, 270, {"here": 1, "record": 3, "wait": 3, "launch": 3, "synchronize": 1}),
    "dispatch, handle": (102, 91, {"here": 1, "record": 2, "wait": 2, "launch": 2}),  # one for streams cut otherwise
    "combine": (86, 85, {"here": 1, "record": 2, "wait": 2, "launch": 1}),
}


def _low_latency_round(buffer: Any, how: str, given: list[torch.Tensor], rows: torch.Tensor) -> dict[str, HostCalls]:
    x, ids, weights = given
    options = {"hook": {"return_recv_hook": True}, "async": {"async_finish": True}, "": {}}[how]
    end = f", {how}" if how else ""
    found = {}
    found[f"low_latency_dispatch{end}"], sent = count(buffer.low_latency_dispatch, x, ids, 12, 4, **options)
    if how == "hook":
        found["hook of the dispatch"], _ = count(sent[4])
    elif how == "async":
        sent[3].current_stream_wait()
    found[f"low_latency_combine{end}"], out = count(buffer.low_latency_combine, rows, ids, weights, sent[2], **options)
    if how == "hook":
        found["hook of the combine"], _ = count(out[2])
    elif how == "async":
        out[1].current_stream_wait()
    return found


def _zero_copy_round(buffer: Any, given: list[torch.Tensor]) -> dict[str, HostCalls]:
    x, ids, weights = given
    found = {}
    handle = buffer.low_latency_dispatch(x, ids, 12, 4)[2]
    found["get_next_low_latency_combine_buffer"], rows = count(buffer.get_next_low_latency_combine_buffer, handle)
    call = buffer.low_latency_combine
    found["low_latency_combine, zero copy"], _ = count(call, rows, ids, weights, handle, zero_copy=True)
    return found


def _throughput_round(buffer: Any, given: list[torch.Tensor]) -> dict[str, HostCalls]:
    x, ids, weights = given
    found = {}
    found["get_dispatch_layout"], _ = count(buffer.get_dispatch_layout, ids, 4)
    layout = layout_arguments(buffer, ids, 4)
    found["dispatch"], sent = count(buffer.dispatch, x, **layout, topk_idx=ids, topk_weights=weights)
    found["dispatch, handle"], _ = count(buffer.dispatch, x, handle=sent[4])
    found["combine"], _ = count(buffer.combine, sent[0], sent[4])
    return found


def _count_all(group: ThreadGroup) -> dict[str, HostCalls]:
    c = case(60, "uniform", num_ranks=2, num_experts=4, num_topk=2, hidden=512, max_tokens=12)
    given = [part[group.rank()] for part in (c.x, c.topk_idx, c.topk_weights)]
    rows = torch.zeros(2, 24, 512, dtype=torch.bfloat16)
    found: dict[str, HostCalls] = {}
    with low_latency(group, c.shape) as buffer:
        for how in ("hook", "", "async"):
            for _ in range(_ROUNDS):
                found |= _low_latency_round(buffer, how, given, rows)
        for _ in range(_ROUNDS):
            found |= _zero_copy_round(buffer, given)
    with throughput(group) as buffer:
        for _ in range(_ROUNDS):
            found |= _throughput_round(buffer, given)
    return found


def test_host_budget_of_every_call(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables()
    with kept_results():
        on_cpu = run_ranks(2, _count_all)[0]
        driver = install(monkeypatch, FakeDriver(num_sms=12))

        def on_stream(group: ThreadGroup) -> dict[str, HostCalls]:
            with driver.on(driver.new_stream()):
                return _count_all(group)

        on_gpu = run_ranks(2, on_stream)[0]
    wrong = []
    print(f"\n{'call':28} {'GPU':>10} {'CPU':>10}  asked of the driver")
    for name, (gpu, cpu, asked) in BUDGETS.items():
        seen, beside = on_gpu[name], on_cpu[name]
        told = ", ".join(f"{what} {n}" for what, n in sorted(seen.driver.items()))
        print(f"{name:28} {seen.functions:4} / {gpu:3} {beside.functions:4} / {cpu:3}  {told}")
        for where, functions, budget in (("a GPU", seen.functions, gpu), ("the CPU", beside.functions, cpu)):
            if functions > budget * _OVER:
                wrong.append(f"{name} calls {functions} functions on {where}, budget {budget}")
            elif functions < budget * _UNDER:
                wrong.append(f"{name} calls {functions} functions on {where} only: lower its budget from {budget}")
        if dict(seen.driver) != asked:
            wrong.append(f"{name} asks the driver {dict(seen.driver)}, not {asked}")
    assert not wrong, "\n".join(wrong)
    assert on_gpu.keys() == BUDGETS.keys()
