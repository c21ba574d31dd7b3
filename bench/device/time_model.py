"""Estimated kernel times, from counters of executed PTX and published latencies and rates; one rate is measured.

`estimates.py` makes the tables.

A kernel is estimated as

    launch + asking + ids + max(chain, memory, link, processors) + arrival

in microseconds, where

- launch: from the end of what precedes a kernel to its first instruction, and from its last to its end;
- asking: what one lane does before others may go on, and at the end: words of pinned host memory that it reads (a PCIe
  trip each), words that others write with an order (an L2 trip each), releases to the system (a fence each), and the
  word with which block 0 lets the other blocks go on (two L2 trips);
- ids: of the lane that waits longest, its trips for words, not rows: lines that are new to its block at L2's latency,
  known ones at L1's. Such words say which rows go where, so they come before rows;
- chain: the same lane's trips to a peer's memory at the link's latency, and for 16-byte units of its own GPU's at
  HBM's. Loads that are on their way together are one trip: `tests/gpu/ptx/machine` counts that in the executed PTX;
- memory: bytes that the kernel loads and stores in its own GPU's memory, at the rate of a plain device copy;
- link: bytes that it loads from or stores to GPUs of its node, at the link's rate one way;
- processors: all bytes over the blocks' share of what a processor moves;
- arrival: of a receiving half, a store of a peer's flag over the link.

Between nodes the network is simulated by `uccl_ep.tools.bench.scale` with GPUs that take no time. A rank hands each row
to it as soon as it is staged, so the slower of that kernel's rows and the network counts.

What is left out errs to the fast side: instructions (casts to FP8, address arithmetic), partial lines, latencies
under load, TLB misses, ranks that begin late, rows that lie in host memory between nodes. What errs to the slow side:
trips of different lanes are added although some overlap, and ids to rows. On one H100 that plays all ranks kernels took
1.0 to 3.1 times their estimate (`estimates.md`); `bench/device_check.sh` prints the ratio of each (`render.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from pathlib import Path

from bench.device.gpus import Gpu
from uccl_ep.config import DEFAULT_NUM_SMS

HERE = Path(__file__).resolve().parent
COUNTS = HERE / "kernel_counts.json"
TOKENS, HIDDEN, EXPERTS, TOPK = 128, 7168, 256, 8  # of a low-latency call, as published
THROUGHPUT_TOKENS = 4096
ROW = 2 * HIDDEN  # bf16
CHECK_SMS = 132  # of the GPU that plays all ranks in device_check: an H100's


@dataclass(frozen=True)
class Case:
    """A call whose kernels were counted: all ranks with `sms` processors each."""

    label: str
    mode: str  # low_latency or throughput
    ranks: int
    ranks_per_node: int
    sms: int
    tokens: int  # counted; what throughput does grows with them
    combine: str = "direct"  # the form that a low-latency combine takes between nodes
    call_sms: int = 24  # that a throughput call is told to use


CASES = (
    Case("low latency, 8 GPUs", "low_latency", 8, 8, 132, TOKENS),
    Case("low latency, nodes", "low_latency", 8, 4, 132, TOKENS),
    Case("low latency, nodes, summed in the node", "low_latency", 8, 4, 132, TOKENS, "node"),
    *(Case(f"low latency, {n} ranks on a GPU", "low_latency", n, n, CHECK_SMS // n, TOKENS) for n in (2, 4, 8)),
    Case("throughput, 8 GPUs", "throughput", 8, 8, 132, 512),
    *(
        Case(f"throughput, {n} ranks on a GPU", "throughput", n, n, CHECK_SMS // n, 512, call_sms=DEFAULT_NUM_SMS)
        for n in (2, 4, 8)
    ),
)
"""Nodes are two of four ranks: what a rank does for its rows does not depend on how many ranks there are."""
CHECKS = (
    Case("check, low latency", "low_latency", 2, 2, 16, 16),
    Case("check, throughput", "throughput", 2, 2, 16, 64),
)
"""Small ones, collected with the others: a test counts them anew, and so finds that kernels have changed since."""


@dataclass(frozen=True)
class Kernel:
    """Counters of one launch (`tests/gpu/ptx/collect.py`), the largest of all ranks.

    Attributes:
        lane16: 16-byte accesses of the busiest lane.
        loaded, stored: bytes of global memory, by loads of 16 bytes and by plain stores, of all lanes.
        loaded_away, stored_away: of those, in other ranks' memory.
        away, wide, line, near, host, flag, fence: trips; tests/gpu/ptx/machine.py, `Trips`.
    """

    blocks: int
    warps: int
    lane16: int
    loaded: int
    stored: int
    loaded_away: int
    stored_away: int
    away: int
    wide: int
    line: int
    near: int
    host: int
    flag: int
    fence: int

    def times(self, factor: float) -> Kernel:
        """The same kernel with so many times the rows."""
        grown = {name: round(getattr(self, name) * factor) for name in _GROW}
        return Kernel(**{**vars(self), **grown})

    def in_nodes_of(self, ranks: int, counted: int) -> Kernel:
        """Counted with nodes of `counted` ranks, in nodes of `ranks`: more of what stays in a node is of peers."""
        factor = (ranks - 1) / ranks / ((counted - 1) / counted)
        loaded, stored = round(self.loaded_away * factor), round(self.stored_away * factor)
        return Kernel(
            **{**vars(self), "loaded_away": min(loaded, self.loaded), "stored_away": min(stored, self.stored)}
        )


_GROW = ("lane16", "loaded", "stored", "loaded_away", "stored_away", "away", "wide", "line", "near")


def visits(ranks: int, experts: int = EXPERTS, topk: int = TOPK) -> float:
    """Ranks that a token with random experts goes to, on average."""
    return ranks * (1 - comb(experts - experts // ranks, topk) / comb(experts, topk))


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one launch, by cause; module docstring."""

    launch_us: float
    asking_us: float
    ids_us: float
    chain_us: float
    memory_us: float
    link_us: float
    processors_us: float
    arrival_us: float

    @property
    def rows_us(self) -> float:
        """The slowest of what rows are bound by."""
        return max(self.chain_us, self.memory_us, self.link_us, self.processors_us)

    @property
    def total_us(self) -> float:
        """The whole kernel."""
        return self.launch_us + self.asking_us + self.ids_us + self.rows_us + self.arrival_us

    @property
    def bound(self) -> str:
        """What rows are bound by."""
        causes = {name: getattr(self, f"{name}_us") for name in ("chain", "memory", "link", "processors")}
        return max(causes, key=lambda name: causes[name])


