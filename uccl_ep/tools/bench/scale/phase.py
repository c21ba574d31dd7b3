"""One phase of a call in virtual time: what kernels do before and after the network, and when each rank is done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uccl_ep.cost_model.cluster import Ints
from uccl_ep.tools.bench.scale.network import Conditions, Messages, deliver, messages_of
from uccl_ep.tools.bench.scale.plans import Plan
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.queues import Index, Times, fifo, in_sequence, most_parked

_CHANNELS = 10  # of a throughput call: 20 multiprocessors, two a channel


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a phase went.

    Attributes:
        done_us: float64 [N], when each rank has all that it waits for.
        waited_for: int64 [N], the rank whose message or rows came last.
        messages, num_bytes: of all ranks, between nodes.
        parked, deepest: messages that arrived before an earlier one of their stream, and the widest such gap.
    """

    done_us: Times
    waited_for: Index
    messages: int
    num_bytes: int
    parked: int
    deepest: int

    @property
    def slowest_us(self) -> float:
        """What a collective call takes: its slowest rank."""
        return float(self.done_us.max())


def simulate(plan: Plan, platform: Platform, conditions: Conditions, seed: int = 0) -> Outcome:
    """Runs one phase; all times are microseconds after the first rank began. Equal arguments, equal outcome."""
    gpu, ranks = platform.gpu, plan.demand.cluster.num_ranks
    begin = conditions.late_us + gpu.start_us / 2
    sent = messages_of(plan.traffic, seed, plan.last)
    ready = begin[sent.source] + _issue_us(plan, platform, sent)
    workers, stream = _workers(plan, platform, sent, ranks)
    if plan.merge is not None:
        ready = _merged(plan, platform, conditions, sent, ready, seed)
    arrived = deliver(sent, ready, platform, conditions, seed, workers)
    parked, deepest = most_parked(stream, sent.place, arrived)
    if plan.streams:
        arrived = in_sequence(stream, sent.place, arrived)
    done = _Last(ranks)
    if plan.forward is not None:
        _hand_on(plan, platform, begin, sent, arrived, done)
    elif plan.fetch is not None:
        _fetch(plan, platform, begin, sent, arrived, done)
    else:
        done.see(sent.target, arrived, sent.source)
    _local(plan, platform, begin, done)
    return Outcome(
        done.time + gpu.start_us / 2, done.rank, sent.count, int(plan.traffic.num_bytes.sum()), parked, deepest
    )


class _Last:
    """The last thing that each rank waits for, and who sent it."""

    def __init__(self, ranks: int) -> None:
        self.time: Times = np.zeros(ranks)
        self.rank: Index = np.arange(ranks)

    def see(self, rank: Index, time: Times, cause: Index) -> None:
        """`cause` gave `rank` something at `time`."""
        order = np.argsort(time, kind="stable")
        rank, time, cause = rank[order], time[order], cause[order]
        latest = np.full(len(self.time), -1)
        latest[rank] = np.arange(len(rank))  # of equal indices, the last assignment stays
        later = np.flatnonzero(latest >= 0)
        later = later[time[latest[later]] > self.time[later]]
        self.time[later], self.rank[later] = time[latest[later]], cause[latest[later]]


def _issue_us(plan: Plan, platform: Platform, sent: Messages) -> Times:
    """Half of the kernel's memory traffic is at the sending end, spread evenly over its messages."""
    each = np.bincount(sent.source, minlength=len(plan.memory_bytes))
    whole = plan.memory_bytes / 2 / platform.gpu.memory_gb_per_s / 1e3
    found: Times = (sent.place + 1) * (whole / np.maximum(each, 1))[sent.source]
    return found


def _workers(plan: Plan, platform: Platform, sent: Messages, ranks: int) -> tuple[Index, Index]:
    """(proxy thread, stream) of each message. A channel stays with one thread, and so does a key in low latency, where
    keys are many and threads share them evenly."""
    channel = sent.place % (_CHANNELS if plan.streams else platform.threads)
    workers = channel % platform.threads
    return workers, (sent.source * ranks + sent.target) * _CHANNELS + channel


def _share(total: Ints, plan: Plan, sent: Messages) -> Times:
    """Each message's part of its pair's [N, N] amount, by bytes."""
    pair_bytes = plan.traffic.num_bytes
    each = sent.num_bytes / np.maximum(pair_bytes[sent.source, sent.target], 1)
    found: Times = each * total[sent.source, sent.target]
    return found


def _shared_with_local(local: Times, passed: Times) -> Times:
    """Factor by which rows of the own node slow down what a rank passes on: both take the same links."""
    factor: Times = np.where(passed > 0, 1.0 + local / np.maximum(passed, 1.0), 1.0)
    return factor


