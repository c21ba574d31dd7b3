"""Expected bytes of a step between nodes, in closed form, for routing that is uniform over experts."""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep import _native
from uccl_ep._native import EXPECT_BYTES, IDENTITY_BYTES, LowLatencyLayout
from uccl_ep.cost_model import wire
from uccl_ep.errors import one_of, refuse
from uccl_ep.group.topology import Topology

MODES = ("low_latency", "throughput")
FORMATS = {name.replace("-", "_"): form for name, form in wire.FORMATS.items()}
_SCALE_CHANNELS = 128
_BF16_BYTES = 2


@dataclass(frozen=True)
class Load:
    """One step of every rank.

    Attributes:
        tokens: of a rank. hidden: channels. experts: of all ranks. topk: experts a token visits.
        mode: of MODES. row_format: of FORMATS; what dispatch sends. Combine sends bf16.
    """

    tokens: int
    hidden: int
    experts: int
    topk: int
    mode: str = "low_latency"
    row_format: str = "bf16"

    def check(self, num_ranks: int) -> None:
        """Raises InvalidArgument for what a Buffer would refuse, in its words."""
        whole = (
            ("--tokens", self.tokens, _native.MAX_TOKENS_PER_RANK),
            ("--hidden", self.hidden, _native.MAX_HIDDEN),
            ("--experts", self.experts, _native.MAX_EXPERTS),
            ("--topk", self.topk, min(_native.MAX_TOPK, self.experts)),
        )
        for name, value, most in whole:
            if not 1 <= value <= most:
                refuse(name, value, f"1 to {most}")
        if self.experts % num_ranks:
            refuse("--experts", self.experts, f"a multiple of the {num_ranks} ranks", "Pad the expert count.")
        step = 8 if self.row_format == "bf16" else _SCALE_CHANNELS
        if self.hidden % step:
            refuse("--hidden", self.hidden, f"a multiple of {step} for {self.row_format} rows")
        if self.mode not in MODES:
            refuse("--mode", self.mode, one_of(MODES))
        if self.row_format not in FORMATS:
            refuse("--format", self.row_format, one_of(FORMATS))
        if self.mode == "throughput" and self.row_format in ("nvfp4",):
            refuse("--format", self.row_format, "bf16, fp8 or fp8_ue8m0 in throughput mode")


@dataclass(frozen=True)
class Traffic:
    """Expected bytes of one step (a dispatch and its combine) of one rank, averaged over ranks and random routing.

    Attributes:
        remote_places: nodes beyond its own (with enable_shrink: ranks) that a token visits, expected.
        dispatch_bytes, combine_bytes: sent to other nodes.
        per_expert_bytes: what dispatch would send at one row per (token, expert), as DeepEP's low latency does.
        received_rows: (token, expert) pairs that a rank computes.
        seconds: dispatch_bytes + combine_bytes at the rate of the rank's NICs; 0.0: no rate is known.
        formula: how all of it was computed.
    """

    remote_places: float
    dispatch_bytes: float
    combine_bytes: float
    per_expert_bytes: float
    received_rows: float
    seconds: float
    formula: str


def chance_of_visit(experts: int, topk: int, experts_there: int) -> float:
    """Probability that K distinct experts, drawn uniformly from E, include at least one of `experts_there`.

    1 - C(E - e, K) / C(E, K): the hypergeometric distribution at zero. It is a product of K factors here, which stays
    exact where binomials of thousands of experts overflow.
    """
    nobody = 1.0
    for i in range(topk):
        nobody *= max(0.0, (experts - experts_there - i) / (experts - i))
    return 1.0 - nobody


def places(topology: Topology) -> list[tuple[int, int]]:
    """(node, ranks) of each landing place of rows: a node, or with enable_shrink a rank (a cell of topology.h)."""
    cells: dict[int, tuple[int, int]] = {}
    for node, cell in zip(topology.placed, topology.cell_of, strict=True):
        cells[cell] = (node, cells.get(cell, (node, 0))[1] + 1)
    return [cells[cell] for cell in sorted(cells)]


