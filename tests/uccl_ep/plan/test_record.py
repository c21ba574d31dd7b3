"""Plans as data."""

from __future__ import annotations

from uccl_ep.plan.record import BillLine, GroupPlan, NicPlan, RankPlan

NIC = NicPlan("mlx5_0", 1, 400.0, 4096, "on the same PCIe switch", -1, "LID")


def rank(*nics: NicPlan) -> RankPlan:
    return RankPlan(0, "a", 0, "cpu", "", "the CPU", nics, "host", 1, (), ())


def test_plan_record_rates() -> None:
    assert str(NIC) == "mlx5_0:1"
    assert rank().gbps == 0.0 and rank(NIC, NIC).gbps == 800.0


def test_plan_record_reserved_memory_is_not_in_the_total() -> None:
    bill = (BillLine("rows", 100, "x"), BillLine("zero copy", 1 << 35, "y", reserved=True), BillLine("words", 28, "z"))
    made = GroupPlan("before the job", 1, 1, 1, "tcp", "host", (), (), (rank(),), bill, 0)
    assert made.total_bytes == 128 and made.traffic is None