def _merged(plan: Plan, platform: Platform, conditions: Conditions, sent: Messages, ready: Times, seed: int) -> Times:
    """When each message can be sent whose source must first collect rows of its node."""
    assert plan.merge is not None
    cluster = plan.demand.cluster
    begun = np.zeros(cluster.num_nodes)  # rows are merged in order of tokens, so a late rank holds up its whole node
    np.maximum.at(begun, cluster.node_of, conditions.late_us + platform.gpu.start_us / 2)
    ready = np.maximum(ready, begun[cluster.node_of[sent.source]])
    if plan.first is not None:
        known = _known(plan, platform, conditions, seed)
        ready = np.maximum(ready, known[sent.target, sent.source])
    rate = (platform.gpu.forward_gb_per_s if plan.streams else platform.gpu.node_gb_per_s) * 1e3
    passed = plan.merge.sum(axis=1).astype(np.float64)
    slower = _shared_with_local(plan.local.sum(axis=0).astype(np.float64), passed)
    merged = fifo(sent.source, ready, _share(plan.merge, plan, sent) * slower[sent.source] / rate)
    if not plan.streams:
        return merged
    pair = sent.source * len(conditions.late_us) + sent.target
    return fifo(pair, merged, sent.num_bytes / (platform.nic.stream_gb_per_s * 1e3))


def _known(plan: Plan, platform: Platform, conditions: Conditions, seed: int) -> Times:
    """[N, N] of source and target: when `plan.first` of the source is at the target."""
    assert plan.first is not None
    ranks = len(conditions.late_us)
    early = messages_of(plan.first, seed)
    ready = conditions.late_us[early.source] + platform.gpu.start_us / 2
    arrived = deliver(early, ready, platform, conditions, seed, early.place % platform.threads)
    known = np.zeros((ranks, ranks))
    np.maximum.at(known, (early.source, early.target), arrived)
    return known


def _hand_on(plan: Plan, platform: Platform, begin: Times, sent: Messages, arrived: Times, done: _Last) -> None:
    """Rows that have come to a host pass the links of its node; everyone there waits for the host's last."""
    assert plan.forward is not None
    cluster = plan.demand.cluster
    passed = plan.forward.sum(axis=0).astype(np.float64)
    slower = _shared_with_local(plan.local.sum(axis=0).astype(np.float64), passed)
    work = _share(plan.forward, plan, sent) * slower[sent.target] / (platform.gpu.forward_gb_per_s * 1e3)
    from_when = np.maximum(arrived, begin[sent.target]) if plan.forwarder else arrived
    ends = fifo(sent.target, from_when, work)
    rows = work > 0
    hosts = _Last(cluster.num_ranks)
    hosts.see(sent.target[rows], ends[rows], sent.source[rows])
    for node in range(cluster.num_nodes):
        members = np.flatnonzero(cluster.node_of == node)
        for host in members[hosts.time[members] > 0]:
            # Readers of a late rank's node do not wait for it, but it cannot read before it begins.
            own = np.maximum(hosts.time[host], begin[members])
            done.see(members, own, np.full(len(members), hosts.rank[host]))


def _fetch(plan: Plan, platform: Platform, begin: Times, sent: Messages, arrived: Times, done: _Last) -> None:
    """Readers take each source's rows from its host as soon as that source is complete there."""
    assert plan.fetch is not None
    cluster = plan.demand.cluster
    complete = np.zeros((cluster.num_ranks, cluster.num_ranks))
    np.maximum.at(complete, (sent.source, sent.target), arrived)
    sources, readers = np.nonzero(cluster.is_remote)
    there = complete[sources, cluster.host[sources, cluster.cell_of[readers]]]
    work = plan.fetch[sources, readers] / (platform.gpu.node_gb_per_s * 1e3)
    ends = fifo(readers, np.maximum(there, begin[readers]), work)
    done.see(readers, ends, sources)


def _local(plan: Plan, platform: Platform, begin: Times, done: _Last) -> None:
    """Rows of the own node, and what is written at the end. A late rank's rows come when it has begun."""
    gpu = platform.gpu
    rate = (gpu.forward_gb_per_s if plan.streams and plan.traffic.writes.any() else gpu.node_gb_per_s) * 1e3
    taken = plan.local.sum(axis=0) / rate
    ranks = np.arange(len(begin))
    done.see(ranks, begin + taken, ranks)
    sources, targets = np.nonzero(plan.local)
    done.see(targets, begin[sources] + plan.local[sources, targets] / rate, sources)
    if not plan.streams:  # streams are copied while they come
        done.time += plan.memory_bytes / 2 / (gpu.memory_gb_per_s * 1e3)
