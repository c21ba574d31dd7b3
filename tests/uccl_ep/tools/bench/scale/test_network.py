"""Messages on an empty network, in each other's way, out of order, and on broken NICs: times by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.uccl_ep.tools.bench.scale.sizes import healthy, messages, plain, traffic
from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.tools.bench.scale.network import Conditions, Messages, deliver, kept_share, messages_of
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.queues import Times


def arrivals(sent: Messages, platform: Platform, conditions: Conditions | None = None, seed: int = 0) -> Times:
    zeros = np.zeros(sent.count)
    conditions = conditions or healthy(platform, 4)
    return deliver(sent, zeros, platform, conditions, seed, sent.place % platform.threads)


def test_network_one_message_pays_its_bytes_once_and_the_latency() -> None:
    assert arrivals(messages((0, 1, 5000)), plain()) == pytest.approx([5 + 2])
    # The cost of a message at each end: 0.5 before it leaves, and 0.5 overlaps the wire at the other end.
    assert arrivals(messages((0, 1, 5000)), plain(message_us=0.5)) == pytest.approx([5.5 + 2])
    assert arrivals(messages((0, 1, 5000)), replace(plain(), proxy_us=0.7)) == pytest.approx([0.7 + 5 + 2])


def test_network_two_senders_share_one_port() -> None:
    assert sorted(arrivals(messages((0, 2, 5000), (1, 2, 5000)), plain())) == pytest.approx([7, 12])
    assert sorted(arrivals(messages((0, 2, 5000), (1, 3, 5000)), plain())) == pytest.approx([7, 7])
    assert sorted(arrivals(messages((0, 2, 5000), (0, 3, 5000)), plain())) == pytest.approx([7, 12])


def test_network_a_slow_nic_takes_twice_as_long_at_either_end() -> None:
    for rank in (0, 1):
        conditions = healthy(plain(), 4)
        conditions.nic_share[rank] = 0.5
        assert arrivals(messages((0, 1, 5000)), plain(), conditions) == pytest.approx([10 + 2])


def test_network_more_bandwidth_is_never_slower() -> None:
    sent = messages_of(traffic(4, (0, 2, 30, 700), (1, 2, 20, 3000), (3, 1, 9, 800)), 0)
    last = np.inf
    for gb_per_s in (0.5, 1.0, 2.0, 8.0):
        now = arrivals(sent, plain(gb_per_s=gb_per_s)).max()
        assert now < last
        last = now


def test_network_two_nics_share_a_ranks_messages() -> None:
    two = replace(plain(count=2), threads=2)
    assert arrivals(messages((0, 1, 5000), (0, 1, 5000)), two) == pytest.approx([7, 7])


def test_network_many_senders_leave_a_share_of_a_port() -> None:
    sent = messages(*((source, 3, 2000) for source in (0, 1, 2)))
    assert kept_share(sent, plain(onset=2, congested_share=0.1), 4) == pytest.approx([1, 1, 1, 2 / 3])
    assert kept_share(sent, plain(onset=1, congested_share=0.5), 4) == pytest.approx([1, 1, 1, 0.5])
    # Signals fill no port.
    assert kept_share(messages((0, 3, 0), (1, 3, 8), (2, 3, 16)), plain(onset=1), 4) == pytest.approx(1)


def test_network_order_is_kept_on_a_queue_pair_only() -> None:
    sent = messages(*((0, 1, 10) for _ in range(200)))
    at_once = replace(plain(jitter_us=5.0), threads=1)
    ordered = replace(plain(jitter_us=5.0, ordered=True), threads=1)
    assert (np.diff(arrivals(sent, at_once)) < 0).any()
    assert (np.diff(arrivals(sent, ordered)) > 0).all()
    several = replace(plain(jitter_us=5.0, ordered=True, queue_pairs=4), threads=1)
    arrived = arrivals(sent, several)
    assert (np.diff(arrived) < 0).any() and (np.diff(arrived[::4]) > 0).all()


def test_network_equal_seeds_give_equal_times() -> None:
    sent = messages_of(traffic(4, (0, 2, 30, 700), (1, 2, 20, 3000)), 0)
    jitter = plain(jitter_us=3.0)
    assert (arrivals(sent, jitter, seed=4) == arrivals(sent, jitter, seed=4)).all()
    assert (arrivals(sent, jitter, seed=4) != arrivals(sent, jitter, seed=5)).any()


def test_network_messages_are_all_of_the_traffic() -> None:
    counted = traffic(4, (0, 2, 30, 700), (1, 2, 20, 3000), (3, 0, 1, 0))
    sent = messages_of(counted, 3)
    writes, num_bytes = np.zeros((4, 4)), np.zeros((4, 4))
    np.add.at(writes, (sent.source, sent.target), 1)
    np.add.at(num_bytes, (sent.source, sent.target), sent.num_bytes)
    assert (writes == counted.writes).all() and num_bytes == pytest.approx(counted.num_bytes)
    for source in range(4):
        assert sorted(sent.place[sent.source == source]) == list(range(int(counted.writes[source].sum())))


def test_network_last_flows_follow_all_others() -> None:
    small = replace(traffic(4, (0, 2, 4, 1)).flows[0], name="counts")
    both = traffic(4, (0, 2, 9, 700), (0, 3, 5, 600)) + Traffic((small,))
    sent = messages_of(both, 0, ("counts",))
    assert (sent.num_bytes[sent.place >= 14] == 1).all() and (sent.num_bytes[sent.place < 14] > 1).all()
