"""One rank of a measurement: interleaved rounds of ours and the peer's, every one checked."""

from __future__ import annotations

import os
from typing import Any

from uccl_ep.bench.options import BenchOptions

_WARM_UP = 2
_TOLERANCE = 0.04  # of bf16 values up to a few tens, after a rounding per node


def run_rank(rank: int, options: BenchOptions, port: int, results: Any) -> None:
    """Entry of a spawned process; puts (rank, times or an error) into the queue `results`."""
    os.environ["UCCL_EP_RANKS_PER_NODE"] = str(options.ranks_per_node)
    os.environ["UCCL_EP_TRANSPORT"] = options.transport
    try:
        results.put((rank, _measure(rank, options, port), ""))
    except Exception as error:  # the parent prints it; a trace per rank would bury it
        results.put((rank, None, f"{type(error).__name__}: {error}"))


def _measure(rank: int, options: BenchOptions, port: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from uccl_ep.bench.gloo import Gloo
    from uccl_ep.bench.inputs import identity_result, make_inputs
    from uccl_ep.bench.ours import Ours

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    inputs = make_inputs(options, rank)
    expected = identity_result(options, inputs).float()
    ours, peer = Ours(options, dist.group.WORLD), Gloo(options, dist.group.WORLD)
    times: dict[str, list[tuple[float, float]]] = {ours.name: [], peer.name: []}
    for number in range(_WARM_UP + options.rounds):
        for side in (ours, peer) if number % 2 == 0 else (peer, ours):
            dist.barrier()
            out, seconds = side.exchange(inputs)
            worst = ((out.float() - expected).abs() / (1.0 + expected.abs())).max().item()
            if worst > _TOLERANCE:
                raise ValueError(f"{side.name} returned wrong rows in round {number}: relative error {worst:.3g}")
            if number >= _WARM_UP:
                times[side.name].append(seconds)
    stats = ours.buffer.stats()
    dist.barrier()
    ours.close()
    dist.destroy_process_group()
    return {"times": times, "proxy": stats["proxy"], "via": sorted({p["via"] for p in stats["peers"]})}