def estimate(kernel: Kernel, gpu: Gpu, players: int = 0, waits: bool = False) -> Estimate:
    """One launch.

    Args:
        players: ranks that share the GPU and all run it at once, so that nothing crosses a link; 0: a GPU each.
        waits: it begins with a peer's flag.
    """
    apart = players == 0
    loaded_away, stored_away = (kernel.loaded_away, kernel.stored_away) if apart else (0, 0)
    players = max(players, 1)
    moved = kernel.loaded + kernel.stored
    away_us = gpu.peer_us if apart else gpu.memory_us
    return Estimate(
        launch_us=gpu.launch_us,
        asking_us=kernel.host * gpu.host_us + (kernel.flag + 2) * gpu.line_us + kernel.fence * gpu.fence_us,
        ids_us=kernel.line * gpu.line_us + kernel.near * gpu.near_us,
        chain_us=kernel.away * away_us + kernel.wide * gpu.memory_us,
        memory_us=players * (moved - loaded_away - stored_away) / gpu.copy_gb_per_s / 1e3,
        link_us=max(loaded_away, stored_away) / gpu.link_gb_per_s / 1e3,
        processors_us=players * moved / (min(kernel.blocks * players, gpu.sms) * gpu.sm_gb_per_s) / 1e3,
        arrival_us=(gpu.peer_us if apart else gpu.line_us) if waits else 0.0,
    )


# ---- calls ----------------------------------------------------------------------------------------------------------

_SUMS = "low_latency_combine_reduce"
LOW_LATENCY_CALLS = {
    "dispatch": ("low_latency_dispatch_send", "low_latency_dispatch_recv"),
    "combine": ("low_latency_combine_send", _SUMS, "low_latency_combine_recv"),
}
THROUGHPUT_CALLS = {"dispatch": ("throughput_dispatch",), "combine": ("throughput_combine",)}
_ROW_KERNELS = {name for calls in (LOW_LATENCY_CALLS, THROUGHPUT_CALLS) for names in calls.values() for name in names}
PER_NODE = 8
PROXY_US = 0.25  # of a command, by the one proxy thread of a rank: assumed, from instructions counted on CPUs


def waits_for_peers(name: str) -> bool:
    """Whether a kernel begins with a peer's flag."""
    return name.endswith(("_recv", "_reduce")) or name.startswith("throughput_")


