"""The proxy's instructions: how they are read, judged, and (slow) that the proxy is within its budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import programs
from bench.costs import (
    ALLOWANCE,
    LANE_FAMILIES,
    LANE_STEPS,
    LINE_ALLOWANCE,
    LINES_AT_ALL,
    MOST_FROM_MEMORY,
    Budget,
    Cost,
    compiler_of,
    count_all,
    inclusive,
    load_budget,
    over_budget,
    slopes,
    valgrind_absence,
    without_fabric,
)

CALLGRIND = """version: 1
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
fl=proxy_costs.cpp
fn=step_post
10 7
calls=32 40
11 1000 300 200 9 5 4 1 2 1
12 3 1 1 0 1
fn=turn
40 900
41 100
fn=step_post
10 5
fn=other
calls=1 10
50 1015
totals: 2030
"""


def test_bench_costs_of_a_step_include_what_it_calls() -> None:
    assert inclusive(CALLGRIND) == {"post": Cost(1015, 10, 3)}


LANE = """events: Ir D1mr D1mw
fn=step_post
10 7
cfn=uccl::VerbsLane::take(int)
calls=2 40
11 1000
fn=uccl::VerbsLane::take(int)
40 30 1 2
cfn=fake::(anonymous namespace)::post_send(int)
calls=2 5
41 900 50 60
41 70
fn=fake::(anonymous namespace)::post_send(int)
5 300 50 60
cfn=fake::Fabric::post(int)
calls=2 6
6 600
fn=fake::Fabric::post(int)
6 100
cfn=malloc
calls=2 7
6 500
fn=malloc
7 500
"""


def test_bench_costs_of_a_lane_leave_out_the_fabric_and_what_it_calls() -> None:
    assert without_fabric(LANE) == Cost(7 + 30 + 70, 3)


def test_bench_costs_leave_out_start_up() -> None:
    first = {"a": 100, "b": 10}, {"a": Cost(5100, 40), "b": Cost(77)}
    second = {"a": 200, "b": 20}, {"a": Cost(7600, 240), "b": Cost(177)}
    assert slopes(first, second) == {"a": Cost(25.0, 2.0), "b": Cost(10.0)}


def test_bench_costs_over_budget_names_the_step() -> None:
    budget = Budget("GCC 12", {"pop": 100.0, "post": 200.0}, {"pop": 2.0, "post": 3.0})
    good = {"pop": Cost(100.0 * (1 + ALLOWANCE), 2.0 * (1 + LINE_ALLOWANCE)), "post": Cost(150.0)}
    assert over_budget(good, budget, "GCC 12") == []
    more = {"pop": Cost(103.5), "post": Cost(1.0)}
    assert over_budget(more, budget, "GCC 12") == ["pop: 103.5 instructions, budget 100.0 + 3%"]
    assert over_budget({**more, "pop": Cost(120.0)}, budget, "clang 19") == []  # another compiler's are others
    cold = {
        "pop": Cost(1.0, 2.0 * (1 + LINE_ALLOWANCE) + 2 * LINES_AT_ALL),
        "post": Cost(1.0, 0.0, 2 * MOST_FROM_MEMORY),
    }
    assert over_budget(cold, budget, "GCC 12") == [
        "pop: 2.24 cache lines, budget 2.00 + 10%",
        "post: 0.04 cache lines from memory: does something grow?",
    ]
    assert over_budget({"pop": Cost(1.0), "new": Cost(1.0)}, budget, "GCC 12") == [
        "new: no budget",
        "post: in the budget, but not counted",
    ]


def test_bench_costs_know_the_compiler(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for text, name in (
        (b"\0GCC: (Debian 12.2.0-14) 12.2.0\0GCC: (x) 4.8.5\0", "GCC 12"),
        (b"clang version 19.1.0", "clang 19"),
        (b"\0", "unknown"),
    ):
        program.write_bytes(text)
        assert compiler_of(program) == name


def test_bench_costs_budget_names_every_step() -> None:
    budget = load_budget()
    proxy, lanes = ((programs.ROOT / "bench/native" / f"{name}_costs.cpp").read_text() for name in ("proxy", "lane"))
    assert budget.compiler.startswith("GCC ")
    of_lanes = {f"{family}_{step}" for family in LANE_FAMILIES for step in LANE_STEPS}
    assert of_lanes < set(budget.instructions) and budget.lines.keys() == budget.instructions.keys()
    assert all(f"STEP({step}," in proxy for step in set(budget.instructions) - of_lanes)
    assert proxy.count("\nSTEP(") == len(budget.instructions) - len(of_lanes)
    assert all(f"STEP({step}," in lanes for step in LANE_STEPS) and lanes.count("\nSTEP(") == len(LANE_STEPS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # builds the proxy where that has not been done
@pytest.mark.skipif(bool(valgrind_absence()), reason=valgrind_absence())
def test_bench_costs_of_the_proxy_are_within_budget() -> None:
    built = programs.build(("proxy_costs", "lane_costs"))
    proxy, lanes = built["proxy_costs"], built["lane_costs"]
    assert over_budget(count_all(proxy, lanes), load_budget(), compiler_of(proxy)) == []
