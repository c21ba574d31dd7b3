"""The memory bill: it is what the layouts say, it is what gets allocated, and it is far below upstream's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.uccl_ep.ranks import MIB, assert_refused
from uccl_ep import Buffer, InvalidArgument, _native, run_ranks
from uccl_ep.group.topology import Topology, split_into_nodes
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryPlan, assumed_topology, low_latency_layout, low_latency_size_hint, memory_bill
from uccl_ep.sizes import format_bytes, upstream_low_latency_size_hint

PAGE = 4096
HOST_PAGE = 1 << 16  # the largest of any host
UPSTREAM_CASE = (128, 7168, 8, 288)  # tokens, channels, ranks, experts


@pytest.fixture(autouse=True)
def _no_launcher(variables: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)


def nodes(ranks: int, per_node: int = 0) -> Topology:
    return split_into_nodes(["h"] * ranks, per_node, _native.MAX_RANKS_PER_NODE)


@given(
    tokens=st.integers(1, 300), hidden=st.integers(1, 64).map(lambda h: h * 128), local=st.integers(1, 40),
    ranks=st.integers(1, 40), per_node=st.integers(1, 16),
)  # fmt: skip
def test_memory_bill_is_the_layouts_bytes(tokens: int, hidden: int, local: int, ranks: int, per_node: int) -> None:
    layout = low_latency_layout(tokens, hidden, local * ranks, nodes(ranks, per_node), 0)
    bill = memory_bill(tokens, hidden, ranks, local * ranks, ranks_per_node=per_node)
    assert bill.total_bytes == layout.bytes()
    assert all(item.num_bytes > 0 and item.what_for for item in bill.items)


@pytest.mark.parametrize("per_node, most", [(8, 0.06), (4, 0.07), (1, 0.08)])
def test_memory_low_latency_takes_a_fraction_of_upstream(per_node: int, most: float) -> None:
    bill = memory_bill(*UPSTREAM_CASE, ranks_per_node=per_node)
    assert bill.total_bytes < most * upstream_low_latency_size_hint(*UPSTREAM_CASE)


def test_memory_hint_is_the_bill_rounded_to_what_buffer_takes() -> None:
    hint = low_latency_size_hint(*UPSTREAM_CASE)
    assert hint % 128 == 0 and 0 <= hint - memory_bill(*UPSTREAM_CASE).total_bytes < 128


@pytest.mark.parametrize(
    "sizes, name",
    [
        ((0, 128, 1, 1), "num_max_dispatch_tokens_per_rank"),
        ((_native.MAX_TOKENS_PER_RANK + 1, 128, 1, 1), "num_max_dispatch_tokens_per_rank"),
        ((1, -1, 1, 1), "hidden"),
        ((1, 128.0, 1, 1), "hidden"),
        ((1, 128, 0, 1), "num_ranks"),
        ((1, 128, 1 << 33, 1), "num_ranks"),
        ((1, 128, 1, -1), "num_experts"),
    ],
)
@pytest.mark.parametrize("of", [Buffer.get_low_latency_rdma_size_hint, memory_bill])
def test_memory_sizes_that_no_buffer_has_are_refused(of: Any, sizes: tuple[Any, ...], name: str) -> None:
    assert_refused(lambda: of(*sizes), [name])


@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 32), st.integers(1, 24), st.integers(1, 16)),
    more=st.tuples(*[st.integers(0, 50)] * 4),
)
def test_memory_hints_never_shrink_when_a_size_grows(shape: tuple[int, ...], more: tuple[int, ...]) -> None:
    def hint(tokens: int, blocks: int, ranks: int, local: int) -> int:
        return low_latency_size_hint(tokens, blocks * 128, ranks, local * ranks)

    for i in range(4):
        grown = tuple(s + (more[j] if j == i else 0) for j, s in enumerate(shape))
        assert hint(*grown) >= hint(*shape)


def test_memory_hint_assumes_one_rank_a_node_unless_told(variables: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert assumed_topology(8).sizes == [1] * 8
    alone = low_latency_size_hint(*UPSTREAM_CASE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert assumed_topology(8).sizes == [4, 4]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "0")
    assert assumed_topology(8).sizes == [1] * 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert assumed_topology(8).sizes == [1] * 8
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1000")
    assert max(assumed_topology(2000).sizes) == _native.MAX_RANKS_PER_NODE
    variables(RANKS_PER_NODE=8)  # type: ignore[operator]
    assert assumed_topology(8).sizes == [8]
    assert low_latency_size_hint(*UPSTREAM_CASE) < alone


def test_memory_bill_as_a_table() -> None:
    lines = str(memory_bill(*UPSTREAM_CASE, ranks_per_node=4)).splitlines()
    names = ["staged rows", "hosted rows", "combine slots", "combine staging", "headers", "total"]
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert name in line
    total = memory_bill(*UPSTREAM_CASE, ranks_per_node=4).total_bytes
    assert lines[-1].split("  total")[0].strip() == format_bytes(total)
    assert not any("hosted" in item.name or "staging" in item.name for item in memory_bill(8, 128, 4, 8, 4).items)


@given(
    ranks=st.integers(1, 30), per_node=st.integers(1, 16),
    nvl=st.integers(0, 1 << 18).map(lambda n: n * 128), rdma=st.integers(0, 1 << 18).map(lambda n: n * 128),
    low_latency=st.booleans(),
)  # fmt: skip
@settings(max_examples=60)
def test_memory_plan_parts_lie_one_behind_the_other(
    ranks: int, per_node: int, nvl: int, rdma: int, low_latency: bool
) -> None:
    plan = MemoryPlan(nodes(ranks, per_node), nvl, rdma, low_latency)
    ends = [
        plan.signals.bytes(), plan.throughput.base, plan.throughput.base + plan.throughput.bytes(),
        plan.low_latency_base, plan.low_latency_base + plan.low_latency_budget + 128, plan.data_bytes,
        plan.control_offset, plan.control_offset + plan.control_bytes, plan.zero_copy_offset,
    ]  # fmt: skip
    assert ends == sorted(ends)
    for offset in (plan.throughput.base, plan.low_latency_base, plan.control_offset, plan.zero_copy_offset):
        assert offset % PAGE == 0
    assert plan.low_latency_budget == (rdma if low_latency else 0)
    assert plan.throughput_budget == nvl + (0 if low_latency else rdma)
    # Rings take what they were given: no more than that, besides their few words a channel.
    assert plan.throughput.unit_bytes * plan.throughput.num_units() <= plan.throughput_budget
    assert plan.bill().total_bytes == plan.data_bytes + plan.control_bytes
    assert plan.flat_bytes == plan.zero_copy_offset


def test_memory_zero_copy_is_reserved_and_not_in_the_total() -> None:
    plan = MemoryPlan(nodes(2, 1), MIB, MIB, True)
    before = plan.bill().total_bytes
    plan.reserve_zero_copy(10 * MIB + 1)
    assert plan.zero_copy_bytes == 10 * MIB + HOST_PAGE
    assert plan.flat_bytes == plan.zero_copy_offset + plan.zero_copy_bytes
    reserved = [item for item in plan.bill().items if item.reserved]
    assert [item.num_bytes for item in reserved] == [plan.zero_copy_bytes]
    assert plan.bill().total_bytes == before
    assert "reserved" in str(plan.bill())
    plan.reserve_zero_copy(MIB, pinned=True, late=True)
    assert plan.bill().total_bytes == before and "registered when their size is first asked for" in str(plan.bill())
    plan.reserve_zero_copy(MIB, pinned=True)
    assert plan.bill().total_bytes == before + plan.zero_copy_bytes and not plan.zero_copy_late


def test_memory_beyond_what_offsets_can_name_is_refused() -> None:
    limit = _native.MAX_REGION_BYTES
    assert MemoryPlan(nodes(2), limit - (1 << 30), 0, False).flat_bytes < limit
    with pytest.raises(
        InvalidArgument, match=rf"num_nvl_bytes \+ num_rdma_bytes must be up to {limit} bytes in all; got \d+\."
    ):
        _ = MemoryPlan(nodes(2), limit, 0, False).flat_bytes


def test_memory_buffer_allocates_what_its_bill_says() -> None:
    from uccl_ep import Buffer

    def body(group: object) -> None:
        hint = low_latency_size_hint(8, 128, 1, 4)
        buffer = Buffer(group, MIB, hint, low_latency_mode=True)
        bill = buffer.memory_bill()
        session = buffer._session
        segments = [session.plan.data_bytes, session.regions.control.bytes]
        items = {item.name: item.num_bytes for item in bill.items}
        assert bill.total_bytes == sum(segments)
        assert items["low-latency rows"] >= hint and 0.9 * MIB < items["throughput rings"] <= MIB + 16 * PAGE
        assert items["zero-copy rows"] == session.plan.zero_copy_bytes
        buffer.destroy()

    run_ranks(1, body)


def test_memory_bill_of_a_gpu_says_where_rows_lie() -> None:
    plan = MemoryPlan(nodes(2), MIB, MIB, True)
    plan.reserve_zero_copy(MIB)
    assert str(plan.bill()).splitlines()[-1].endswith("total")
    bill = plan.bill("device", "all ranks are on one node", gpu=True)
    assert str(bill).splitlines()[-1] == "rows in device memory: all ranks are on one node"
    assert "when their size is first asked for" in str(bill) and bill.total_bytes == plan.bill().total_bytes


@pytest.mark.parametrize(
    "placement, pins, late, where, pinned",
    [
        pytest.param(Placement("host", "no NIC reaches it"), True, True, "host", True, id="host"),
        pytest.param(Placement("device", "one node"), True, True, "device", False, id="one node"),
        pytest.param(Placement("device", "", ways={0: ("none", "")}), True, True, "device", True, id="between nodes"),
        pytest.param(Placement("device", "", ways={0: ("none", "")}), True, False, "host", True, id="all at the start"),
    ],
)
def test_memory_zero_copy_rows_lie_where_the_others_do(
    placement: Placement, pins: bool, late: bool, where: str, pinned: bool
) -> None:
    """Between nodes NICs take them when they are asked for; on one node none does."""
    plan = MemoryPlan(nodes(2, 2), MIB, MIB, True)
    plan.reserve_zero_copy(MIB, pins, late, placement)
    assert (plan.zero_copy_where, plan.zero_copy_pinned) == (where, pinned)
    assert plan.zero_copy_late == (pinned and late)
    said = plan.bill(placement.where, placement.reason, gpu=True)
    as_others = " as the other rows" if where == placement.where else ""
    (item,) = [i for i in said.items if i.name == "zero-copy rows"]
    assert item.what_for.endswith(f"; in {where} memory{as_others}") and item.reserved == (not pinned or late)
    assert " memory" not in next(i for i in plan.bill().items if i.name == "zero-copy rows").what_for