def expected_places(load: Load, topology: Topology, node: int) -> float:
    """Places outside of `node` that a token of a rank there visits, expected: the sum of chances over places.

    Expectation is linear, so that places depend on each other does not matter.
    """
    own = load.experts // topology.num_ranks
    there = [ranks for of, ranks in places(topology) if of != node]
    return sum(chance_of_visit(load.experts, load.topk, own * ranks) for ranks in there)


def dispatch_row_bytes(load: Load) -> int:
    """Bytes of one dispatched row on the wire."""
    if load.mode == "low_latency":
        return LowLatencyLayout.row_bytes(load.hidden, FORMATS[load.row_format])
    scales = {"bf16": 0, "fp8": 4, "fp8_ue8m0": 1}[load.row_format] * (load.hidden // _SCALE_CHANNELS)
    element = _BF16_BYTES if load.row_format == "bf16" else 1
    return _throughput_row(load.hidden * element, -(-scales // 4) * 4, load.topk)


def combine_row_bytes(load: Load) -> int:
    """Bytes of one combined row on the wire, in bf16."""
    if load.mode == "low_latency":
        return _BF16_BYTES * load.hidden
    return _throughput_row(load.hidden * _BF16_BYTES, 0, 0)


def _throughput_row(payload_bytes: int, scale_bytes: int, topk: int) -> int:
    return _native.RowShape(payload_bytes, scale_bytes, topk, has_ids=topk > 0, has_weights=topk > 0).bytes()


def expect(load: Load, topology: Topology, gbps: float, reduces: bool = False) -> Traffic:
    """What one rank sends to other nodes in a step, averaged over the group's ranks.

    With T tokens, E experts, K of them a token, e(p) experts at place p, and P = sum over places p of other nodes of
    1 - C(E - e(p), K) / C(E, K):

    - dispatch: T P rows, since a row crosses once per (token, place); low latency adds to each place a routing block
      (16 + 2 T K bytes) and a header of 48 bytes.
    - combine, low latency: a row per (token, k) that was computed on another node, T K e(others) / E rows, and a header
      to each rank there. Who sends a row is not the token's rank, but summed over ranks it is the same number.
    - combine, low latency, reduced in the node: T P rows; for each place weights and ids (16 + 6 T K bytes), and a
      header each way.
    - combine, throughput: T P rows, since a node merges its partial sums before they cross.

    Sources: ARCHITECTURE.md, "Hosted streams"; row sizes from kernels/layout. Not counted: what throughput mode tells
    ahead (counts, credits), and a network's own headers. uccl_ep.tools.bench.model counts given routes exactly.

    Args:
        gbps: of the rank's NICs together; 0.0: not known.
        reduces: low-latency combines are reduced in the node.
    """
    t, k, e = load.tokens, load.topk, load.experts
    own = e // topology.num_ranks
    nodes = [node for node in topology.placed if 0 <= node < topology.num_nodes]
    sizes = topology.sizes
    row, back = dispatch_row_bytes(load), combine_row_bytes(load)
    dispatch = combine = visited = classic = 0.0
    for node in nodes:
        p = expected_places(load, topology, node)
        elsewhere = k * own * (len(nodes) - sizes[node]) / e  # of a token's experts
        there = sum(of != node for of, _ in places(topology))
        low = load.mode == "low_latency"
        routing = (LowLatencyLayout.routing_bytes(t, k) + EXPECT_BYTES) * there if low else 0
        headers = (EXPECT_BYTES if low else IDENTITY_BYTES) * (len(nodes) - sizes[node])
        if reduces:
            headers += (LowLatencyLayout.weights_bytes(t, k) + EXPECT_BYTES) * there
        visited += p / len(nodes)
        dispatch += (t * p * row + routing) / len(nodes)
        combine += (t * (elsewhere if low and not reduces else p) * back + headers) / len(nodes)
        classic += t * elsewhere * row / len(nodes)
    formula = f"{t} tokens x {visited:.3f} places x {row} B" + (
        " + routing blocks" if load.mode == "low_latency" else ""
    )
    seconds = (dispatch + combine) * 8 / (gbps * 1e9) if gbps else 0.0
    return Traffic(visited, dispatch, combine, classic, float(t * k), seconds, formula)
