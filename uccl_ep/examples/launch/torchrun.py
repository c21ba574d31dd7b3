"""torchrun, static: the ranks are those that the command line says.

    torchrun --nproc-per-node 4 -m uccl_ep.examples.launch.torchrun

Two hosts, run on each with its own --node-rank:

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr HOST-0 --master-port 29500 \
        -m uccl_ep.examples.launch.torchrun

torch's gloo listens on the address that this host's name stands for. Where that is 127.0.0.1 (some /etc/hosts), say
which interface the other hosts reach: GLOO_SOCKET_IFNAME=eth0.
"""

from __future__ import annotations

from torch import distributed

from uccl_ep.examples.launch.step import run, say


def main() -> None:
    """One rank; torchrun has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for init_process_group."""
    distributed.init_process_group("gloo")
    try:
        say(run(distributed.group.WORLD))
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
