"""The writes that our kernels issue, counted from the rules of kernels/low_latency and kernels/throughput.

What stays on a node is loaded and stored, and counts for nothing here. No rank is masked. Every write is one command
and carries one immediate. Tests hold each count against the counters of a running job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from uccl_ep._native import EXPECT_BYTES, IDENTITY_BYTES, LowLatencyLayout, RowShape, StreamGeometry, ThroughputLayout
from uccl_ep.cost_model import wire
from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.traffic import Flow, Traffic
from uccl_ep.errors import one_of, refuse

COMBINE_FORMS = ("direct", "node")
"""direct: each (token, k) row goes to its owner by itself. node: reduced in the node before it crosses (README.md)."""


@dataclass(frozen=True)
class LowLatencyCall:
    """Sizes of a low-latency dispatch or combine.

    Attributes:
        row_format: of dispatch rows, one of wire.FORMATS.
        combine_format: of combine rows, one of wire.COMBINE_FORMATS.
    """

    hidden: int
    row_format: str = "fp8"
    combine_format: str = "bf16"

    @property
    def combine_bytes(self) -> int:
        """Bytes of a combine row."""
        return wire.combine_row_bytes(self.hidden, self.combine_format)


@dataclass(frozen=True)
class ThroughputCall:
    """Sizes of a throughput dispatch and its combine.

    Attributes:
        row: of the dispatch.
        channels: streams between two ranks: Config's num_sms / 2 on a GPU.
        unit_bytes: memory of one source's or node's ring (MemoryPlan.throughput.unit_bytes).
        weights: combine takes top-k weights along.
    """

    hidden: int
    row: RowShape
    channels: int = 10
    unit_bytes: int = 64 << 20
    weights: bool = False

    @property
    def answer(self) -> RowShape:
        """A combine row."""
        topk = self.row.topk if self.weights else 0
        return RowShape(2 * self.hidden, topk=topk, has_weights=self.weights)

    @property
    def fitted_channels(self) -> int:
        """Channels that the memory allows for both directions (Throughput.exchange_counts)."""
        largest = RowShape(2 * self.hidden, topk=self.row.topk, has_weights=True).bytes()
        return wire.geometry(self.unit_bytes, self.channels, max(self.row.bytes(), largest)).num_channels

    def geometry(self, one_row: int) -> StreamGeometry:
        """How streams of rows of `one_row` bytes are cut."""
        return StreamGeometry.make(self.unit_bytes, self.fitted_channels, one_row)


# ---- low latency -------------------------------------------------------------------------------------------------


def low_latency_dispatch(demand: Demand, call: LowLatencyCall) -> Traffic:
    """Rows once per remote cell, a run of neighbours in one write; then a routing block and an ExpectHeader, which
    go to every remote cell, also when it takes no row."""
    cluster = demand.cluster
    one_row = wire.row_bytes(call.hidden, call.row_format)
    runs = demand.runs(wire.batch_tokens(call.hidden, call.row_format))
    blocks = [LowLatencyLayout.routing_bytes(*ids.shape) for ids in demand.routing]
    return Traffic(
        (
            Flow("rows", cluster.to_hosts(runs), cluster.to_hosts(demand.rows * one_row)),
            Flow("routing blocks", cluster.once, cluster.once * np.asarray(blocks)[:, None]),
            Flow.of_equal("expect headers", cluster.once, EXPECT_BYTES),
        )
    )


def low_latency_combine(demand: Demand, call: LowLatencyCall, form: str = "direct") -> Traffic:
    """What ranks send back for a dispatch of the same routing.

    direct: a write for each (token, expert) of a remote rank, and an ExpectHeader to every remote rank. node: the
    owner's weights go to the other nodes' hosts, which send one row a token; see README.md.

    Raises:
        InvalidArgument: no such form.
    """
    if form not in COMBINE_FORMS:
        refuse("form", form, one_of(COMBINE_FORMS))
    cluster = demand.cluster
    if form == "direct":
        return Traffic(
            (
                Flow.of_equal("rows", demand.crossing.T, call.combine_bytes),
                Flow.of_equal("expect headers", cluster.is_remote.astype(np.int64), EXPECT_BYTES),
            )
        )
    weights = [LowLatencyLayout.weights_bytes(*ids.shape) for ids in demand.routing]
    return Traffic(
        (
            Flow("weights", cluster.once, cluster.once * np.asarray(weights)[:, None]),
            Flow.of_equal("rows", cluster.to_hosts(demand.rows).T, call.combine_bytes),
            # One for the weights, one for the rows that come back.
            Flow.of_equal("expect headers", cluster.is_remote + cluster.once.T, EXPECT_BYTES),
        )
    )


def announcements(phases: Iterable[str], cluster: Cluster) -> list[Traffic]:
    """The rare message of its own that tells remote ranks what has been read (kernels/low_latency/common.h), for each
    call of a sequence of "dispatch" and "combine" whose results are awaited at once. None in alternation."""
    sent, consumed, told = ({"dispatch": 0, "combine": 0} for _ in range(3))
    found = []
    for phase in phases:
        sent[phase] += 1
        due = any(told[p] < consumed[p] and told[p] + 1 < sent[p] for p in sent)
        writes = cluster.is_remote.astype(np.int64) * int(due)
        found.append(Traffic((Flow.of_equal("announcements", writes, EXPECT_BYTES),)))
        told = dict(consumed)
        consumed[phase] = sent[phase]
    return found


# ---- throughput --------------------------------------------------------------------------------------------------


def throughput_dispatch(demand: Demand, call: ThroughputCall, counted: bool = True) -> Traffic:
    """Rows once per remote cell in chunks, and credits for them; before that, unless the call is a cached one, each
    remote cell gets its counts and an ExpectHeader. Chunks travel as long as they are: nothing pads them.

    The number of credits depends on how quickly readers are. The flow "credits" has the least, one a stream; there are
    never more than chunks (`most_credits`). They have no bytes.
    """
    cluster = demand.cluster
    chunks, rows, streams = _streams(demand, call, call.row.bytes())
    flows = [Flow("chunks", chunks, rows * call.row.bytes()), Flow.of_equal("credits", streams.T, 0)]
    if counted:
        local, channels = demand.local_experts, call.fitted_channels
        sizes = cluster.cell_sizes.tolist()
        each = np.asarray([ThroughputLayout.counts_bytes(channels, readers, local) for readers in sizes])
        counts = np.broadcast_to(each, (cluster.num_ranks, cluster.num_cells))
        flows.append(Flow("counts", cluster.once, cluster.to_hosts(counts)))
        flows.append(Flow.of_equal("expect headers", cluster.once, EXPECT_BYTES))
    else:
        flows.append(_identities(cluster))
    return Traffic(tuple(flows))


def _identities(cluster: Cluster) -> Flow:
    """Of a call that exchanges no counts: every rank tells every rank of other nodes which call it is."""
    return Flow.of_equal("identities", cluster.is_remote.astype(np.int64), IDENTITY_BYTES)


def throughput_combine(demand: Demand, call: ThroughputCall) -> Traffic:
    """One partial sum per token and remote cell, from the source's host there; the credits go the other way. And which
    call it is, to every rank of other nodes."""
    chunks, rows, streams = _streams(demand, call, call.answer.bytes())
    return Traffic(
        (
            Flow("chunks", chunks.T, rows.T * call.answer.bytes()),
            Flow.of_equal("credits", streams, 0),
            _identities(demand.cluster),
        ),
    )


def most_credits(traffic: Traffic) -> int:
    """The most credits that a throughput call can cause, of all ranks together: one a chunk."""
    return int(traffic.of("chunks").writes.sum())


def _streams(demand: Demand, call: ThroughputCall, one_row: int) -> tuple[Ints, Ints, Ints]:
    """[N, N] of source and host: chunks, rows, and streams that carry any."""
    rows = demand.channel_rows(call.fitted_channels)
    chunks = -(-rows // call.geometry(one_row).rows_per_chunk)
    hosts = demand.cluster.to_hosts
    return hosts(chunks.sum(axis=1)), hosts(rows.sum(axis=1)), hosts((rows > 0).sum(axis=1))
