"""The work requests that upstream (uccl-project/uccl, folder ep) issues for the same routing.

Rules, by section of the project's fact sheet on upstream; where a number depends on timing or is not known, the lower
one is taken, so a comparison errs in upstream's favour.

- 4.1 low-latency dispatch: a write for each (token, expert) on another node, of a 16-byte header and the row.
- 3.2 then a count for each expert on another node, also without rows: an immediate without bytes (EFA), or an atomic
  of 8 bytes (3.4, other NICs). 4.1 with per-expert batching, which is off by default: one write for each expert.
- 4.1 low-latency combine: a bf16 write for each (token, expert) back to the source, logfmt or not; then a flag for each
  (expert, source) pair on different nodes, like a count.
- 4.3 throughput: a token once per destination node, to the rank on its rail; rows hold the data, scales, 8 bytes of
  source, ids and weights of 4 bytes; chunks of num_max_rdma_chunked_send tokens; a head credit of no bytes for each
  full chunk. 3.3 a chunk's tail rides on its write (EFA); 3.4 or is an atomic of its own.
- 4.3 notify: a count matrix of (8 + experts of a node + 1) words to each node, 72 bytes for each channel and node, and
  three barriers of an immediate to rank 0's node and back. What notify does before combine is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uccl_ep.cost_model.cluster import Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.traffic import Flow, Traffic
from uccl_ep.errors import one_of, refuse
from uccl_ep.sizes import round_up

_HEADER, _SOURCE_META, _ATOMIC = 16, 8, 8
_NVL_PEERS, _META_BYTES, _BARRIERS = 8, 72, 3

# rank count: tokens of a chunk (section 4.3); other counts are refused upstream and take the next larger one here.
_DISPATCH_CHUNK = {16: 20, 24: 32, 32: 32, 64: 28, 128: 20, 144: 12, 160: 12}
_COMBINE_CHUNK = {16: 12, 24: 8, 32: 8, 64: 20, 128: 12, 144: 8, 160: 8}


@dataclass(frozen=True)
class Upstream:
    """How upstream is built and set.

    Attributes:
        efa: counters travel as immediates (EFA); else as atomics of the NIC.
        batched: built with per-expert batching.
        channels: of the throughput mode: 20 multiprocessors, two a channel.
    """

    efa: bool = True
    batched: bool = False
    channels: int = 10

    def signal(self, name: str, count: Ints) -> Flow:
        """Counters that are raised at the receiver."""
        return Flow.of_equal(name, count, 0 if self.efa else _ATOMIC, immediates=self.efa)


EFA = Upstream()


def message_bytes(hidden: int, row_format: str) -> int:
    """A low-latency dispatch message. Formats that upstream lacks are refused.

    Raises:
        InvalidArgument: not "bf16", "fp8" or "fp8-ue8m0".
    """
    sizes = {"bf16": 2 * hidden, "fp8": hidden + hidden // 128 * 4, "fp8-ue8m0": hidden + -(-hidden // 512) * 4}
    if row_format not in sizes:
        refuse("row_format", row_format, one_of(sizes), "Upstream has no other.")
    return _HEADER + round_up(sizes[row_format], 16)


def low_latency_dispatch(demand: Demand, hidden: int, row_format: str, how: Upstream = EFA) -> Traffic:
    """Of all ranks; no id may stand twice in a token."""
    each = message_bytes(hidden, row_format)
    writes = demand.experts_named if how.batched else demand.crossing
    return Traffic((Flow("rows", writes, demand.crossing * each, how.efa), _per_expert(demand, how)))


def low_latency_combine(demand: Demand, hidden: int, how: Upstream = EFA) -> Traffic:
    """Of all ranks, for a dispatch of the same routing."""
    rows = demand.crossing.T
    return Traffic((Flow("rows", rows, rows * 2 * hidden, how.efa), _per_expert(demand, how)))


def _per_expert(demand: Demand, how: Upstream) -> Flow:
    return how.signal("counts", demand.cluster.is_remote * demand.local_experts)


@dataclass(frozen=True)
class Rows:
    """Of a throughput call: hidden bytes of a row, float32 scales, and top-k ids and weights that go along."""

    payload_bytes: int
    scales: int = 0
    ids: int = 0
    weights: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of a row in the ring."""
        return round_up(self.payload_bytes + _SOURCE_META + 4 * (self.scales + self.ids + self.weights), 16)


def throughput_dispatch(demand: Demand, rows: Rows, how: Upstream = EFA) -> Traffic:
    """Of all ranks; nodes have equal sizes."""
    cluster = demand.cluster
    chunks, sent, credits = _streams(demand, how.channels, _chunk(_DISPATCH_CHUNK, cluster.num_ranks))
    matrix = 4 * (_NVL_PEERS + demand.num_experts // cluster.num_nodes + 1)
    barriers = np.zeros_like(cluster.once)
    leaders = [int(np.flatnonzero(cluster.node_of == node)[0]) for node in range(1, cluster.num_nodes)]
    barriers[leaders, 0] = barriers[0, leaders] = _BARRIERS
    flows = [
        Flow("chunks", chunks, sent * rows.num_bytes, how.efa),
        how.signal("credits", credits.T),
        Flow.of_equal("counts", cluster.once, matrix, immediates=False),
        Flow.of_equal("channel counts", cluster.once * how.channels, _META_BYTES, immediates=False),
        Flow.of_equal("barriers", barriers, 0),
    ]
    return Traffic(tuple(flows + ([] if how.efa else [how.signal("tails", chunks)])))


def throughput_combine(demand: Demand, rows: Rows, how: Upstream = EFA) -> Traffic:
    """Of all ranks: reduced in the node, then sent to the source's rail."""
    chunks, sent, credits = _streams(demand, how.channels, _chunk(_COMBINE_CHUNK, demand.cluster.num_ranks))
    flows = [Flow("chunks", chunks.T, sent.T * rows.num_bytes, how.efa), how.signal("credits", credits)]
    return Traffic(tuple(flows + ([] if how.efa else [how.signal("tails", chunks.T)])))


def _chunk(table: dict[int, int], ranks: int) -> int:
    return table[next((listed for listed in table if listed >= ranks), max(table))]


def _streams(demand: Demand, channels: int, chunk: int) -> tuple[Ints, Ints, Ints]:
    """[N, N] of source and host: chunks, rows, and credits that the host returns."""
    rows, hosts = demand.channel_rows(channels), demand.cluster.to_hosts
    return hosts((-(-rows // chunk)).sum(axis=1)), hosts(rows.sum(axis=1)), hosts((rows // chunk).sum(axis=1))
