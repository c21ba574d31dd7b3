"""A plan as lines for a log."""

from __future__ import annotations

from dataclasses import replace

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import plan
from uccl_ep.plan.lines import lines_of, warning
from uccl_ep.plan.record import LOUD, Caution


def test_lines_of_every_rank() -> None:
    lines = list(lines_of(plan(machines.dgx_h100())))
    assert sum(line.startswith("plan of rank ") for line in lines) == 16
    third = next(line for line in lines if line.startswith("plan of rank 3 "))
    assert third.startswith("plan of rank 3 on host0, node 0: GPU 0000:61:00.0; NICs mlx5_5:1 (400 Gb/s); address of")
    assert any(
        line.startswith("  rank 3, NICs: on the same PCIe switch") and "rather than mlx5_" in line for line in lines
    )
    assert "not taken for transport: efa: all ranks: no EFA device" in lines
    assert lines[-1].startswith("memory of a rank ") and "low-latency rows" in lines[-1]
    assert not any("\n" in line for line in lines)


def test_lines_say_what_is_left_out() -> None:
    made = plan(machines.dgx_h100())
    lines = list(lines_of(replace(made, ranks=made.ranks[:3], bill=())))
    assert lines[-1] == "ranks 3 to 15 are not shown: uccl-ep plan --json shows all"


def test_lines_of_a_warning_stand_out() -> None:
    caution = Caution(LOUD, "shared NIC", (0, 1), "two ranks on one NIC", "do something")
    assert list(warning(caution)) == ["!!! WARNING, shared NIC: two ranks on one NIC", "!!!   fix: do something"]
    lines = list(lines_of(replace(plan(machines.p5()), cautions=(caution,))))
    assert lines[-2:] == list(warning(caution))
