"""`Buffer` on ranks that are processes, as two nodes over verbs, first with the proxy as threads and then as processes.

`python -m tests.rdma.inside.torch_ranks RANKS`: one JSON line for each. Importing torch takes an emulated processor
many seconds, so the ranks are forked from one process that has imported it, and play all worlds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep, low_latency_expected, throughput_expected
from tests.end_to_end.world import Crew, World

_LIMIT_S = 150.0


@dataclass(frozen=True)
class VerbsWorld(World):
    """A World whose nodes speak verbs; `timeout_s` is generous, since its processors are emulated."""

    transport: str = "verbs"
    ranks_per_node: int = 1
    timeout_s: float = 60.0
    nics: str = "rxe0"


def steps() -> list[Step]:
    """Both modes, small: what is new here is the network."""
    return [
        LowLatencyStep(1, max_tokens=8, hidden=512, format="fp8", send="hook"),
        ThroughputStep(2, max_tokens=16, hidden=256, num_cached=1),
        LowLatencyStep(3, max_tokens=8, hidden=512, combine="zero_copy"),
    ]


def body(group: Any, ranks_per_node: int) -> tuple[int, str, int]:
    """(rows that were compared, the family between the nodes, writes) of one rank."""
    todo, rank, ranks = steps(), group.rank(), group.size()
    buffer = make_buffer(group, todo, ranks_per_node, slack=2)
    rows = 0
    try:
        for step in todo:
            assert set(playing(buffer, step, ranks_per_node)) == {"send", "receive"}
            if isinstance(step, LowLatencyStep):
                rows += low_latency_expected(step, ranks).combined[rank].shape[0]
            else:
                rows += throughput_expected(step, ranks, ranks_per_node).combined[rank].shape[0]
        remote = [peer for peer in buffer.stats()["peers"] if not peer["node_local"]]
        return rows, str(remote[0]["via"]), sum(int(peer["writes"]) for peer in remote)
    finally:
        buffer.destroy()


def main() -> int:
    """Raises what a rank raised."""
    ranks = int(sys.argv[1])
    crew = Crew(ranks)
    try:
        for proxy in ("thread", "process"):
            begin = time.monotonic()
            world = VerbsWorld(ranks, ranks // 2, proxy=proxy)
            answers = crew.run(world, body, ranks // 2, limit_s=_LIMIT_S)
            result = {
                "what": f"Buffer, both modes, {ranks} ranks as 2 nodes, proxy as {proxy}",
                "rows": sum(rows for rows, _, _ in answers),
                "family": ", ".join(sorted({family for _, family, _ in answers})),
                "writes": sum(writes for _, _, writes in answers),
                "seconds": time.monotonic() - begin,
            }
            print(json.dumps(result), flush=True)
    finally:
        crew.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
