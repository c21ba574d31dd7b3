"""One small dispatch and combine of both modes, checked: what runs under compute-sanitizer.

python -m bench.device.small_case DEVICE RANKS
"""

from __future__ import annotations

import sys
from typing import Any

from bench.device.exchange import Exchange
from bench.device.platforms import Platform, open_platform, variables
from bench.device.rounds import RankRounds
from bench.device.shapes import LOW_LATENCY, THROUGHPUT, Shape
from uccl_ep.group.thread_group import run_ranks

DONE = "small case: rows are right"


def run(platform: Platform, ranks: int) -> None:
    """Two rounds of each mode.

    Raises:
        UcclEpError: a rank failed, or a row was wrong.
    """
    for mode in (LOW_LATENCY, THROUGHPUT):
        shape = Shape(mode, ranks, ranks, 8, 256, 4, 4 * ranks, 2)

        def body(group: Any, shape: Shape = shape) -> None:
            with platform.rank():
                exchange = Exchange(group, platform, shape)
                try:
                    for number in range(shape.rounds):
                        RankRounds(group, exchange).round(number, {})
                finally:
                    exchange.close()

        with variables(timeout_s=60):  # instrumented kernels are slow
            run_ranks(ranks, body)


if __name__ == "__main__":
    run(open_platform(sys.argv[1]), int(sys.argv[2]))
    print(DONE)
