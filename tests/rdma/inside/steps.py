"""The steps in the order in which they run, each with its limit: some three times what an idle 2-core machine takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.rdma.inside import buffers, contract, devices, exchange, faults, kernels, libfabric, network, rate
from tests.rdma.inside.context import Context
from tests.rdma.inside.report import Report

__all__ = ["STEPS", "Context", "Step"]


@dataclass(frozen=True)
class Step:
    """What is done and how many seconds it may take."""

    run: Callable[[Context, Report], None]
    limit_s: int


STEPS = {
    "devices": Step(devices.run, 60),
    "contract": Step(contract.run, 240),
    "exchange": Step(exchange.run, 180),
    "kernels": Step(kernels.run, 180),
    "queue-pairs": Step(kernels.run_many_queue_pairs, 150),
    "network": Step(network.run, 180),
    "faults": Step(faults.run, 240),
    "rate": Step(rate.run, 180),
    "libfabric": Step(libfabric.run, 150),
    "buffers": Step(buffers.run, 420),
}
