"""torchrun, elastic: hosts come and go; whoever is left goes on from the last checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # on every host; why: see `require_fresh_stores` below
    torchrun --nnodes 1:4 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST-0:29400 \
        -m uccl_ep.examples.launch.torchrun_elastic --checkpoint shared/step.txt

A rank that loses a peer gets PeerLost and ends with it. torchrun then starts all ranks anew with the hosts it still
has: rank numbers and their count may be others, and with them which rank holds which expert. To go on in the same
processes instead, without a launcher's help, see Buffer.recover.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from torch import distributed

from uccl_ep.examples.launch.step import exchange, make_buffer, say


def load(checkpoint: Path) -> int:
    """Steps that are done; 0 without a checkpoint."""
    return int(checkpoint.read_text(encoding="ascii")) if checkpoint.exists() else 0


def save(checkpoint: Path, steps: int) -> None:
    """In one step: who is killed while it writes leaves the older one whole."""
    draft = checkpoint.with_name(checkpoint.name + ".draft")
    draft.write_text(str(steps), encoding="ascii")
    os.replace(draft, checkpoint)


def train(group: distributed.ProcessGroup, steps: int, every: int, checkpoint: Path) -> None:
    """Steps from the checkpoint on, saved by rank 0 every so many. Collective.

    Raises:
        PeerLost, PeerTimeout: another rank has ended or hangs; let it end this process too.
    """
    done = load(checkpoint)
    buffer = make_buffer(group)
    try:
        for step in range(done, steps):
            seen = exchange(buffer, seed=step)
            if seen.rank == 0 and (step + 1) % every == 0:
                save(checkpoint, step + 1)
                say(f"step {step + 1} by {seen.ranks} ranks on {seen.nodes} node(s), from step {done}")
        buffer.barrier()  # nobody leaves while others may still read its rows
    finally:
        buffer.destroy()


def require_fresh_stores(environment: Mapping[str, str]) -> None:
    """Each life of the job needs a store of its own, in which its ranks find each other's addresses.

    torchrun keeps one store for all lives (torch 2.13, `_create_c10d_store`: "We create a new TCPStore for every
    retry", which DynamicRendezvousHandler does not do). Ranks that are started again then read addresses of ranks that
    have ended: "Connection refused" from gloo, or a wait without end, whichever library runs above it.

    Raises:
        SystemExit: torchrun was started so.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise SystemExit(
            "torchrun shares one store between all lives of this job, so that ranks which it starts again connect "
            "to ranks that have ended, and wait. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every host."
        )


def main() -> None:
    """One rank of one life of the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a file that all hosts can read")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    require_fresh_stores(os.environ)
    distributed.init_process_group("gloo")
    group = distributed.group.WORLD
    assert group is not None  # init_process_group has made it
    train(group, options.steps, options.every, options.checkpoint)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
