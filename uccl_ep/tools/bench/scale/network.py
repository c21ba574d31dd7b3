"""Messages through proxies, NICs and the network between them, in virtual time.

A message passes, in this order: a proxy thread of its source (cost per command), the source's NIC (bytes and a cost
per message), the network (latency, jitter; order kept on a queue pair where the family keeps it), the target's NIC.
Each is a queue; a message is cut through, so an idle path charges its bytes once. Nothing flows back: in-flight limits,
credits and retransmissions are not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.queues import Index, Times, fifo, in_sequence

_LARGE = 1024  # bytes from which a message counts as one that fills a port


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages of all ranks in the order in which their sources issue them.

    Attributes:
        source, target: int64 [M]. num_bytes: float64 [M]. place: int64 [M], 0, 1, 2 ... at each source.
    """

    source: Index
    target: Index
    num_bytes: Times
    place: Index

    @property
    def count(self) -> int:
        """All of them."""
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is not as it should be.

    Attributes:
        nic_share: float64 [N, NICs of a rank], share of the NIC's rate; late_us: float64 [N], when a rank begins.
    """

    nic_share: Times
    late_us: Times

    @classmethod
    def healthy(cls, platform: Platform, ranks: int) -> Conditions:
        """All NICs at full rate, all ranks at once."""
        return cls(np.ones((ranks, platform.nic.count)), np.zeros(ranks))


def messages_of(traffic: Traffic, seed: int, last: tuple[str, ...] = ()) -> Messages:
    """The traffic's writes one by one. A pair's bytes are shared evenly among its writes; each source issues its
    writes in a random order, as tokens with random routes do, and those of the flows `last` after all others.
    """
    generator = np.random.default_rng([seed, 1])
    parts: list[tuple[Index, Index, Times, Times]] = []
    for flow in traffic.flows:
        sources, targets = np.nonzero(flow.writes)
        writes = flow.writes[sources, targets]
        each = flow.num_bytes[sources, targets] / writes
        total = int(writes.sum())
        key = generator.random(total) + (1.0 if flow.name in last else 0.0)
        parts.append((np.repeat(sources, writes), np.repeat(targets, writes), np.repeat(each, writes), key))
    if not parts:
        return Messages(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    source, target, num_bytes, key = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(source * 2.0 + key * 0.999, kind="stable")
    source, target, num_bytes = source[order], target[order], num_bytes[order]
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.bincount(source))))
    return Messages(source, target, num_bytes, np.arange(len(source)) - first[source])


def deliver(
    messages: Messages, ready: Times, platform: Platform, conditions: Conditions, seed: int, workers: Index
) -> Times:
    """When each message is in its target's memory, in microseconds.

    Args:
        ready: float64 [M], when its command is in the ring. workers: int64 [M], the proxy thread that takes it.
    """
    nic = platform.nic
    source, target = messages.source, messages.target
    port = workers % nic.count
    posted = fifo(source * platform.threads + workers, ready, np.full(messages.count, platform.proxy_us))
    rate = nic.gb_per_s * 1e3 * conditions.nic_share  # bytes a microsecond
    out = messages.num_bytes / rate[source, port] + nic.message_us
    sent = fifo(source * nic.count + port, posted, out)
    generator = np.random.default_rng([seed, 2])
    delay = nic.latency_us + generator.exponential(nic.jitter_us, messages.count)
    here = sent - out + delay
    if nic.ordered:
        pair = (source * len(conditions.late_us) + target) * platform.threads + workers
        here = in_sequence(pair * nic.queue_pairs + messages.place % nic.queue_pairs, messages.place, here)
    share = kept_share(messages, platform, len(conditions.late_us))
    taken = messages.num_bytes / (rate[target, port] * share[target]) + nic.message_us
    return np.maximum(fifo(target * nic.count + port, here, taken), sent + nic.latency_us)


def kept_share(messages: Messages, platform: Platform, ranks: int) -> Times:
    """float64 [ranks]: what is left of a port's rate under as many senders as it has."""
    large = messages.num_bytes >= _LARGE
    pairs = np.unique(messages.source[large] * ranks + messages.target[large])
    senders = np.bincount(pairs % ranks, minlength=ranks)
    kept: Times = np.minimum(1.0, platform.nic.onset / np.maximum(senders, 1))
    return np.maximum(platform.nic.congested_share, kept)
