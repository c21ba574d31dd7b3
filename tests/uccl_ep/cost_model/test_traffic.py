"""Sums of flows."""

from __future__ import annotations

import numpy as np

from tests.uccl_ep.cost_model.flows import by_flow
from uccl_ep.cost_model.traffic import Flow, Traffic, busiest


def test_traffic_adds_its_flows() -> None:
    writes = np.array([[0, 2], [1, 0]])
    rows = Flow("rows", writes, writes * 100 + np.array([[0, 1], [0, 0]]))
    traffic = Traffic((rows, Flow.of_equal("flags", writes, 8, immediates=False)))
    assert traffic.writes.tolist() == [[0, 4], [2, 0]]
    assert traffic.num_bytes.tolist() == [[0, 217], [108, 0]]
    assert traffic.immediates == 3
    assert by_flow(traffic + traffic) == {"rows": {"writes": 6, "bytes": 602}, "flags": {"writes": 6, "bytes": 48}}
    assert traffic.of("flags").num_bytes.sum() == 24 and traffic.without("flags").num_bytes.sum() == 301
    assert writes.tolist() == [[0, 2], [1, 0]]  # sums do not write into their parts


def test_traffic_of_nothing() -> None:
    nothing = Traffic(())
    assert not nothing.writes.any() and not nothing.num_bytes.any() and nothing.immediates == 0


def test_busiest_is_the_larger_of_sent_and_received() -> None:
    assert busiest(np.array([[0, 5], [1, 0]])) == 5
    assert busiest(np.array([[0, 5, 0], [0, 0, 0], [0, 4, 0]])) == 9
