"""The job that the tour looks at: one rank of it, which exchanges rows until a peer is gone.

Run by torchrun, by its path, so that nothing but the installed uccl_ep is imported.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

from torch import distributed

from uccl_ep.errors import UcclEpError
from uccl_ep.examples.launch.step import exchange, make_buffer, say

STATUS_LOST = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=int, default=-1, help="this rank computes longer than the others")
    parser.add_argument("--delay-ms", type=float, default=40.0, help="by so many milliseconds a step")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    buffer = make_buffer(distributed.group.WORLD)
    say(f"rank {buffer.rank} is process {os.getpid()} on {socket.gethostname()}")
    step = 0
    try:
        while True:
            seen = exchange(buffer, seed=step)
            step += 1
            if seen.rank == options.slow:
                time.sleep(options.delay_ms / 1000)  # stands for an expert that computes too long
            if seen.rank == 0 and step % 20 == 0:
                say(f"step {step} by {seen.ranks} ranks on {seen.nodes} nodes over {seen.transport}")
    except UcclEpError as error:
        say(f"rank {buffer.rank} ends at step {step}: {type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            say(note)
        return STATUS_LOST
    finally:
        buffer.destroy()


if __name__ == "__main__":
    raise SystemExit(main())