def counted(path: Path = COUNTS) -> dict[str, dict[str, Kernel]]:
    """Counters by case and kernel."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {label: {name: Kernel(**one) for name, one in kernels.items()} for label, kernels in found.items()}


@dataclass(frozen=True)
class Call:
    """An estimated call: its kernels, one behind the other, and what the network takes beside the sender's rows.

    The first kernel hands rows to the network; where they are summed in the node, the one that sums them.
    """

    kernels: Mapping[str, Estimate]
    network_us: float = 0.0

    @property
    def total_us(self) -> float:
        """All of it."""
        sender = self.kernels.get(_SUMS, next(iter(self.kernels.values())))
        return sum(each.total_us for each in self.kernels.values()) + max(0.0, self.network_us - sender.rows_us)

    @property
    def bound(self) -> str:
        """What takes most of it."""
        slowest = max(self.kernels, key=lambda name: self.kernels[name].total_us)
        if self.network_us > self.kernels[slowest].total_us:
            return "network"
        return f"{slowest.removeprefix('low_latency_').removeprefix('throughput_')}: {self.kernels[slowest].bound}"


@lru_cache(maxsize=32)
def network_us(mode: str, phase: str, ranks: int, form: str = "ours") -> float:
    """Simulated microseconds of a phase between nodes of 8 with a 400 Gb/s NIC a GPU and GPUs that take no time."""
    from uccl_ep.cost_model.cluster import Cluster
    from uccl_ep.cost_model.demand import Demand
    from uccl_ep.cost_model.routing import make_routing
    from uccl_ep.tools.bench.scale.network import Conditions
    from uccl_ep.tools.bench.scale.phase import simulate
    from uccl_ep.tools.bench.scale.plans import Shape, low_latency, throughput
    from uccl_ep.tools.bench.scale.platforms import NO_LIMIT, platform
    from uccl_ep.tools.bench.scale.platforms import Gpu as NetworkGpu

    if ranks <= PER_NODE:
        return 0.0
    timeless = NetworkGpu("takes no time", NO_LIMIT, NO_LIMIT, NO_LIMIT, 0.0)
    cx7 = replace(platform("mi300x-cx7"), gpu=timeless, proxy_us=PROXY_US, threads=1)
    tokens = TOKENS if mode == "low_latency" else THROUGHPUT_TOKENS
    demand = Demand(make_routing("random", ranks, tokens, TOPK, EXPERTS), Cluster.even(ranks, PER_NODE), EXPERTS)
    make = low_latency if mode == "low_latency" else throughput
    plan = make(form, phase, demand, Shape(HIDDEN, TOPK, "fp8" if mode == "low_latency" else "bf16"), efa=False)
    return simulate(plan, cx7, Conditions.healthy(cx7, ranks)).slowest_us


def low_latency(
    counts: Mapping[str, Mapping[str, Kernel]], gpu: Gpu, ranks: int, form: str = "direct"
) -> dict[str, Call]:
    """Dispatch and combine of 128 tokens a rank, a GPU each; `form` of combine between nodes: direct or node."""
    label = "low latency, 8 GPUs"
    if ranks > PER_NODE:
        label = "low latency, nodes" + (", summed in the node" if form == "node" else "")
    case = next(case for case in CASES if case.label == label)
    side = "ours, by node" if form == "node" else "ours"
    return {
        phase: Call(
            {
                n: estimate(counts[label][n].in_nodes_of(PER_NODE, case.ranks_per_node), gpu, waits=waits_for_peers(n))
                for n in names
                if n in counts[label]
            },
            network_us("low_latency", phase, ranks, side if phase == "combine" else "ours"),
        )
        for phase, names in LOW_LATENCY_CALLS.items()
    }


def throughput(counts: Mapping[str, Mapping[str, Kernel]], gpu: Gpu, ranks: int) -> dict[str, Call]:
    """Dispatch and combine of 4,096 bf16 tokens a rank, a GPU each; kernels as on one node."""
    case = next(case for case in CASES if case.label == "throughput, 8 GPUs")
    grown = THROUGHPUT_TOKENS / case.tokens
    return {
        phase: Call(
            {n: estimate(counts[case.label][n].times(grown), gpu, waits=waits_for_peers(n)) for n in names},
            network_us("throughput", phase, ranks),
        )
        for phase, names in THROUGHPUT_CALLS.items()
    }


def throughput_gb_per_s(us: float, ranks: int) -> float:
    """A throughput call's time as the rate that DeepEP publishes: of rows that tokens visit, on one node once for each
    rank, on several once for each node."""
    taken = visits(ranks) if ranks <= PER_NODE else visits(ranks // PER_NODE)
    return THROUGHPUT_TOKENS * taken * ROW / us / 1e3


def on_one_gpu(
    counts: Mapping[str, Mapping[str, Kernel]], gpu: Gpu, mode: str, ranks: int, tokens: int
) -> dict[str, Estimate]:
    """Each kernel of a call of device_check, where one GPU plays all ranks of one node; {} where none was counted."""
    label = f"{mode.replace('_', ' ')}, {ranks} ranks on a GPU"
    case = next((case for case in CASES if case.label == label), None)
    if case is None or label not in counts or (mode == "low_latency" and tokens != case.tokens):
        return {}
    grown = 1.0 if mode == "low_latency" else tokens / case.tokens
    return {
        name: estimate(kernel.times(grown), gpu, players=ranks, waits=waits_for_peers(name))
        for name, kernel in counts[label].items()
        if name in _ROW_KERNELS
    }
