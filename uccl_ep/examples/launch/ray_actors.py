"""Ray: each rank is an actor; actor 0 says where the others meet it.

pip install ray
python -m uccl_ep.examples.launch.ray_actors --ranks 4
"""

from __future__ import annotations

import argparse
import socket

import ray
from torch import distributed

from uccl_ep.examples.launch.rendezvous import Place
from uccl_ep.examples.launch.step import run


class Rank:
    """What runs in an actor's process."""

    def meeting_point(self) -> tuple[str, int]:
        """This actor's address, and a port that is free on it now."""
        address = str(ray.util.get_node_ip_address())
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            return address, int(probe.getsockname()[1])

    def work(self, place: Place) -> str:
        """Joins the others and runs. Every actor must be called at the same time."""
        group = place.join()
        try:
            return str(run(group))
        finally:
            distributed.destroy_process_group()


def main() -> None:
    """The driver: starts a cluster on this host, or joins the one that RAY_ADDRESS names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    ranks = parser.parse_args().ranks
    ray.init(include_dashboard=False)
    actors = [ray.remote(num_cpus=0)(Rank).remote() for _ in range(ranks)]  # with GPUs: num_gpus=1
    address, port = ray.get(actors[0].meeting_point.remote())
    calls = [actor.work.remote(Place(rank, ranks, address, port)) for rank, actor in enumerate(actors)]
    print("\n".join(ray.get(calls)), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
