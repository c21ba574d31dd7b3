"""Rounds of our side alone, for a profiler: `flame_worker.py OPTIONS ROUNDS [PACKAGE [CONTROL ACK]]`.

An empty PACKAGE: the one that is installed. CONTROL and ACK are the pipes of `perf record --control`: sampling begins
after the rounds that touch memory first. Runs against any source tree of ours that has
uccl_ep.tools.bench, so it uses little of it; options that a tree does not know are left out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from typing import Any

WARM_UP = 6  # rounds: inputs take turns, and so does the memory of results


def look_only_in(package: str) -> None:
    """Makes `import uccl_ep` find this folder's, whatever an editable install would find.

    Raises:
        RuntimeError: it still finds another.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if "_frozen_importlib" in str(finder)]
    sys.path.insert(0, package)
    import uccl_ep

    if not os.path.realpath(str(uccl_ep.__file__)).startswith(os.path.realpath(package) + os.sep):
        raise RuntimeError(f"import uccl_ep finds {uccl_ep.__file__}, not the one in {package}")


def tell_perf(pipes: list[str], what: str) -> None:
    """Has perf begin ("enable") or end ("disable") to sample; returns when it has. Without pipes, nothing."""
    if not pipes:
        return
    control, ack = pipes
    with open(control, "w", encoding="ascii") as pipe:
        pipe.write(what + "\n")
    with open(ack, encoding="ascii") as pipe:
        pipe.readline()


def play(rank: int, port: int, wanted: dict[str, Any], rounds: int, pipes: list[str]) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    from uccl_ep.tools.bench.options import BenchOptions
    from uccl_ep.tools.bench.ours import Ours
    from uccl_ep.tools.bench.worker import Rounds

    known = {one.name for one in dataclasses.fields(BenchOptions)}
    options = BenchOptions(**{name: value for name, value in wanted.items() if name in known})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    turns, side = Rounds(options, rank), Ours(options, rank, dist.group.WORLD)
    for number in range(WARM_UP + rounds):
        if number == WARM_UP:
            dist.barrier()
            tell_perf(pipes if rank == 0 else [], "enable")
            dist.barrier()
        turns.play(side, number, dist.barrier)
    dist.barrier()
    tell_perf(pipes if rank == 0 else [], "disable")
    side.close()
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Forks the ranks; returns how many of them failed."""
    wanted, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3 and sys.argv[3]:
        look_only_in(sys.argv[3])
    os.environ["UCCL_EP_RANKS_PER_NODE"] = str(wanted["ranks_per_node"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(wanted["ranks"]):
        child = os.fork()
        if child == 0:
            try:
                play(rank, port, wanted, rounds, sys.argv[4:6])
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
