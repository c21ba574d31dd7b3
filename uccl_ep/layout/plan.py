"""The memory of one rank: what is laid out where, and the bill before it is paid."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from uccl_ep import _native, checks
from uccl_ep.errors import refuse
from uccl_ep.group.topology import Topology, split_into_nodes
from uccl_ep.layout.combine_form import room_for_sums
from uccl_ep.layout.placement import Placement
from uccl_ep.settings import Settings, settings
from uccl_ep.sizes import format_bytes, round_up

STAGING_ROWS = 1280  # combine rows on their way out, low latency with several nodes; a CPU uses fewer of them
_PAGE = 1 << 16  # of any host: all ranks lay out alike
_ON_HOST = Placement("host", "kernels run on the CPU")


def low_latency_layout(
    max_tokens: int,
    hidden: int,
    num_experts: int,
    topology: Topology,
    base: int,
    wanted: Settings | None = None,
) -> _native.LowLatencyLayout:
    """The low-latency part of the data region for M tokens a rank, `hidden` channels and `num_experts` experts.

    Args:
        wanted: whose top-k it has slots for, and whether with room for sums of a node; None: the environment's.
    """
    wanted = settings() if wanted is None else wanted
    layout = _native.LowLatencyLayout()
    layout.max_tokens = max_tokens
    layout.hidden = hidden
    layout.max_topk = wanted.low_latency_topk  # also where there are fewer experts: a row of ids may be padded with -1
    layout.num_landing_slots = topology.num_landing_slots
    layout.staging_rows = STAGING_ROWS if topology.num_nodes > 1 else 0
    layout.num_ranks = topology.num_ranks
    layout.base = base
    layout.reduces = int(room_for_sums(wanted, topology).reduces)
    return layout


def assumed_topology(num_ranks: int) -> Topology:
    """The nodes that a size hint assumes, since it is asked before the group is known.

    UCCL_EP_RANKS_PER_NODE, else what the launcher says about this host (torchrun, Open MPI), else one rank a node,
    which needs the most memory.
    """
    per_node = settings().ranks_per_node
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if per_node == 0 and os.environ.get(name, "").isdecimal():
            per_node = min(int(os.environ[name]), _native.MAX_RANKS_PER_NODE)
    return split_into_nodes(["host"] * num_ranks, per_node or 1, _native.MAX_RANKS_PER_NODE)


def _check_sizes(max_tokens: int, hidden: int, num_ranks: int, num_experts: int) -> None:
    checks.check_int("num_max_dispatch_tokens_per_rank", max_tokens, 1, _native.MAX_TOKENS_PER_RANK)
    checks.check_int("hidden", hidden, 1, _native.MAX_HIDDEN)
    checks.check_int("num_ranks", num_ranks, 1, _native.MAX_RANKS)
    checks.check_int("num_experts", num_experts, 1, _native.MAX_EXPERTS)


def low_latency_size_hint(max_tokens: int, hidden: int, num_ranks: int, num_experts: int) -> int:
    """Bytes of the low-latency part; slots are per peer, not per expert (see `memory_bill`).

    Raises:
        InvalidArgument: a number that no Buffer can have.
    """
    _check_sizes(max_tokens, hidden, num_ranks, num_experts)
    topology = assumed_topology(num_ranks)
    return round_up(low_latency_layout(max_tokens, hidden, num_experts, topology, 0).bytes(), 128)


@dataclass(frozen=True)
class BillItem:
    """One line of the memory bill."""

    name: str
    num_bytes: int
    what_for: str
    reserved: bool = False  # address space whose pages are taken when they are first written; not in the total


@dataclass(frozen=True)
class MemoryBill:
    """The bytes that one rank allocates, by purpose. `str()` is a table."""

    items: tuple[BillItem, ...]
    placement: str = ""  # where rows lie, and why; empty where there is no choice

    @property
    def total_bytes(self) -> int:
        """Sum over all items but those that are only reserved."""
        return sum(item.num_bytes for item in self.items if not item.reserved)

    def __str__(self) -> str:
        rows = [f"{format_bytes(i.num_bytes):>12}  {i.name:<24} {i.what_for}" for i in self.items]
        return "\n".join([*rows, f"{format_bytes(self.total_bytes):>12}  total", *filter(None, [self.placement])])


class MemoryPlan:
    """Offsets and sizes of one rank's segments for a group's shape and the caller's two byte counts.

    The flat offset space of a rank is | data | control | zero copy |, each page-aligned. Data holds signals, the
    throughput part (num_nvl_bytes, and num_rdma_bytes without low latency), and the low-latency part
    (num_rdma_bytes with low latency). `whole` is the topology that the byte counts are meant for: all ranks, a
    cell a node. Both counts grow so that the same rows fit where ranks take in rows of more sources: in a node that has
    lost ranks, and where each rank is a cell (enable_shrink).
    """

    def __init__(
        self,
        topology: Topology,
        num_nvl_bytes: int,
        num_rdma_bytes: int,
        low_latency: bool,
        whole: Topology | None = None,
    ) -> None:
        self.topology = topology
        self.low_latency = low_latency
        self.num_channels = _native.MAX_CHANNELS
        self.throughput_budget = num_nvl_bytes + (0 if low_latency else num_rdma_bytes)
        self.low_latency_budget = num_rdma_bytes if low_latency else 0
        if whole is not None:
            self._grow(whole)
        regions = _native.RegionPlan(
            topology.shape,
            num_channels=self.num_channels,
            max_local_experts=-(-_native.MAX_EXPERTS // topology.num_ranks),
            unit_bytes=self.throughput_budget // topology.shape.num_units // 128 * 128,
            low_latency_bytes=self.low_latency_budget,
        )
        self.signals, self.control, self.throughput = regions.signals, regions.control, regions.throughput
        self.low_latency_base = regions.low_latency_base
        self.data_bytes = self.control_offset = regions.control_offset
        self.control_bytes = self.control.bytes()
        self.zero_copy_offset = regions.zero_copy_offset
        # Two sets of [L, P, H + H/64] rows can never exceed twice what the classic per-expert layout takes; memory of
        # it comes into being only when get_next_low_latency_combine_buffer asks for it or its result is written.
        self.zero_copy_bytes = 0
        self.zero_copy_where = "host"
        self.zero_copy_pinned = self.zero_copy_late = False

    def _grow(self, whole: Topology) -> None:
        before, now = whole.shape.num_units, self.topology.shape.num_units
        self.throughput_budget = round_up(max(1, -(-now // before)) * self.throughput_budget, 128)
        sources = -(-(1 + self.topology.num_landing_slots) // (1 + whole.num_landing_slots))
        of_nodes = self.topology.num_cells == self.topology.num_nodes
        if of_nodes and whole.num_landing_slots:  # sums take memory by hosted sources alone
            sources = max(sources, -(-self.topology.num_landing_slots // whole.num_landing_slots))
        self.low_latency_budget = round_up(max(1, sources) * self.low_latency_budget, 128)

    def reserve_zero_copy(
        self, num_bytes: int, pinned: bool = False, late: bool = False, placement: Placement = _ON_HOST
    ) -> None:
        """Adds the zero-copy span, once, before the segments are made. `pinned`: a NIC takes pages of it; `late`: only
        those of rows that are asked for, when they are, else all at once. `placement`: of the other rows, which
        these lie beside, but in no GPU whose NICs would register all of them at the start. NICs only read them, so
        nothing has to be made visible."""
        between = bool(placement.ways)  # NICs write rows of GPUs
        on_device = placement.where == "device" and (late or not between)
        self.zero_copy_bytes, self.zero_copy_where = round_up(num_bytes, _PAGE), "device" if on_device else "host"
        sent = between or not on_device
        self.zero_copy_pinned, self.zero_copy_late = pinned and sent, late and sent and num_bytes > 0

    @property
    def flat_bytes(self) -> int:
        """Size of the rank's flat offset space.

        Raises:
            InvalidArgument: it is beyond what offsets on the wire can name.
        """
        total = self.zero_copy_offset + self.zero_copy_bytes
        if total > _native.MAX_REGION_BYTES:
            refuse("num_nvl_bytes + num_rdma_bytes", total, f"up to {_native.MAX_REGION_BYTES} bytes in all")
        return total

    def bill(self, where: str = "host", reason: str = "", gpu: bool = False) -> MemoryBill:
        """What this rank allocates; on a GPU also where its rows lie and why."""
        items = [
            BillItem("signals", self.throughput.base, "words that kernels of the node wait on"),
            BillItem("throughput rings", self.low_latency_base - self.throughput.base, "num_nvl_bytes"),
            BillItem("low-latency rows", self.data_bytes - self.low_latency_base, "num_rdma_bytes, slots per peer"),
            BillItem("control", self.control_bytes, "words that the proxy and the kernels share"),
        ]
        if self.zero_copy_bytes:
            taken = "when their size is first asked for" if gpu else "page by page when written"
            at_once = self.zero_copy_pinned and not self.zero_copy_late
            taken = "and registered when their size is first asked for" if self.zero_copy_late else taken
            what_for = "taken at once: a NIC registers every page" if at_once else f"reserved; taken {taken}"
            if gpu:
                as_others = " as the other rows" if self.zero_copy_where == where else ""
                what_for += f"; in {self.zero_copy_where} memory{as_others}"
            items.append(BillItem("zero-copy rows", self.zero_copy_bytes, what_for, not at_once))
        return MemoryBill(tuple(items), f"rows in {where} memory: {reason}" if gpu else "")


def memory_bill(
    num_max_dispatch_tokens_per_rank: int,
    hidden: int,
    num_ranks: int,
    num_experts: int,
    ranks_per_node: int = 0,
    enable_shrink: bool = False,
) -> MemoryBill:
    """What low-latency mode takes on one rank, before anything is allocated.

    Args:
        num_max_dispatch_tokens_per_rank: M, tokens a rank and call.
        hidden: channels of a token.
        num_ranks, num_experts: of the group.
        ranks_per_node: ranks that share a node; 0 assumes what get_low_latency_rdma_size_hint assumes.
        enable_shrink: each rank then takes in all rows for itself instead of once for its node.

    Returns:
        A MemoryBill whose "rows" items sum to low_latency_size_hint() for the same nodes, without enable_shrink.

    Raises:
        InvalidArgument: a number that no Buffer can have.
    """
    _check_sizes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)
    topology = (
        split_into_nodes(["host"] * num_ranks, ranks_per_node, _native.MAX_RANKS_PER_NODE)
        if ranks_per_node
        else assumed_topology(num_ranks)
    )
    topology = replace(topology, apart=enable_shrink)
    layout = low_latency_layout(num_max_dispatch_tokens_per_rank, hidden, num_experts, topology, 0)
    sources = 2 * layout.source_bytes()
    items = [
        BillItem("staged rows", sources, "two sets of this rank's rows, read by its node and by the NIC"),
        BillItem("hosted rows", sources * layout.num_landing_slots, "two sets per remote source on this rank's rail"),
        BillItem("combine slots", 2 * layout.slots_bytes(), "two sets of one row per (token, k)"),
        BillItem(
            "rows to sum", 2 * layout.reduction_bytes(), "two sets of one row per (token, k) of sources hosted here"
        ),
        BillItem("combine staging", layout.staging_bytes(), "rows on their way to other nodes"),
    ]
    rest = layout.bytes() - sum(item.num_bytes for item in items)
    items.append(BillItem("headers", rest, "counts announced to peers"))
    return MemoryBill(tuple(item for item in items if item.num_bytes))
